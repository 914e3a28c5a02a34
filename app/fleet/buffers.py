"""How much of all answers is in memory at once."""

from __future__ import annotations

from app.errors import UpstreamOverloaded


class Buffers:
    """One budget of bytes for the answers that are being read."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are counted now."""
        return self._used

    def take(self, size: int) -> None:
        """Count bytes. Raises UpstreamOverloaded when there is no room for them."""
        if self._used + size > self._limit:
            raise UpstreamOverloaded("too many large answers are being read at once")
        self._used += size

    def give_back(self, size: int) -> None:
        """They are no longer needed."""
        self._used -= size
