"""Time-ordered random ids, as in UUIDv7.

The database index of decisions then grows at its end. Ids in random order would touch a different
page of the index with every insert, at a cost that grows with the table.
"""

from __future__ import annotations

import os
import time
from typing import Final

_POOL_BYTES: Final = 4000  # one system call draws the random bytes of many ids
_BYTES: Final = 10
RANDOM_CHARS: Final = 2 * _BYTES  # at the end of an id


def random_part(generated: str) -> str:
    """The end of a generated id, which does not depend on its time."""
    return generated[-RANDOM_CHARS:]


class IdGenerator:
    """Generates ids of 48 bits of time in milliseconds and 80 random bits, as hexadecimal text."""

    def __init__(self) -> None:
        self._bits = b""

    def new_id(self) -> str:
        """Return a new id."""
        if not self._bits:
            self._bits = os.urandom(_POOL_BYTES)
        random, self._bits = self._bits[:_BYTES], self._bits[_BYTES:]
        return f"{time.time_ns() // 1_000_000:012x}{random.hex()}"
