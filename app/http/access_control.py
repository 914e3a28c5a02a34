"""Access control middleware: authentication, authorization and rate limits of every request.

It decides on the headers and the matched route, before the body is read. The checks are, in this
order: Host header, route, listener, page of another site, API key, quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.allowed_hosts import HostCheck
from app.access.api_keys import LOCAL, Caller, KeyRing
from app.access.failed_logins import FailedLogins
from app.access.quotas import Quotas, QuotaTicket
from app.errors import CrossSite, Forbidden, NotFound, RateLimited, Unauthorized
from app.http.admission_queue import AdmissionQueue
from app.http.connection import BODY_RECEIVED
from app.route_table import Match, RouteTable
from app.settings import Settings
from app.wire import error_envelope
from racer_core.errors import RacerError

_READ_ONLY = ("GET", "HEAD", "OPTIONS")
_OWN_SITES = (b"same-origin", b"none")  # none: the user's own act, such as a bookmark
_USUAL_PORTS = {b"http": b":80", b"https": b":443"}
_ROOT = "/v1"  # of the paths that clients join to their base URL
_WAYS = "Authorization: Bearer <key>, or x-api-key: <key>"


class AccessControl:
    """Refuses a request, or passes it on with its matched route.

    The ASGI scope gets ``route`` and ``path_params``; the request's state gets ``path_template``
    and, where the route needs a key, ``caller`` and ``quota_ticket``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: RouteTable,
        settings: Settings,
        keys: KeyRing,
        quotas: Quotas,
        failed_logins: FailedLogins,
        admission_queue: AdmissionQueue,
    ) -> None:
        access = settings.access
        bound = [settings.host] if access.admin is None else [settings.host, access.admin.host]
        self._app = app
        self._routes = routes
        self._hosts = HostCheck(bound, access.hosts)
        self._keys = keys
        self._quotas = quotas
        self._failed_logins = failed_logins
        self._admission_queue = admission_queue
        self._admin_port = None if access.admin is None else access.admin.port
        self._admin_key_env = access.admin_key_env

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide on an HTTP request; other protocols are refused."""
        if scope["type"] != "http":  # the server enables neither WebSockets nor lifespan events
            await send({"type": "websocket.close", "code": 1008})
            return
        match = self._routes.match(scope["method"], scope["path"])
        if match.template is None and scope["path"].startswith(_ROOT):
            scope["path"] = _plain(scope["path"])
            match = self._routes.match(scope["method"], scope["path"])
        scope.setdefault("state", {})["path_template"] = match.template
        try:
            ticket = self._authorize(scope, match)
        except RacerError as exc:
            await _refusal(exc, scope)(scope, receive, send)
            return
        if match.route is None:
            await _wrong_method(match, scope)(scope, receive, send)
            return
        scope["route"], scope["path_params"] = match.route, match.path_params
        with ticket as admitted:
            if admitted is not None and admitted.is_work:
                await self._admission_queue.admit()
            await self._app(scope, receive, send)

    def _authorize(self, scope: Scope, match: Match) -> AbstractContextManager[QuotaTicket | None]:
        """The quota ticket of a request that may proceed; None for public routes and for 405.

        Raises:
            RacerError: The request is refused.
        """
        is_probe = match.template in self._routes.probe_paths
        self._hosts.check(scope["headers"], any_name=is_probe)
        if match.template is None:
            raise NotFound(self._routes.not_found(scope["path"]))
        role = None if match.route is None else match.route.role
        if role == "admin" and self._admin_port not in (None, scope["server"][1]):
            raise NotFound("Not Found")
        if scope["method"] not in _READ_ONLY and _is_of_another_page(scope["headers"]):
            raise CrossSite(
                "a page of another origin sent this request: only the gateway's own page may, "
                "whose origin is the Host of the request"
            )
        if role in (None, "public"):
            return nullcontext()
        caller = self._admin_caller(scope) if role == "admin" else self._data_caller(scope)
        scope["state"]["caller"] = caller  # before the quota: the request log names the caller
        is_work = scope["method"] != "GET"  # an overloaded gateway still answers GET
        is_receiving = is_work and not scope["state"].get(BODY_RECEIVED, True)
        ticket = self._quotas.admit(caller.name, is_work=is_work, is_receiving=is_receiving)
        scope["state"]["quota_ticket"] = ticket
        return ticket

    def _data_caller(self, scope: Scope) -> Caller:
        """The caller of any valid key; without a data key, the server is bound to loopback."""
        if caller := self._find_caller(scope):
            return caller
        if not self._keys.has("data"):
            return LOCAL
        raise self._unauthorized(scope, f"a valid API key is needed: {_WAYS}")

    def _admin_caller(self, scope: Scope) -> Caller:
        """The caller of a valid admin key."""
        if not self._keys.has("admin"):
            raise Forbidden(f"admin endpoints are off: set ${self._admin_key_env} and restart")
        caller = self._find_caller(scope)
        if caller is None:
            raise self._unauthorized(scope, f"the admin key is needed: {_WAYS}")
        if caller.role != "admin":
            raise Forbidden("this needs the admin key, not the data key")
        return caller

    def _find_caller(self, scope: Scope) -> Caller | None:
        key = _presented_key(scope)
        return None if key is None else self._keys.find(key)

    def _unauthorized(self, scope: Scope, message: str) -> Unauthorized:
        """The error for a missing or wrong key.

        Raises:
            RateLimited: This address has sent too many wrong keys.
        """
        client: tuple[str, int] | None = scope.get("client")
        if _presented_key(scope) is not None and client is not None:
            self._failed_logins.record(client[0])
        return Unauthorized(message)


def _plain(path: str) -> str:
    """A path without empty segments: a client's base URL may end with a slash."""
    return "/" + "/".join(filter(None, path.split("/")))


