"""The app's own errors, and the one table from error type to HTTP status.

RacerError (racer_core.errors)
├── InputError (racer_core.errors)
│   └── SchemaError      a body that is not shaped as the endpoint expects
├── Overloaded           the router's queue or the memory for bodies is full: come back later
├── NotFound             no such model or calibration
├── Conflict             the active calibration is not the expected one
├── Unauthorized         no key, or a wrong one
├── Forbidden            admin is off, or the key may not do this
├── TooLarge             the body is over the limit
├── UnsupportedBody      content type or encoding that is not read
├── Abstained            nobody is called and the operator chose an error for it
├── NotReady             no calibration is active yet
│   └── NoRouter         no artifact is configured
├── StoreError           the store cannot be read or written
│   ├── StoreDamaged     what is in it is not what was written
│   ├── StoreUnavailable the database cannot be reached
│   ├── StoreFull        there is no room on its disk
│   └── StoreBusy        somebody else has it locked
├── SettingsError        the configuration stops the start
└── UpstreamError        a candidate gave no usable answer
    ├── UpstreamTimeout
    ├── UpstreamUnavailable  nobody is there, or says that it is overloaded
    ├── UpstreamOverloaded   too much is sent and read at once
    ├── UpstreamRateLimited
    ├── UpstreamRejected     a 4xx that is the request's own fault
    └── NoAnswerError        no selected candidate answered
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from racer_core.errors import (
    ArtifactError,
    CalibrationError,
    InfeasibleAlphaError,
    InputError,
    OverlapError,
    RacerError,
    RowsError,
)


class SchemaError(InputError):
    """The body is JSON, but not shaped as the endpoint expects."""


class Overloaded(RacerError):
    """The queue of the router, or the memory for bodies, is full."""


class NotFound(RacerError):
    """No such thing; ``code`` says which kind."""

    def __init__(self, message: str, *, code: str = "not_found", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Conflict(RacerError):
    """Somebody else changed it first."""


class Unauthorized(RacerError):
    """No key, or a wrong one."""


class Forbidden(RacerError):
    """Admin is off, or the key may not do this."""


class TooLarge(RacerError):
    """The body is over the limit."""


class UnsupportedBody(RacerError):
    """A content type or encoding that is not read."""


class Abstained(RacerError):
    """The router abstained and ``on_abstain`` is ``error``."""


class NotReady(RacerError):
    """No calibration is active yet."""


class NoRouter(NotReady):
    """No artifact is configured: candidates are asked by name, and nothing is routed."""

    code = "no_router"
    lasting = True
    sentence = (
        "no artifact is configured, so nothing is routed: name a candidate as the model, or train "
        "a router with `racer train` and set `artifact`"
    )

    def __init__(self) -> None:
        super().__init__(self.sentence)


class StoreError(RacerError):
    """The store cannot be read or written; what is in memory goes on serving."""


class StoreDamaged(StoreError):
    """A record is not what was written, or was written by another version of the program."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or the connection to it was cut."""


class StoreFull(StoreError):
    """There is no room on its disk."""


class StoreBusy(StoreError):
    """Somebody else has it locked."""


class SettingsError(RacerError):
    """The configuration stops the start; the message names the field and the cure."""


class InvalidHost(InputError):
    """The Host header is missing, doubled, malformed or not ours."""

    code = "invalid_host"


class CrossSite(Forbidden):
    """A browser sent this from somebody else's page."""

    code = "cross_site"


class RateLimited(Overloaded):
    """A limit of this key, of this address or of the process is reached.

    Attributes:
        retry_after_s: After so many whole seconds there is room again.
    """

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


_LASTING = frozenset(
    {
        "upstream_rejected",
        "upstream_auth_error",
        "upstream_redirect",
        "upstream_encoding",
        "upstream_response_too_large",
        "upstream_tls_error",
    }
)


