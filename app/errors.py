"""The app's own errors, and the one table from error type to HTTP status.

RacerError (racer_core.errors)
├── InputError (racer_core.errors)
│   └── SchemaError      a body that is not shaped as the endpoint expects
├── Overloaded           the queue of the router is full: come back later
├── NotFound             no such model or calibration
├── Conflict             the active calibration is not the expected one
├── Unauthorized         no key, or a wrong one
├── Forbidden            admin is off, or the key may not do this
├── TooLarge             the body is over the limit
├── UnsupportedBody      content type or encoding that is not read
├── Abstained            nobody is called and the operator chose an error for it
├── NotReady             no calibration is active yet
├── SettingsError        the configuration stops the start
└── UpstreamError        a candidate gave no usable answer
    ├── UpstreamTimeout
    ├── UpstreamUnavailable
    └── NoAnswerError    no selected candidate answered
"""

from __future__ import annotations

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
    """The queue of the router is full."""


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


class SettingsError(RacerError):
    """The configuration stops the start; the message names the field and the cure."""


_LASTING = frozenset(
    {
        "upstream_rejected",
        "upstream_auth_error",
        "upstream_redirect",
        "upstream_encoding",
        "upstream_response_too_large",
    }
)


class UpstreamError(RacerError):
    """A candidate gave no usable answer.

    Attributes:
        kind: The class of failure, safe to show; the error's ``code`` on the wire.
        lasting: The same request would fail again, so clients should not retry.
    """

    default_kind = "upstream_error"

    def __init__(self, message: str, *, kind: str | None = None, lasting: bool = False) -> None:
        super().__init__(message)
        self.kind = kind or self.default_kind
        self.code = self.kind
        self.lasting = lasting or self.kind in _LASTING


class UpstreamTimeout(UpstreamError):
    """A candidate did not finish within its deadline."""

    default_kind = "upstream_timeout"


class UpstreamUnavailable(UpstreamError):
    """A candidate cannot be reached."""

    default_kind = "upstream_unavailable"


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
    UpstreamTimeout: (504, "upstream_error", "upstream_timeout"),
    UpstreamUnavailable: (503, "upstream_error", "upstream_unavailable"),
    UpstreamError: (502, "upstream_error", "upstream_error"),
    RacerError: (500, "api_error", "internal_error"),
}

# A retry can cure these, after so many seconds. Every other error answers `x-should-retry: false`:
# SDKs retry 408, 409, 429 and 5xx by themselves and would multiply the load.
RETRY_AFTER_S: Final[dict[int, int]] = {429: 1, 502: 1, 503: 1, 504: 1}