def _presented_key(scope: Scope) -> bytes | None:
    """The key of the only Authorization header, a bearer token; without any, of one other header.

    `x-api-key` is Anthropic's, `api-key` is Azure's.
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        keys = [value for name, value in scope["headers"] if name in (b"x-api-key", b"api-key")]
        return (keys[0].strip() or None) if len(keys) == 1 else None
    if len(given) != 1:
        return None
    scheme, _, key = given[0].partition(b" ")
    return (key.strip() or None) if scheme.lower() == b"bearer" else None


def _is_of_another_page(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a browser says that the request comes from another page; programs say nothing."""
    (host,) = (value for name, value in headers if name == b"host")  # checked before
    return any(
        (name == b"origin" and is_foreign(value, host))
        or (name == b"sec-fetch-site" and value.strip().lower() not in _OWN_SITES)
        for name, value in headers
    )


def is_foreign(origin: bytes, host: bytes) -> bool:
    """Whether an Origin is another place than a Host: another name or another port.

    Browsers leave out the scheme's usual port. The scheme itself may differ: a proxy in front of
    the gateway speaks TLS.
    """
    scheme, _, place = origin.strip().lower().partition(b"://")
    usual = _USUAL_PORTS.get(scheme)
    return usual is None or place.removesuffix(usual) != host.lower().removesuffix(usual)


def _refusal(exc: RacerError, scope: Scope) -> Response:
    status, body = error_envelope.envelope(exc)
    return error_envelope.error_response(
        status,
        body,
        path=scope["path"],
        request_id=scope["state"].get("request_id"),
        retry_after_s=exc.retry_after_s if isinstance(exc, RateLimited) else None,
    )


def _wrong_method(match: Match, scope: Scope) -> Response:
    body = error_envelope.error_body(
        "Method Not Allowed", "invalid_request_error", code="method_not_allowed"
    )
    response = error_envelope.error_response(
        405, body, path=scope["path"], request_id=scope["state"].get("request_id")
    )
    response.headers["allow"] = ", ".join(sorted(match.methods))
    return response
