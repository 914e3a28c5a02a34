"""Middleware of Ray Serve's HTTP proxies: failover of lost replicas, and the candidates' key.

Serve answers the requests of a replica that dies with a bare 500, and cuts its streams. The proxy
is the only process that still holds them. It imports :func:`middlewares` at its start where the
environment of `ray start` has ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH``.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from ray.util.metrics import Counter
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.concurrency.memory_budget import MemoryBudget
from app.errors import Overloaded
from app.ids import IdGenerator
from app.wire import error_envelope
from app.wire.chat import Chat
from app.wire.format import ApiFormat
from app.wire.messages.format import Messages
from app.wire.responses import Responses

CALLBACK: Final = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CANDIDATES: Final = "/candidates"  # route prefix of the candidates' application
CANDIDATES_KEY: Final = "RACER_CANDIDATES_KEY"
# Answering again has no effect but its cost. Every GET and HEAD is answered again, too.
REPEATED: Final = frozenset(
    {
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings",
        "/v1/messages", "/v1/messages/count_tokens", "/route", "/v1/route", "/route/levels",
    }
)  # fmt: skip
DEPLOYMENTS: Final = "/openai/deployments/"  # begins the paths of chat that name a model
ATTEMPTS: Final = 3  # a lost node may take two replicas along
KEPT_BYTES: Final = 2**20  # of a request's body; a longer one is not sent again
ALL_KEPT_BYTES: Final = 2**26  # of all requests of a proxy; one beyond is not sent again

# Formats of streams whose last event is not that of chat.
_FORMATS: Final[Mapping[str, Callable[[], ApiFormat]]] = {
    "/v1/responses": Responses,
    "/v1/messages": Messages,
}

_REQUEST_ID: Final = b"x-request-id"

Outcome = Literal["repeated", "refused", "cut"]
Count = Callable[[Outcome], None]

log = logging.getLogger("ray.serve.racer")  # in the files of Serve's proxies


def middlewares() -> list[Middleware]:
    """The middleware that Serve's proxies call, the innermost first."""
    lost = Counter(
        "racer_lost_replica_requests",
        "Requests whose replica died, by what became of them: repeated, refused or cut",
        ("outcome",),
    )
    return [
        Middleware(ReplicaFailover, count=lambda outcome: lost.inc(tags={"outcome": outcome})),
        Middleware(CandidatesKey, key=os.environ.get(CANDIDATES_KEY)),
    ]


class ReplicaFailover:
    """Sends a request to another replica if its own died before a byte of the answer was sent.

    Where it cannot, the client gets the error envelope: as an answer, or as the last event of a
    stream. Errors that Serve writes in plain text get the envelope, too.

    Args:
        app: The proxy's application. It returns without an answer, or without the end of one, if
            the replica died.
        count: Takes what became of a request whose replica died.
        kept_bytes: Limit on the bodies that are kept at once.
    """

    def __init__(self, app: ASGIApp, count: Count, *, kept_bytes: int = ALL_KEPT_BYTES) -> None:
        self._app = app
        self._count = count
        self._budget = MemoryBudget(kept_bytes, Overloaded, "no more bodies are kept")
        self._ids = IdGenerator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, again where its replica is lost."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(scope, receive, self._ids, self._budget)
        try:
            await self._answer(request, _Response(request, send))
        finally:
            request.forget()

    async def _answer(self, request: _Request, response: _Response) -> None:
        path = request.original["path"]
        for left in reversed(range(ATTEMPTS)):
            await self._app(request.scope(), request.receive_from_start(), response.send)
            if response.has_ended or request.is_abandoned:
                return
            if response.has_begun or not left or not request.is_repeatable:
                break
            log.warning("a replica is lost; %s is sent to another one", path)
            self._count("repeated")
            response.forget_start()
        outcome = "cut" if response.has_begun else "refused"
        log.warning("a replica is lost, and the answer to %s is %s", path, outcome)
        self._count(outcome)
        await response.fail()


