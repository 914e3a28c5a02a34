"""Format of API keys: generation, checksum, and the salted hash in the configuration.

A key is ``racer-``, 32 random bytes and a checksum: a cut or mistyped key is distinguished from a
wrong one, and secret scanners find it. The configuration holds only its salted SHA-256. A fast hash
is enough, because the key has 256 random bits. For the same reason the generated keys share one
salt: one digest then finds any of them. A key that is not random needs a random salt of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from typing import Final

PREFIX: Final = "racer-"
MAX_KEY_BYTES: Final = 256  # a longer one is refused without hashing
_CHECKSUM_CHARS: Final = 8
_SALT_BYTES: Final = 16
COMMON_SALT: Final = hashlib.sha256(b"salt of generated RACER keys").digest()[:_SALT_BYTES]
_PEPPER_BYTES: Final = 32


def new_key() -> str:
    """Generate a random key."""
    body = PREFIX + secrets.token_urlsafe(32)
    return body + _checksum(body)


def is_damaged(key: str) -> bool:
    """Whether this has the prefix of a key but not its checksum: cut or mistyped."""
    return key.startswith(PREFIX) and _checksum(key[:-_CHECKSUM_CHARS]) != key[-_CHECKSUM_CHARS:]


def new_salt() -> bytes:
    """Generate a random salt."""
    return secrets.token_bytes(_SALT_BYTES)


def digest(key: bytes, salt: bytes) -> bytes:
    """SHA-256 of salt and key, 32 bytes."""
    return hashlib.sha256(salt + key).digest()


def new_pepper() -> bytes:
    """Generate a pepper: a secret that digests of one process are keyed with."""
    return secrets.token_bytes(_PEPPER_BYTES)


def peppered_digest(key: bytes, pepper: bytes) -> bytes:
    """Keyed BLAKE2b of a key, 32 bytes."""
    return hashlib.blake2b(key, key=pepper, digest_size=32).digest()


def format_hash(key: str, salt: bytes) -> str:
    """The hash for the configuration: ``sha256:<salt>:<digest>``."""
    return f"sha256:{salt.hex()}:{digest(key.encode(), salt).hex()}"


def parse_hash(text: str) -> tuple[bytes, bytes]:
    """Salt and digest of a hash in the configuration."""
    _, salt, digest_hex = text.split(":")
    return bytes.fromhex(salt), bytes.fromhex(digest_hex)


def matches(key: bytes, salt: bytes, expected: bytes) -> bool:
    """Whether the key has this digest, compared in constant time."""
    return hmac.compare_digest(digest(key, salt), expected)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
