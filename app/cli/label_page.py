"""The page of ``racer label --page``: the gateway's own tab Label before the questions of a file.

It is served by the command, at an address of its own, for as long as the command runs. People who
have the link may label, and nothing else: no key of a gateway is in this process.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError

from app.api.ui import served
from app.errors import NotFound, SettingsError
from app.settings.address import url_of
from app.tools.labelling.people import LabelDesk
from app.ui.assets import PAGE, Assets
from racer_core import strict_json
from racer_core.errors import InputError, RacerError

_MAX_BODY: Final = 2**20
_MAX_WAITING: Final = 100
_GOODBYE_S: Final = 1


class LabelPage:
    """The server of the page. Open it on the event loop of the desk.

    Args:
        host: Address on which it listens.
        port: Its port; 0: any free one.

    Raises:
        SettingsError: The port is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen()
        except OSError as exc:
            self._socket.close()
            raise SettingsError(
                f"--page-port: {host}:{port} cannot be bound ({exc.strerror}): choose another"
            ) from exc
        self._key = secrets.token_urlsafe(24)
        self._host = host

    @property
    def link(self) -> str:
        """The address for people who label. Browsers send no server what is behind `#`."""
        url = url_of(self._host, self._socket.getsockname()[1])
        return f"{url}/ui#label&key={self._key}"

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()

    def open(self, desk: LabelDesk) -> _Serving:
        """The server before a desk, as a context."""
        return _Serving(_application(desk, self._key), self._socket)


class _Serving:
    """A server while it runs."""

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_GOODBYE_S,
        )
        self._server = _WithoutSignals(config)
        self._socket = listener

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        with suppress(asyncio.CancelledError):
            await self._task


class _WithoutSignals(uvicorn.Server):
    """Ctrl-C belongs to the command."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone."""
        yield


def _application(desk: LabelDesk, key: str) -> FastAPI:
    """The tab's files and the two endpoints that it asks, in the gateway's own form."""
    app, assets = FastAPI(openapi_url=None), Assets()
    expected = f"Bearer {key}".encode()

    def is_known(request: Request) -> bool:
        given = request.headers.get("authorization", "").encode()
        return hmac.compare_digest(given, expected)

    @app.get("/ui")
    async def page(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        return await served(PAGE, request, assets)

    @app.get("/ui/{name}")
    async def file(name: str, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        try:
            return await served(name, request, assets)
        except NotFound as exc:
            return _error(404, exc)

    @app.get("/readyz")
    async def ready() -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse({"status": "labelling"})

    @app.get("/shadow/waiting")
    async def waiting(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        if not is_known(request):
            return _forbidden()
        return JSONResponse(desk.as_json(_MAX_WAITING))

    @app.post("/feedback")
    async def label(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        if not is_known(request):
            return _forbidden()
        try:
            decision, correct = _read(await request.body())
            return JSONResponse({"left": desk.label(decision, correct)})
        except NotFound as exc:
            return _error(409, exc, "conflict")
        except RacerError as exc:
            return _error(400, exc)

    return app


class _Label(BaseModel):
    """The verdicts on the answers to one question."""

    model_config = ConfigDict(strict=True)

    decision_id: str
    correct: dict[str, bool]


def _read(body: bytes) -> tuple[str, dict[str, bool]]:
    """The body of a label. Raises InputError."""
    if len(body) > _MAX_BODY:
        raise InputError("the body is too large")
    try:
        found = _Label.model_validate(strict_json.loads(body))
    except ValidationError as exc:
        raise InputError("a label is {decision_id, correct: {answer: true or false}}") from exc
    return found.decision_id, found.correct


def _forbidden() -> Response:
    return _error(401, RacerError("open the link that `racer label --page` printed"), "key")


def _error(status: int, exc: Exception, code: str = "invalid") -> Response:
    error: dict[str, Any] = {"message": str(exc), "code": code, "type": "", "param": None}
    return JSONResponse({"error": error}, status)
