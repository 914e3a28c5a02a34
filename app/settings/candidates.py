"""The models of the pool: where each is served, what it can do, and how it was labelled."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from app.settings.base import Frozen, http_url

# What fits into a header, a path and a comma-separated list alike.
Name = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]
Url = Annotated[str, AfterValidator(http_url)]

_OURS = frozenset({"model", "messages", "prompt", "input", "stream"})
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_OUR_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection",
     "accept-encoding", "authorization"}
)  # fmt: skip


def _sendable(parameters: dict[str, Any]) -> dict[str, Any]:
    if ours := _OURS & set(parameters):
        raise ValueError(f"{min(ours)!r} is not a decoding parameter")
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"cannot be sent as JSON: {exc}") from exc
    return parameters


def _header_name(name: str) -> str:
    if not _HEADER.fullmatch(name):
        raise ValueError("must be a header's name: letters, digits and hyphens")
    return name.lower()


def _extra_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if _header_name(name) in _OUR_HEADERS:
            raise ValueError(f"{name!r} is set by the gateway; a key goes into `api_key_env`")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"{name!r} must hold printable ASCII")
    return headers


class Capabilities(Frozen):
    """What a candidate can be asked; requests that need more are routed among the others."""

    tools: bool = True
    """It takes tools; requests that need what it lacks are answered by others."""
    vision: bool = True
    """It takes images."""
    json_schema: bool = True
    """It can answer in a demanded schema."""
    context_chars: Annotated[int, Field(gt=0)] | None = None
    """The longest texts of a request that it takes, in all; null: any."""


class Candidate(Frozen):
    """One model of the pool. Several base URLs are replicas of it."""

    name: Name
    """What clients see and ask for; fits into a header: letters, digits and `._:/@+-`."""
    base_url: Url | None = None
    """Where it is served, such as `http://host:8000/v1`; this or `base_urls`."""
    base_urls: tuple[Url, ...] = ()
    """Several replicas of it."""
    model: str | None = None
    """Its name at the server; null: the same."""
    api_key_env: str | None = None
    """The variable that holds its key."""
    key_header: Annotated[str, AfterValidator(_header_name)] = "authorization"
    """The header of the key, there as `Bearer <key>`; any other carries the key alone."""
    headers: Annotated[dict[str, str], AfterValidator(_extra_headers)] = Field(
        default_factory=dict[str, str]
    )
    """Further headers of every call; no secrets."""
    parameters: Annotated[dict[str, Any], AfterValidator(_sendable)] = Field(
        default_factory=dict[str, Any]
    )
    """How it was labelled, `{temperature: 0}` for example; sent where a request says nothing."""
    renames: dict[str, str] = Field(default_factory=dict[str, str])
    """A client's parameter to its name at this server: `{max_completion_tokens: max_tokens}`."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Seconds for one call; never more than is left of the request."""
    concurrency: Annotated[int, Field(gt=0)] = 64
    """Calls at once, over all replicas."""
    price: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Price of a call on average, in any one unit: all candidates have one, or none."""
    capabilities: Capabilities = Capabilities()
    verify_tls: bool = True
    """False takes any certificate, and every start warns of it."""

    @property
    def replicas(self) -> tuple[str, ...]:
        """Where it is served, one or more base URLs."""
        return self.base_urls or ((self.base_url,) if self.base_url else ())

    @property
    def served_as(self) -> str:
        """Its model name at the server."""
        return self.model or self.name

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if (self.base_url is None) == (not self.base_urls):
            raise ValueError("give either `base_url`, or `base_urls` for several replicas")
        if len(set(self.base_urls)) != len(self.base_urls):
            raise ValueError("`base_urls` names a replica twice")
        if ours := _OURS & {*self.renames, *self.renames.values()}:
            raise ValueError(f"renames: {min(ours)!r} keeps its name")
        return self


class FleetSettings(Frozen):
    """How sick replicas are kept out, and how much more may be called because of them."""

    attempts: Annotated[int, Field(ge=1, le=5)] = 2
    """Calls of one candidate for one request, the first included."""
    retry_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of the calls of ten seconds that may be made again; three always may, 0 makes none."""
    failures: Annotated[int, Field(ge=1)] = 5
    """Failures in a row that take a replica out."""
    eject_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a replica is out the first time, growing with each further one."""
    eject_max_s: Annotated[float, Field(gt=0)] = 300.0
    """Seconds that a replica is out at most."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 2.0
    """Seconds to make a connection."""
    idle_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds between two pieces of an answer."""
