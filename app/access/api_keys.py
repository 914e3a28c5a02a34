"""API keys: authentication of requests, and the caller that a key stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import SecretStr

from app.settings import Secrets, key_format
from app.settings.access import Key

Role = Literal["data", "admin"]


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


@dataclass(frozen=True, slots=True)
class _KeyEntry:
    caller: Caller
    salt: bytes
    digest: bytes


class KeyRing:
    """Hashes of all keys: those of the configuration, and two of the environment."""

    def __init__(self, keys: Sequence[Key], secrets: Secrets) -> None:
        configured = [_KeyEntry(_caller(key), *key_format.parse_hash(key.hash)) for key in keys]
        environment = [
            _from_environment("data", secrets.data_key),
            _from_environment("admin", secrets.admin_key),
        ]
        self._entries = (*configured, *(each for each in environment if each is not None))

    def has(self, role: Role) -> bool:
        """Whether any key has this role."""
        return any(each.caller.role == role for each in self._entries)

    def find(self, key: bytes) -> Caller | None:
        """The caller with this key, or None. All stored keys are compared, in constant time.

        A key longer than the maximum is refused without hashing.
        """
        if len(key) > key_format.MAX_KEY_BYTES:
            return None
        found: Caller | None = None
        # No early return: the response time must not reveal which key matched.
        for each in self._entries:
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
