"""Settings of access control: API keys, roles, quotas, hosts (section `access`)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Alpha, Frozen, VariableName
from app.settings.budgets import Budget
from app.settings.candidates import Name


class Key(Frozen):
    """One API key of a client: its hash, its role and its quotas."""

    name: Name
    """Name of the key in logs and metrics."""
    role: Literal["data", "admin"] = "data"
    """`data` may send queries, `admin` may also calibrate."""
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{32}:[0-9a-f]{64}$")]
    """Salted hash of the key, as `racer key new NAME` prints it."""
    requests_per_minute: Annotated[int, Field(gt=0)] | None = None
    """Rate limit in requests per minute; null: none."""
    tokens_per_minute: Annotated[int, Field(gt=0)] | None = None
    """Rate limit in tokens per minute; null: none."""
    concurrency: Annotated[int, Field(gt=0)] = 64
    """Concurrent requests."""
    max_alpha: Alpha | None = None
    """Largest alpha that a request may set; null: no limit."""
    group: Annotated[str, Field(max_length=64)] | None = None
    """Group of its requests, with `group_by: key`."""
    candidates: tuple[Name, ...] | None = None
    """Candidates that the key may call; null: all."""
    budget: Budget | None = None
    """As the section `budget`, for requests with this key."""


class Listener(Frozen):
    """A second socket; the admin endpoints then answer only there."""

    host: str = "127.0.0.1"
    """Address of a second socket; the admin endpoints then answer only there."""
    port: Annotated[int, Field(gt=0, le=65535)]  # its port identifies the requests of this socket
    """Port of the second socket."""


_Host = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,253}|\[?[0-9A-Fa-f:.]{2,45}\]?)$")]
ENVIRONMENT_KEYS = ("data", "admin")  # the names of the two keys of the environment
CHECKER = "checker"  # gives the verdicts of the applications' checkers
SAMPLING = "sampling"  # gives those on candidates that answer a sampled request with none
_RESERVED = (*ENVIRONMENT_KEYS, CHECKER, SAMPLING, "local")  # `local`: callers without a key


class Access(Frozen):
    """API keys, allowed hosts and the admin socket."""

    keys: tuple[Key, ...] = ()
    """API keys of clients, as hashes."""
    data_key_env: VariableName = "RACER_DATA_KEY"
    """Environment variable with the data key."""
    admin_key_env: VariableName = "RACER_ADMIN_KEY"
    """Environment variable with the admin key. Without an admin key here or in `access.keys` the
    admin endpoints are off."""
    hosts: tuple[_Host, ...] = ()
    """Host names under which clients reach the gateway, without port."""
    admin: Listener | None = None
    """A second socket; the admin endpoints then answer only there."""
    failures_per_minute: Annotated[int, Field(gt=0)] = 20
    """Rate limit of failed logins: wrong keys per minute and address."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [key.name for key in self.keys]
        if len(set(names)) != len(names):
            raise ValueError("two keys have the same name")
        if taken := [name for name in names if name in _RESERVED]:
            raise ValueError(f"keys: the name {taken[0]!r} is reserved")
        if len({key.hash for key in self.keys}) != len(self.keys):
            raise ValueError("keys: two keys have the same hash")
        return self
