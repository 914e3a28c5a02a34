"""Encryption at rest: AES-256-GCM of single values, each bound to the id of its row.

A value moved to another row, or changed, is not decrypted.
"""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.errors import StoredRequestsUnreadable

_NONCE_BYTES: Final = 12  # drawn at random: one key may encrypt 2**32 values


class Cipher:
    """Encrypts and decrypts with one key.

    Args:
        key: 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def encrypt(self, value: bytes, row_id: str) -> bytes:
        """The encrypted value, which only a row with this id can hold."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, value, row_id.encode())

    def decrypt(self, value: bytes, row_id: str) -> bytes:
        """The value of the row with this id.

        Raises:
            StoredRequestsUnreadable: Another key encrypted it, or it was changed.
        """
        nonce, encrypted = value[:_NONCE_BYTES], value[_NONCE_BYTES:]
        try:
            return self._aead.decrypt(nonce, encrypted, row_id.encode())
        except (InvalidTag, ValueError) as exc:  # ValueError: cut off
            raise StoredRequestsUnreadable from exc
