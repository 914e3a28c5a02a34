"""Random names that nobody can guess."""

from __future__ import annotations

import os
from typing import Final

_DRAWN: Final = 4096  # a call of the operating system costs as much for one name as for many
_BYTES: Final = 16


class Ids:
    """Gives names of 128 random bits, hexadecimal."""

    def __init__(self) -> None:
        self._bits = b""

    def fresh(self) -> str:
        """A new one."""
        if not self._bits:
            self._bits = os.urandom(_DRAWN)
        taken, self._bits = self._bits[:_BYTES], self._bits[_BYTES:]
        return taken.hex()
