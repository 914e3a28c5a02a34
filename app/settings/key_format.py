"""How a key is made and what is kept of it. Pure; the settings use it too.

A key is ``racer-``, 32 random bytes and a checksum, so that a cut or mistyped key is told from a
wrong one, and scanners for leaked secrets can find it. The configuration holds its salted SHA-256
alone: the key has 256 bits of its own, hence a fast hash is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from typing import Final

PREFIX: Final = "racer-"
MAX_KEY_BYTES: Final = 256  # a longer one is refused unhashed
_CHECKSUM_CHARS: Final = 8
_SALT_BYTES: Final = 16


def new_key() -> str:
    """A key that nobody has seen."""
    body = PREFIX + secrets.token_urlsafe(32)
    return body + _checksum(body)


def is_damaged(key: str) -> bool:
    """Whether this was a key of ours before it was cut or mistyped."""
    return key.startswith(PREFIX) and _checksum(key[:-_CHECKSUM_CHARS]) != key[-_CHECKSUM_CHARS:]


def new_salt() -> bytes:
    """A salt of one's own for every key."""
    return secrets.token_bytes(_SALT_BYTES)


def digest(key: bytes, salt: bytes) -> bytes:
    """SHA-256 of salt and key, 32 bytes."""
    return hashlib.sha256(salt + key).digest()


def format_hash(key: str, salt: bytes) -> str:
    """The hash as the configuration holds it: ``sha256:<salt>:<digest>``."""
    return f"sha256:{salt.hex()}:{digest(key.encode(), salt).hex()}"


def parse_hash(text: str) -> tuple[bytes, bytes]:
    """Salt and digest of a hash as the configuration holds it."""
    _, salt, known = text.split(":")
    return bytes.fromhex(salt), bytes.fromhex(known)


def matches(key: bytes, salt: bytes, known: bytes) -> bool:
    """Whether the key has this digest; takes the same time whether or not."""
    return hmac.compare_digest(digest(key, salt), known)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
