"""Who may call the gateway, and how much."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Frozen
from app.settings.candidates import Name
from app.settings.routing import Alpha


class Key(Frozen):
    """One key: its hash as `racer key new` prints it, and what it may do."""

    name: Name
    """Stands in logs and metrics, instead of the key."""
    role: Literal["data", "admin"] = "data"
    """`data` may ask, `admin` may calibrate."""
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{32}:[0-9a-f]{64}$")]
    """Salt and digest, as `racer key new NAME` prints them."""
    requests_per_minute: Annotated[int, Field(gt=0)] | None = None
    """Requests a minute; null: any number."""
    tokens_per_minute: Annotated[int, Field(gt=0)] | None = None
    """Tokens a minute; null: any number."""
    concurrency: Annotated[int, Field(gt=0)] = 64
    """Requests at once."""
    max_alpha: Alpha | None = None
    """The largest alpha that it may ask for."""
    group: Annotated[str, Field(max_length=64)] | None = None
    """The group of its requests, with `group_by: key`."""
    candidates: tuple[Name, ...] | None = None
    """The only candidates that it may call; null: all."""


class Listener(Frozen):
    """A second socket, on which alone the admin endpoints then answer."""

    host: str = "127.0.0.1"
    """Address of a second socket, on which alone the admin endpoints then answer."""
    port: Annotated[int, Field(gt=0, le=65535)]  # by its port a request is told apart
    """Port of that second socket, if there is to be one."""


_Host = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,253}|\[?[0-9A-Fa-f:.]{2,45}\]?)$")]
_RESERVED = ("data", "admin", "local")  # the environment's two keys, and who needs none


class Access(Frozen):
    """Keys, hosts and doors."""

    keys: tuple[Key, ...] = ()
    """Keys of clients, by their hashes."""
    data_key_env: str = "RACER_DATA_KEY"
    """The variable that holds the data key."""
    admin_key_env: str = "RACER_ADMIN_KEY"
    """The variable that holds the admin key; without it, and without one below, admin endpoints
    are off."""
    hosts: tuple[_Host, ...] = ()
    """Names under which clients reach the gateway, without port."""
    admin: Listener | None = None
    """A second socket, on which alone the admin endpoints then answer."""
    failures_per_minute: Annotated[int, Field(gt=0)] = 20
    """Wrong keys a minute from one address."""

    @model_validator(mode="after")
    def _keys_are_told_apart(self) -> Self:
        names = [key.name for key in self.keys]
        if len(set(names)) != len(names):
            raise ValueError("two keys have the same name")
        if taken := [name for name in names if name in _RESERVED]:
            raise ValueError(f"keys: the name {taken[0]!r} is taken by the gateway itself")
        if len({key.hash for key in self.keys}) != len(self.keys):
            raise ValueError("keys: two keys have the same hash")
        return self
