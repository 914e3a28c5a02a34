"""API keys: authentication of requests, and the caller that a key stands for."""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import SecretStr

from app.settings import Secrets, key_format
from app.settings.access import Key

Role = Literal["data", "admin"]
_INDEXED_BYTES: Final = 8  # of a digest, which is uniform: two keys never share them


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request, with the permissions of its key.

    Attributes:
        name: Name of the key, never the key; ``local`` where no key is needed.
        role: Role of the key.
        max_alpha: Largest risk level that it may ask for; None: any.
        group: Group of its queries; None: as the request says.
        candidates: The only candidates that it may call; None: all.
    """

    name: str
    role: Role = "data"
    max_alpha: float | None = None
    group: str | None = None
    candidates: tuple[str, ...] | None = None


LOCAL: Final = Caller(name="local")


class _DigestIndex:
    """Callers by digest: looks up the first bytes, then compares the digest in constant time."""

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[bytes, Caller]] = {}

    def add(self, digest: bytes, caller: Caller) -> None:
        """Store a caller, once per digest."""
        self._entries[digest[:_INDEXED_BYTES]] = (digest, caller)

    def find(self, digest: bytes) -> Caller | None:
        """The caller with this digest, or None."""
        entry = self._entries.get(digest[:_INDEXED_BYTES])
        return entry[1] if entry and hmac.compare_digest(entry[0], digest) else None


class KeyRing:
    """Hashes of all keys: those of the configuration, and two of the environment.

    A key that has been found once is looked up by its digest under a pepper: a random value that
    never leaves this process. One digest then decides, for any number of keys. The first request of
    a key, and every wrong key, take one digest per distinct salt of the configuration; all keys of
    `racer key new` have the same one.
    """

    def __init__(self, keys: Sequence[Key], secrets: Secrets) -> None:
        self._pepper = key_format.new_pepper()
        self._found = _DigestIndex()
        self._configured: defaultdict[bytes, _DigestIndex] = defaultdict(_DigestIndex)
        for key in keys:
            salt, digest = key_format.parse_hash(key.hash)
            self._configured[salt].add(digest, _caller(key))
        environment: dict[Role, SecretStr | None] = {
            "data": secrets.data_key,
            "admin": secrets.admin_key,
        }
        for role, secret in environment.items():
            if secret is not None:
                digest = key_format.peppered_digest(
                    secret.get_secret_value().encode(), self._pepper
                )
                self._found.add(digest, Caller(name=role, role=role))
        self._roles = {key.role for key in keys} | {
            role for role, secret in environment.items() if secret is not None
        }

    def has(self, role: Role) -> bool:
        """Whether any key has this role."""
        return role in self._roles

    def find(self, key: bytes) -> Caller | None:
        """The caller with this key, or None.

        A key longer than the maximum is refused without hashing.
        """
        if len(key) > key_format.MAX_KEY_BYTES:
            return None
        digest = key_format.peppered_digest(key, self._pepper)
        caller = self._found.find(digest)
        if caller is None and (caller := self._find_configured(key)) is not None:
            self._found.add(digest, caller)
        return caller

    def _find_configured(self, key: bytes) -> Caller | None:
        found: Caller | None = None
        # No early return: the response time must not reveal which salt matched.
        for salt, index in self._configured.items():
            found = index.find(key_format.digest(key, salt)) or found
        return found


def _caller(key: Key) -> Caller:
    return Caller(
        name=key.name,
        role=key.role,
        max_alpha=key.max_alpha,
        group=key.group,
        candidates=key.candidates,
    )
