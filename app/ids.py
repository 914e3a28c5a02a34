"""Names that nobody can guess, and that sort by when they were given.

The store's index of decisions then grows at its end: of names in random order each one would touch
another page of it, and the more so the longer the gateway runs.
"""

from __future__ import annotations

import os
import time
from typing import Final

_DRAWN: Final = 4000  # a call of the operating system costs as much for one name as for many
_BYTES: Final = 10


class IdGenerator:
    """Gives names of 48 bits of time, in milliseconds, and 80 random ones; hexadecimal."""

    def __init__(self) -> None:
        self._bits = b""

    def new_id(self) -> str:
        """A new one."""
        if not self._bits:
            self._bits = os.urandom(_DRAWN)
        taken, self._bits = self._bits[:_BYTES], self._bits[_BYTES:]
        return f"{time.time_ns() // 1_000_000:012x}{taken.hex()}"