class UpstreamError(RacerError):
    """A candidate gave no usable answer.

    Attributes:
        kind: The class of failure, safe to show; the error's ``code`` on the wire.
        lasting: The same request would fail again, so clients should not retry.
        retry_after_s: When a retry may do better, if the candidate said so.
        status: The candidate's own status, if it was an error.
    """

    default_kind = "upstream_error"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        lasting: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind or self.default_kind
        self.code = self.kind
        self.lasting = lasting or self.kind in _LASTING
        self.retry_after_s = retry_after_s
        self.status = status

    def of_all(self, message: str, failures: Iterable[UpstreamError]) -> UpstreamError:
        """This failure as that of several candidates, all of this ``kind``.

        A fault of the client's own is one only if every candidate finds the same, and a retry is
        worth while as soon as the first of them may do better.
        """
        every = list(failures)
        waits = [each.retry_after_s for each in every if each.retry_after_s is not None]
        alike = {each.likeness for each in every} == {self.likeness}
        return (type(self) if alike else UpstreamError)(
            message,
            kind=self.kind,
            lasting=all(each.lasting for each in every),
            retry_after_s=min(waits, default=None),
            status=self.status if alike else None,
        )

    @property
    def likeness(self) -> tuple[type[UpstreamError], int | None]:
        """What failures of a kind must have in common to be one on the wire."""
        return type(self), None


class UpstreamTimeout(UpstreamError):
    """A candidate did not finish within its deadline."""

    default_kind = "upstream_timeout"


class UpstreamUnavailable(UpstreamError):
    """A candidate cannot be reached."""

    default_kind = "upstream_unavailable"


class UpstreamOverloaded(UpstreamError):
    """Too much is sent and read at once to send or read this, too."""

    default_kind = "upstream_overloaded"


class UpstreamRateLimited(UpstreamError):
    """A candidate takes no more calls for now."""

    default_kind = "upstream_rate_limited"


class UpstreamRejected(UpstreamError):
    """A candidate finds fault with the request itself; ``status`` says which."""

    default_kind = "upstream_rejected"

    @property
    def likeness(self) -> tuple[type[UpstreamError], int | None]:
        """Another status is another fault."""
        return type(self), self.status


class NoAnswerError(UpstreamError):
    """No selected candidate answered."""

    default_kind = "no_answer"


# Error type -> (HTTP status, OpenAI type, code). Found along the exception's MRO.
STATUS: Final[dict[type[Exception], tuple[int, str, str]]] = {
    SchemaError: (422, "invalid_request_error", "invalid_schema"),
    RowsError: (422, "invalid_request_error", "invalid_rows"),
    InputError: (400, "invalid_request_error", "invalid_request"),
    OverlapError: (422, "invalid_request_error", "training_overlap"),
    InfeasibleAlphaError: (409, "invalid_request_error", "infeasible_alpha"),
    CalibrationError: (422, "invalid_request_error", "cannot_calibrate"),
    ArtifactError: (500, "api_error", "artifact"),
    Unauthorized: (401, "authentication_error", "invalid_api_key"),
    Forbidden: (403, "permission_error", "forbidden"),
    NotFound: (404, "invalid_request_error", "not_found"),
    Conflict: (409, "invalid_request_error", "conflict"),
    TooLarge: (413, "invalid_request_error", "too_large"),
    UnsupportedBody: (415, "invalid_request_error", "unsupported_body"),
    Abstained: (422, "invalid_request_error", "router_abstained"),
    Overloaded: (429, "rate_limit_error", "overloaded"),
    NotReady: (503, "api_error", "not_calibrated"),
    StoreFull: (507, "api_error", "insufficient_storage"),
    StoreBusy: (503, "api_error", "store_busy"),
    StoreUnavailable: (503, "api_error", "store_unavailable"),
    UpstreamTimeout: (504, "upstream_error", "upstream_timeout"),
    UpstreamUnavailable: (503, "upstream_error", "upstream_unavailable"),
    UpstreamOverloaded: (503, "upstream_error", "upstream_overloaded"),
    UpstreamRateLimited: (429, "rate_limit_error", "upstream_rate_limited"),
    UpstreamRejected: (400, "invalid_request_error", "upstream_rejected"),
    UpstreamError: (502, "upstream_error", "upstream_error"),
    RacerError: (500, "api_error", "internal_error"),
}

# A retry can cure these, after so many seconds. Every other error answers `x-should-retry: false`:
# SDKs retry 408, 409, 429 and 5xx by themselves and would multiply the load.
RETRY_AFTER_S: Final[dict[int, int]] = {429: 1, 502: 1, 503: 1, 504: 1}
MAX_RETRY_AFTER_S: Final = 60  # whatever a candidate asks for
