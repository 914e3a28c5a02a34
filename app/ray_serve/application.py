"""The application of one gateway replica: a first `user_config` opens it, later ones change it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import lifespan
from app.errors import NotReady, ReloadRefused, SettingsError
from app.main import create_gateway
from app.services import Services
from app.settings import Secrets, Settings
from app.telemetry import logs

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks for a calibration

Load = Callable[[dict[str, Any]], tuple[Settings, Secrets]]


class Application:
    """An ASGI application that Serve reconfigures between requests.

    Args:
        load: Loads the configuration with settings that replace those of the file.
        open_router: Opens the router, as :func:`app.lifespan.open_services` takes it.
        is_calibrated_only: No requests are taken without a calibration.
    """

    def __init__(
        self, load: Load, open_router: lifespan.OpenRouter, *, is_calibrated_only: bool
    ) -> None:
        self._load = load
        self._open_router = open_router
        self._is_calibrated_only = is_calibrated_only
        self._deployed = load({})
        self._changes: dict[str, Any] | None = None  # while they are taken over
        self._stack = AsyncExitStack()
        self._services: Services | None = None
        self._app: ASGIApp | None = None
        self.refusal: str | None = None  # why the latest change is not used

    def metrics(self) -> Iterable[Metric]:
        """The metrics of the gateway, and whether the latest change is refused."""
        refused = float(self.refusal is not None)
        yield GaugeMetricFamily(
            "racer_user_config_refused", "1 while the latest user_config is not used", refused
        )
        if self._services is not None:
            metrics = self._services.metrics
            metrics.tasks.set(len(asyncio.all_tasks()))
            yield from metrics.registry.collect()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; in the lifespan, close what was opened."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._app is not None
            await self._app(scope, receive, _without_id(send))

    def check(self) -> None:
        """Raise :class:`NotReady` if requests should go to another replica."""
        if self._services is None:
            raise NotReady("the application is not open: `user_config` must not be null")
        if self._is_calibrated_only and self._services.missing:
            raise NotReady(_missing(self._services))

    async def configure(self, changes: dict[str, Any]) -> None:
        """Open the application, with these settings in place of the file's.

        Once it is open, changes that cannot be used are refused whole, logged, and kept in
        ``refusal``: Serve stops a replica whose reconfiguration fails.

        Raises:
            RacerError: The application is not open yet, and cannot be opened.
        """
        if self._services is None:
            await self._open(changes)
            return
        try:
            await self._change(self._services, changes)
        except ReloadRefused as exc:
            self.refusal = str(exc)
            log.error("`user_config` is refused, and its predecessor stays in force: %s", exc)
        else:
            self.refusal = None

    async def _open(self, changes: dict[str, Any]) -> None:
        async with AsyncExitStack() as stack:
            services = await stack.enter_async_context(
                lifespan.open_services(*self._deployed, self._open_router, self._load_changes)
            )
            app = create_gateway(services)
            # As a change, so that a new replica takes over what a running one does, and no more.
            await self._change(services, changes)
            if self._is_calibrated_only and services.missing:
                log.warning("no requests before there is a calibration. %s", _missing(services))
                while services.missing:  # noqa: ASYNC110 - it is computed, not signalled
                    await asyncio.sleep(LOOK_S)
            self._stack = stack.pop_all()
        self._services, self._app = services, app

    async def _change(self, services: Services, changes: dict[str, Any]) -> None:
        self._changes = changes
        try:
            await services.reload()
        finally:
            self._changes = None

    def _load_changes(self) -> tuple[Settings, Secrets]:
        if self._changes is None:  # `POST /admin/reload` reaches one replica
            raise SettingsError("on Ray, settings change by `user_config`, in every replica")
        return self._load(self._changes)

    async def _live(self, receive: Receive, send: Send) -> None:
        with logs.logging_to(sys.stderr, self._deployed[0].telemetry.log):
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._stack.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def _missing(services: Services) -> str:
    """What certificates lack, and what comes next."""
    return ". ".join(map(str, services.missing))


def _without_id(send: Send) -> Send:
    """Remove the request id header: Serve adds the same header to every answer."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [each for each in message["headers"] if each[0] != b"x-request-id"]
        await send(message)

    return sent
