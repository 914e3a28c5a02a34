"""Settings of the pool: candidates, their capabilities, retries and circuit breaker."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, model_validator

from app.settings.base import Frozen, VariableName, http_url
from racer_core.prices import Price

# Settings of the price of a candidate (`candidates[].price`).

_Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CandidatePrice(Frozen):
    """What calls to a candidate cost, in `currency`; a number alone is the price of a call."""

    input: _Rate = 0.0
    """Price of a million input tokens, in `currency`. A number as the whole `price` is that of a
    call. Set prices for all candidates or for none."""
    cached_input: _Rate | None = None
    """Price of a million input tokens that the candidate read from its cache; null: as `input`."""
    output: _Rate = 0.0
    """Price of a million output tokens."""
    call: _Rate = 0.0
    """Price of a call, beside its tokens and time."""
    gpu_second: _Rate = 0.0
    """Price of a second of one GPU, for candidates of your own: a call costs its time."""
    gpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """GPUs that a call occupies while it lasts; with 16 calls at once on one GPU 0.0625."""

    @property
    def exact(self) -> Price:
        """The price in pico-units."""
        return Price.of(**self.model_dump())

    @model_validator(mode="before")
    @classmethod
    def _number_is_per_call(cls, values: object) -> object:
        is_number = isinstance(values, int | float) and not isinstance(values, bool)
        return {"call": values} if is_number else values

    @model_validator(mode="after")
    def _is_above_zero(self) -> Self:
        if self.exact == Price():
            raise ValueError("give a price above 0 for tokens, for calls or for `gpu_second`")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Also a number."""
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, handler(core_schema)]}


# Valid in a header, in a path and in a comma-separated list.
Name = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]
Url = Annotated[str, AfterValidator(http_url)]

_RESERVED_PARAMETERS = frozenset({"model", "messages", "prompt", "input", "stream"})
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_RESERVED_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection",
     "accept-encoding", "authorization"}
)  # fmt: skip


def _sendable(parameters: dict[str, Any]) -> dict[str, Any]:
    if reserved := _RESERVED_PARAMETERS & set(parameters):
        raise ValueError(f"{min(reserved)!r} is not a decoding parameter")
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"cannot be sent as JSON: {exc}") from exc
    return parameters


def _header_name(name: str) -> str:
    if not _HEADER.fullmatch(name):
        raise ValueError("must be a header name: letters, digits and hyphens")
    return name.lower()


def _extra_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if _header_name(name) in _RESERVED_HEADERS:
            raise ValueError(f"{name!r} is set by the gateway; a key goes into `api_key_env`")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"{name!r} must hold printable ASCII")
    return headers


class Capabilities(Frozen):
    """What a candidate supports; requests that need more are routed among the others."""

    tools: bool = True
    """Supports tools. Requests that need a missing capability go to other candidates."""
    vision: bool = True
    """Supports images."""
    json_schema: bool = True
    """Supports structured outputs (`json_schema`)."""
    context_chars: Annotated[int, Field(gt=0)] | None = None
    """Longest request in characters, over all texts; null: no limit."""


class Candidate(Frozen):
    """One model of the pool; several base URLs are its replicas."""

    name: Name
    """Name for clients: letters, digits and `._:/@+-`."""
    base_url: Url | None = None
    """Base URL of its server, such as `http://host:8000/v1`, without a password; alternatively
    `base_urls`."""
    base_urls: tuple[Url, ...] = ()
    """Base URLs of several replicas."""
    model: str | None = None
    """Model name at the server; null: the same as `name`."""
    api_key_env: VariableName | None = None
    """Environment variable with its API key, in capitals such as `OPENAI_API_KEY`."""
    key_header: Annotated[str, AfterValidator(_header_name)] = "authorization"
    """Header of the API key. `authorization` carries `Bearer <key>`, any other the key alone."""
    headers: Annotated[dict[str, str], AfterValidator(_extra_headers)] = Field(
        default_factory=dict[str, str]
    )
    """Additional headers of every call; no secrets."""
    parameters: Annotated[dict[str, Any], AfterValidator(_sendable)] = Field(
        default_factory=dict[str, Any]
    )
    """Decoding parameters of the labelled answers, such as `{temperature: 0}`; sent for requests
    that set none."""
    renames: dict[str, str] = Field(default_factory=dict[str, str])
    """Parameters with another name at this server: `{max_completion_tokens: max_tokens}`."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Timeout of one call in seconds; the deadline of the request may be earlier."""
    concurrency: Annotated[int, Field(gt=0)] = 64
    """Concurrent calls, over all replicas."""
    price: CandidatePrice | None = None
    """What its calls cost; set it for all candidates or for none."""
    capabilities: Capabilities = Capabilities()
    verify_tls: bool = True
    """Verify TLS certificates; false accepts any, with a warning at every start."""

    @property
    def replicas(self) -> tuple[str, ...]:
        """Base URLs, one or more."""
        return self.base_urls or ((self.base_url,) if self.base_url else ())

    @property
    def served_as(self) -> str:
        """Model name at the server."""
        return self.model or self.name

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if (self.base_url is None) == (not self.base_urls):
            raise ValueError("give either `base_url`, or `base_urls` for several replicas")
        if len(set(self.base_urls)) != len(self.base_urls):
            raise ValueError("`base_urls` contains a URL twice")
        if reserved := _RESERVED_PARAMETERS & {*self.renames, *self.renames.values()}:
            raise ValueError(f"renames: {min(reserved)!r} cannot be renamed")
        return self


class FleetSettings(Frozen):
    """Retries, circuit breaker and connection timeouts of calls to candidates."""

    attempts: Annotated[int, Field(ge=1, le=5)] = 2
    """Attempts per candidate and request, the first included."""
    retry_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Retry budget: retries as a share of the calls, since the start and in ten seconds, of each
    candidate and of all; the first three are always allowed, with 0 none. A retry at another
    replica, of which no recent call failed, is not counted; `attempts: 1` leaves out all."""
    failures: Annotated[int, Field(ge=1)] = 5
    """Consecutive failures that open the circuit breaker of a replica."""
    eject_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that the circuit stays open the first time; longer each further time."""
    eject_max_s: Annotated[float, Field(gt=0)] = 300.0
    """Longest time in seconds that the circuit stays open."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 2.0
    """Connect timeout in seconds."""
    idle_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Read timeout in seconds between two chunks of an answer."""
    max_load: Annotated[float, Field(ge=1, le=1000)] | None = 1.25
    """Turns of a conversation go to one replica of a candidate, for its prompt cache, while its
    calls in flight stay within this multiple of the mean; null: each turn goes to the replica with
    the fewest."""
