"""The exception tree of ``app``, and the one table from error type to HTTP status.

RacerError (racer_core.errors)
├── InputError (racer_core.errors)   400, the caller's data is wrong
│   ├── SchemaError                  422, the body has not the shape that the endpoint expects
│   ├── RowsError (racer_core.errors)
│   └── InvalidHost                  the Host header is missing, doubled, malformed or unknown
├── CalibrationError (racer_core.errors)
│   ├── InfeasibleAlphaError (racer_core.errors)
│   ├── OverlapError (racer_core.errors)
├── ArtifactError (racer_core.errors)
│   └── ArtifactSchemaError (racer_core.errors)
├── AssertionRefuted (racer_core.errors)
├── Overloaded                       429, a queue or the memory for bodies is full
│   └── RateLimited                  a limit of this key, this address or the process is reached
│       └── BudgetExceeded           the request may cost more than is left of a budget
├── NotFound                         404, no such model, calibration or job
├── Conflict                         409, another change came first
│   ├── JobCancelled                 the calibration job was cancelled
│   └── ReloadRefused                the configuration is not valid, or needs a restart
├── Unauthorized                     401, no API key, or a wrong one
├── Forbidden                        403, admin is off, or the role of the key is not enough
│   └── CrossSite                    a browser sent the request from another site's page
├── TooLarge                         413, the body is over the limit
├── UnsupportedBody                  415, content type or encoding that is not read
├── Abstained                        422, the router abstained and `on_abstain` is `error`
├── NotReady                         503, no calibration is active yet
│   └── NoRouter                     no artifact is loaded
├── StoreError                       500, the store cannot be read or written
│   ├── StoreDamaged                 a record is not what was written
│   ├── StoreFileDamaged             500, the database itself is not what was written
│   ├── StoredRequestsUnreadable     409, the key does not decrypt the stored requests
│   ├── StoreUnavailable             503, the database cannot be reached
│   │   ├── RecoveryNeeded           a program died while it wrote (crash recovery of SQLite)
│   │   └── StoreReadOnly            it takes no writes: a standby, or a read-only database
│   ├── StoreFull                    507, there is no room on its disk
│   └── StoreBusy                    503, another program holds its lock
├── SettingsError                    the configuration stops the start
│   └── StoreSchemaError             another version of the program made the store's tables
├── UpstreamError                    502, a candidate gave no usable answer
│   ├── UpstreamTimeout              504, not finished within its deadline
│   ├── UpstreamUnavailable          503, not reachable, or it reports an overload
│   │   └── ModelMissing             its server has no model of this name
│   ├── UpstreamOverloaded           503, the gateway's own memory for calls and answers is full
│   ├── UpstreamRateLimited          429, the candidate takes no more calls for now
│   ├── UpstreamRejected             400, the candidate finds fault with the request itself
│   ├── NoAnswerError                502, no selected candidate answered
│   ├── CheckerUnavailable           a checker was not called: it has no process
│   ├── UpstreamUnauthorized         command line: the server wants another API key
│   └── ModelListError               command line: the server gives no list of its models
│       ├── ModelListUnreachable     command line: nothing answers there
│       └── ModelListElsewhere       its list is at another base URL, which the message names
├── GatewayUnreachable               command line: nothing answers at the gateway's URL
├── GatewayRefused                   command line: the gateway answered with an error
│   └── JobUnknown                   command line: this process of the gateway has no such job
└── LabellingIncomplete              command line: some questions have no row yet
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

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
    """The body is JSON, but not of the shape that the endpoint expects."""


class Overloaded(RacerError):
    """A queue, or the memory for bodies, is full: load shedding."""


class NotFound(RacerError):
    """The named object does not exist.

    Attributes:
        code: Which kind of object, on the wire.
        param: The field that names it, when there is one.
    """

    def __init__(self, message: str, *, code: str = "not_found", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Conflict(RacerError):
    """Another change came first, or the object's state forbids this one."""


