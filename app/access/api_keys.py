"""Who is asking: the ring of known keys, and the caller that a key stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fastapi import Request
from pydantic import SecretStr

from app.settings import Secrets, key_format
from app.settings.access import Key

Role = Literal["data", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request, and what the configuration lets them do."""

    name: str  # of the key, never the key; `local` where none is needed
    role: Role = "data"
    max_alpha: float | None = None
    group: str | None = None
    candidates: tuple[str, ...] | None = None  # the only ones it may call; None: all


LOCAL: Final = Caller(name="local")


def caller_of(request: Request) -> Caller:
    """The caller of a request that the gate let through."""
    return request.state.caller


@dataclass(frozen=True, slots=True)
class _KeyEntry:
    caller: Caller
    salt: bytes
    digest: bytes


class KeyRing:
    """Every key that opens something, by hash: the configuration's and the environment's two."""

    def __init__(self, keys: Sequence[Key], secrets: Secrets) -> None:
        configured = [_KeyEntry(_caller(key), *key_format.parse_hash(key.hash)) for key in keys]
        given = [
            _from_environment("data", secrets.data_key),
            _from_environment("admin", secrets.admin_key),
        ]
        self._known = (*configured, *(each for each in given if each is not None))

    def has(self, role: Role) -> bool:
        """Whether any key has this role."""
        return any(each.caller.role == role for each in self._known)

    def find(self, key: bytes) -> Caller | None:
        """The caller with this key, after comparing with every known one; None for a wrong key.

        A key longer than any that is accepted is refused unhashed.
        """
        if len(key) > key_format.MAX_KEY_BYTES:
            return None
        found: Caller | None = None
        for each in self._known:  # no early end: time must not tell which one it was
            if key_format.matches(key, each.salt, each.digest):
                found = each.caller
        return found


def _caller(key: Key) -> Caller:
    return Caller(
        name=key.name,
        role=key.role,
        max_alpha=key.max_alpha,
        group=key.group,
        candidates=key.candidates,
    )


def _from_environment(role: Role, key: SecretStr | None) -> _KeyEntry | None:
    if key is None:
        return None
    salt = key_format.new_salt()
    digest = key_format.digest(key.get_secret_value().encode(), salt)
    return _KeyEntry(Caller(name=role, role=role), salt, digest)
