"""How much of all bodies, or of all answers, is in memory at once."""

from __future__ import annotations

from racer_core.errors import RacerError


class MemoryBudget:
    """One budget of bytes.

    Args:
        limit: How many bytes may be counted at once.
        error: What it is called when there is no room for more.
        message: For whoever finds no room.
    """

    def __init__(self, limit: int, error: type[RacerError], message: str) -> None:
        self._limit = limit
        self._error = error
        self._message = message
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are counted now."""
        return self._used

    def take(self, size: int) -> None:
        """Count bytes. Raises the budget's error when there is no room for them."""
        if self._used + size > self._limit:
            raise self._error(self._message)
        self._used += size

    def give_back(self, size: int) -> None:
        """They are no longer needed."""
        self._used -= size