class JobCancelled(Conflict):
    """The calibration job was cancelled; nothing was changed."""

    code = "job_cancelled"


class ReloadRefused(Conflict):
    """The changed configuration is not valid, or needs a restart; nothing was changed."""

    code = "reload_refused"


class Unauthorized(RacerError):
    """No API key, or a wrong one."""


class Forbidden(RacerError):
    """Admin is off, or the role of the key is not enough."""


class TooLarge(RacerError):
    """The body is over the limit."""


class UnsupportedBody(RacerError):
    """The content type or encoding of the body is not read."""


class Abstained(RacerError):
    """The router abstained and ``on_abstain`` is ``error``."""


class NotReady(RacerError):
    """No calibration is active yet."""


class NoRouter(NotReady):
    """No artifact is loaded: the fallback answers ``auto``, and there is nothing to calibrate."""

    code = "no_router"
    lasting = True
    sentence = (
        "no artifact is loaded, and `routing.fallback` answers `auto`: train a router with "
        "`racer train` and set `artifact` to its folder"
    )

    def __init__(self) -> None:
        super().__init__(self.sentence)


class StoreError(RacerError):
    """The store cannot be read or written; the gateway serves on from memory."""


class StoreDamaged(StoreError):
    """A record is not what was written, or another version of the program wrote it."""


class StoreFileDamaged(StoreError):
    """The database is not what was written; a backup is to be restored, and no retry cures it."""


class StoredRequestsUnreadable(StoreError):
    """The key of this start does not decrypt requests that the shadow sample stored."""

    def __init__(self) -> None:
        super().__init__(
            "stored requests of the shadow sample cannot be decrypted, not one of the newest: set "
            "$RACER_SAMPLES_KEY to the key that encrypted them and restart; if it is lost, so are "
            "they: wait for new samples, or read the rows since the change of the key with `since`"
        )


class StoreUnavailable(StoreError):
    """The database cannot be reached, or the connection to it was cut."""


class RecoveryNeeded(StoreUnavailable):
    """A program died while it wrote; the next program with write access undoes its changes."""


class StoreReadOnly(StoreUnavailable):
    """The database is read, and takes no writes: a standby, or a read-only database or file."""

    code = "store_read_only"


class StoreFull(StoreError):
    """There is no room on its disk."""


class StoreBusy(StoreError):
    """Another program holds its lock."""


class SettingsError(RacerError):
    """The configuration stops the start; the message names the field and the cure."""


class StoreSchemaError(SettingsError):
    """Another version of the program made the store's tables; nothing was changed."""


class InvalidHost(InputError):
    """The Host header is missing, doubled, malformed or unknown."""

    code = "invalid_host"


class CrossSite(Forbidden):
    """A browser sent the request from another site's page."""

    code = "cross_site"


class RateLimited(Overloaded):
    """A limit of this key, of this address or of the process is reached.

    Attributes:
        retry_after_s: Whole seconds until a retry can succeed; None: none can.
    """

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_s: int | None = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BudgetExceeded(RateLimited):
    """The request may cost more than is left of a budget.

    Attributes:
        lasting: Only the next period or a larger budget cures it: too long for a client to wait.
    """

    code = "budget_exceeded"

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.lasting = retry_after_s is None


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


_FAULTS_OF_REQUESTS: Final = frozenset({400, 413, 415, 422, 451})  # HTTP statuses