class _Request:
    """A request whose body is kept until an answer begins, as far as the budget allows."""

    def __init__(
        self, scope: Scope, receive: Receive, ids: IdGenerator, budget: MemoryBudget
    ) -> None:
        given = [value for name, value in scope["headers"] if name == _REQUEST_ID]
        self.id: bytes = given[0] if given else ids.new_id().encode()
        self.original = scope
        self._scope: Scope = dict(scope)
        if not given:  # Serve would give each attempt another one
            self._scope["headers"] = [*scope["headers"], (_REQUEST_ID, self.id)]
        self._receive = receive
        self._budget = budget
        self._kept: list[Message] | None = []
        self._kept_bytes = 0
        self.is_abandoned = False  # by its client

    @property
    def is_repeatable(self) -> bool:
        """Whether another replica may answer, and the whole body is still here."""
        path: str = self._scope["path"]
        is_read = self._scope["method"] in ("GET", "HEAD")
        is_harmless = is_read or path in REPEATED or path.startswith(DEPLOYMENTS)
        return is_harmless and self._kept is not None

    def scope(self) -> Scope:
        """The scope for one attempt: Serve changes it."""
        return dict(self._scope)

    def receive_from_start(self) -> Receive:
        """The messages for one attempt, those that came before first."""
        again = iter(tuple(self._kept or ()))

        async def receive() -> Message:
            for message in again:
                return message
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.is_abandoned = True
            else:
                self._keep(message)
            return message

        return receive

    def forget(self) -> None:
        """Keep no body: the answer has begun, or the body is too long."""
        self._kept = None
        self._budget.release(self._kept_bytes)
        self._kept_bytes = 0

    def _keep(self, message: Message) -> None:
        if self._kept is None:
            return
        size = len(message.get("body", b""))
        try:
            if self._kept_bytes + size > KEPT_BYTES:
                raise Overloaded("the body is too long")
            self._budget.reserve(size)
        except Overloaded:
            self.forget()
        else:
            self._kept_bytes += size
            self._kept.append(message)


class _Response:
    """Holds an answer back until its first byte."""

    def __init__(self, request: _Request, send: Send) -> None:
        self._request = request
        self._send = send
        self._start: Message | None = None
        self._is_serves = False  # an error of Serve, whose text is left out
        self.has_begun = False
        self.has_ended = False

    async def send(self, message: Message) -> None:
        """Pass a message of the current attempt on."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        is_last = not message.get("more_body", False)
        if not self.has_begun:
            if self._start is None or not (is_last or message.get("body")):
                return
            self._request.forget()
            self.has_begun = True
            self._is_serves = _is_serves(self._start)
            if not self._is_serves:
                await self._send(self._start)
        self.has_ended = is_last
        if not self._is_serves:
            await self._send(message)
        elif is_last:
            assert self._start is not None
            await self._refuse(self._start["status"], _SERVES[self._start["status"]])

    def forget_start(self) -> None:
        """The next attempt makes another one."""
        self._start = None

    async def fail(self) -> None:
        """Answer with the error envelope, or end the stream with it."""
        if not self.has_begun or self._is_serves:
            await self._refuse(503, _LOST)
        elif self._start is not None and _has_type(self._start, b"text/event-stream"):
            api_format = _FORMATS.get(self._request.original["path"], Chat)()
            event = api_format.error_event(503, _LOST)
            await self._send({"type": "http.response.body", "body": event})
        # A body of another kind stays incomplete: the server closes the connection.

    async def _refuse(self, status: int, body: dict[str, Any]) -> None:
        request_id = self._request.id.decode("latin-1")
        response = error_envelope.error_response(
            status, body, path=self._request.original["path"], request_id=request_id
        )
        response.headers["x-request-id"] = request_id
        await response(self._request.original, self._request.receive_from_start(), self._send)


_LOST: Final = error_envelope.error_body(
    "the replica that answered this request was lost; send the request again",
    "api_error",
    code="replica_lost",
)
# Statuses of errors that Serve writes itself.
_SERVES: Final = {
    404: error_envelope.error_body(
        "no application is deployed here", "invalid_request_error", code="not_found"
    ),
    408: error_envelope.error_body(
        "`request_timeout_s` of Serve's proxy is over", "api_error", code="proxy_timeout"
    ),
    503: error_envelope.error_body(
        "no replica can take the request now", "api_error", code="no_replica"
    ),
}


def _is_serves(start: Message) -> bool:
    return start["status"] in _SERVES and _has_type(start, b"text/plain")


def _has_type(start: Message, media_type: bytes) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(media_type)
        for name, value in start["headers"]
    )


class CandidatesKey:
    """Asks requests below ``/candidates`` for the key that the gateway sends there.

    A cluster's proxies serve all of its applications, and that of ``ray.serve.llm`` asks for none.

    Args:
        app: The proxy's application.
        key: The key; None: such requests are refused.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is not for candidates, or has their key."""
        if scope["type"] == "lifespan" or not self._concerns(scope) or self._is_authorized(scope):
            await self._app(scope, receive, send)
            return
        body = error_envelope.error_body(
            "candidates answer the gateway alone", "authentication_error", code="invalid_api_key"
        )
        response = error_envelope.error_response(401, body, path=scope["path"], request_id=None)
        await response(scope, receive, send)

    def _concerns(self, scope: Scope) -> bool:
        return f"{scope['path']}/".startswith(f"{CANDIDATES}/")

    def _is_authorized(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return (
            self._expected is not None
            and len(given) == 1
            and hmac.compare_digest(given[0], self._expected)
        )
