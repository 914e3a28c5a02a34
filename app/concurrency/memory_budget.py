"""Memory budget: a limit on the bytes that all request bodies, or all answers, hold at once."""

from __future__ import annotations

from racer_core.errors import RacerError


class MemoryBudget:
    """One budget of bytes.

    Args:
        limit: Maximum number of bytes reserved at once.
        error: Raised when the budget is exhausted.
        message: The message of that error.
    """

    def __init__(self, limit: int, error: type[RacerError], message: str) -> None:
        self._limit = limit
        self._error = error
        self._message = message
        self._used = 0

    def limit_to(self, limit: int) -> None:
        """Follow another limit; what is reserved stays reserved."""
        self._limit = limit

    @property
    def limit(self) -> int:
        """Bytes that can be reserved at once."""
        return self._limit

    @property
    def used(self) -> int:
        """Bytes reserved now."""
        return self._used

    def check(self, size: int) -> None:
        """Raise the error of the budget if this many bytes do not fit. Nothing is reserved."""
        if self._used + size > self._limit:
            raise self._error(self._message)

    def reserve(self, size: int) -> None:
        """Reserve bytes. Raises the budget's error if they do not fit."""
        self.check(size)
        self._used += size

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        self._used -= size