class UpstreamError(RacerError):
    """A candidate gave no usable answer.

    Attributes:
        kind: The class of failure, safe to show; the error's ``code`` on the wire.
        lasting: Whether the same request would fail again, so that clients should not retry.
        retry_after_s: Seconds until a retry may succeed, if the candidate named them.
        status: HTTP status of the candidate's answer, if it was an error.
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
        """Merge the failures of several candidates, all of this ``kind``, into one error.

        The client is at fault only if every candidate reports the same fault. A retry is worth
        while as soon as one candidate may succeed.
        """
        merged = list(failures)
        waits = [each.retry_after_s for each in merged if each.retry_after_s is not None]
        is_alike = {each.likeness for each in merged} == {self.likeness}
        return (type(self) if is_alike else UpstreamError)(
            message,
            kind=self.kind,
            lasting=all(each.lasting for each in merged),
            retry_after_s=min(waits, default=None),
            status=self.status if is_alike else None,
        )

    @property
    def likeness(self) -> tuple[type[UpstreamError], int | None]:
        """What failures of one kind must share to be answered as a single error."""
        return type(self), None

    @property
    def is_of_request(self) -> bool:
        """Whether the request itself is at fault, so that no later call would be answered."""
        return False


class UpstreamTimeout(UpstreamError):
    """A candidate did not finish before its deadline."""

    default_kind = "upstream_timeout"


class UpstreamUnavailable(UpstreamError):
    """A candidate cannot be reached."""

    default_kind = "upstream_unavailable"


class ModelMissing(UpstreamUnavailable):
    """The candidate's server has no model of its name: it was retired, or never loaded."""

    default_kind = "upstream_model_missing"


class UpstreamOverloaded(UpstreamError):
    """The gateway's memory for payloads and answers of candidates is full."""

    default_kind = "upstream_overloaded"


class UpstreamRateLimited(UpstreamError):
    """A candidate reports its rate limit."""

    default_kind = "upstream_rate_limited"


class UpstreamRejected(UpstreamError):
    """A candidate rejects the request; ``status`` is its 4xx.

    Attributes:
        param: The field at fault, as the candidate names it.
    """

    default_kind = "upstream_rejected"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, **details: Any
    ) -> None:
        super().__init__(message, **details)
        self.param = param
        self.code = code or self.kind

    def of_all(self, message: str, failures: Iterable[UpstreamError]) -> UpstreamError:
        """The same, with this candidate's own words if all find the same fault."""
        merged = super().of_all(message, failures)
        if not isinstance(merged, UpstreamRejected):
            return merged
        return UpstreamRejected(str(self), param=self.param, code=self.code, status=self.status)

    @property
    def is_of_request(self) -> bool:
        """Other statuses, as 402 or 404, may be faults of its server or of the configuration."""
        return self.status in _FAULTS_OF_REQUESTS

    @property
    def likeness(self) -> tuple[type[UpstreamError], int | None]:
        """The class and the status: another status is another fault."""
        return type(self), self.status


class NoAnswerError(UpstreamError):
    """No selected candidate answered."""

    default_kind = "no_answer"


class CheckerUnavailable(UpstreamError):
    """The checker was not called: it has no process, and none could be started."""


class UpstreamUnauthorized(UpstreamError):
    """The server of a candidate wants an API key, or another one."""


class ModelListError(UpstreamError):
    """The server gives no list of its models; not every server has one."""


class ModelListUnreachable(ModelListError):
    """Nothing answers, or a proxy without a server behind it."""


class ModelListElsewhere(ModelListError):
    """The base URL lacks `/v1`: the list is there."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message}: {cure}")
        self.message, self.cure = message, cure


class GatewayUnreachable(RacerError):
    """Nothing answers at the URL, or the gateway cannot reach its candidates."""


class GatewayRefused(RacerError):
    """The gateway answered with an error; the message is the gateway's own."""


class JobUnknown(GatewayRefused):
    """The process of the gateway that answered has no such calibration job."""


class LabellingIncomplete(RacerError):
    """Some questions have no row yet; the message says why, and how to go on."""


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
    StoredRequestsUnreadable: (409, "api_error", "stored_requests_unreadable"),
    StoreFileDamaged: (500, "api_error", "store_damaged"),
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

# Status -> seconds after which a retry may succeed. Every other error answers
# `x-should-retry: false`: SDKs retry 408, 409, 429 and 5xx by themselves and would multiply the
# load.
RETRY_AFTER_S: Final[dict[int, int]] = {429: 1, 502: 1, 503: 1, 504: 1}
# The longest time that official clients wait by themselves, and that a candidate can name.
MAX_RETRY_AFTER_S: Final = 60
