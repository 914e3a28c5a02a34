"""Encryption at rest: AES-256-GCM of single values, each bound to the id of its row.

A value moved to another row, or changed, is not decrypted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from app.errors import StoredRequestsUnreadable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES: Final = 12  # drawn at random: one key may encrypt 2**32 values


class Cipher:
    """Encrypts with the first key, and decrypts with any.

    Args:
        keys: The newest key first, each of 32 bytes.
    """

    def __init__(self, *keys: bytes) -> None:
        # Imported here: 6 MiB that a gateway without stored requests does not need.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aeads: list[AESGCM] = [AESGCM(key) for key in keys]
        self._unreadable = (InvalidTag, ValueError)  # ValueError: cut off

    def encrypt(self, value: bytes, row_id: str) -> bytes:
        """The encrypted value, which only a row with this id can hold."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aeads[0].encrypt(nonce, value, row_id.encode())

    def decrypt(self, value: bytes, row_id: str) -> bytes:
        """The value of the row with this id.

        Raises:
            StoredRequestsUnreadable: Another key encrypted it, or it was changed.
        """
        nonce, encrypted = value[:_NONCE_BYTES], value[_NONCE_BYTES:]
        for aead in self._aeads:
            with suppress(*self._unreadable):
                return aead.decrypt(nonce, encrypted, row_id.encode())
        raise StoredRequestsUnreadable
