"""The application of one gateway replica: opened, and opened anew for changed settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import reduce
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import lifespan
from app.errors import NotReady, SettingsError
from app.main import create_gateway
from app.services import Services
from app.settings import Secrets, Settings
from app.telemetry import logs

log = logging.getLogger(__name__)

# What Serve, the router's replicas or this process took from the file when they started.
FIXED: Final = (
    "artifact",
    "encoder",
    "limits.batch",
    "limits.drain_delay_s",
    "limits.drain_s",
    "limits.in_flight",
    "limits.queue",
    "limits.queue_s",
    "telemetry.log",
)
_LOOK_S: Final = 1.0  # between two looks for a calibration

Load = Callable[[dict[str, Any]], tuple[Settings, Secrets]]


class Application:
    """An ASGI application whose settings can be changed between requests.

    Changed settings open a second set of services beside the first; requests that have begun are
    finished by the services they began with.

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
        self._deployed, _ = load({})
        self._current: _ServiceSet | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self.refusal: str | None = None  # why the latest change is not used

    def metrics(self) -> Iterable[Metric]:
        """The metrics of the services that answer now, and whether the latest change is refused."""
        refused = float(self.refusal is not None)
        yield GaugeMetricFamily(
            "racer_user_config_refused", "1 while the latest user_config is not used", refused
        )
        if self._current is not None:
            metrics = self._current.services.metrics
            metrics.tasks.set(len(asyncio.all_tasks()))
            yield from metrics.registry.collect()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; in the lifespan, close what was opened."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._current is not None
            await self._current.answer(scope, receive, _without_id(send))

    def check(self) -> None:
        """Raise :class:`NotReady` if requests should go to another replica."""
        if self._current is None:
            raise NotReady("the application is not open: `user_config` must not be null")
        if self._is_calibrated_only and (why := _missing(self._current.services)):
            raise NotReady(why)

    async def configure(self, changes: dict[str, Any]) -> None:
        """Open the application, with these settings in place of the file's.

        Once it is open, changes that cannot be used are refused whole, logged, and kept in
        ``refusal``: Serve stops a replica whose reconfiguration fails.

        Raises:
            RacerError: The application is not open yet, and cannot be opened.
        """
        try:
            opened = await self._open(changes)
        except Exception as exc:
            if self._current is None:
                raise
            self.refusal = str(exc)
            log.error("`user_config` is refused, and its predecessor stays in force: %s", exc)
            return
        before, self._current, self.refusal = self._current, opened, None
        if before is not None:
            log.warning("`user_config` has changed and is in force")
            limit_s = self._deployed.limits.drain_s
            task = asyncio.create_task(before.retire(limit_s), name="retiring services")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _open(self, changes: dict[str, Any]) -> _ServiceSet:
        settings, secrets = await asyncio.to_thread(self._load, changes)
        _refuse_fixed(self._deployed, settings)
        opened = await _ServiceSet.open(
            lifespan.open_services(settings, secrets, self._open_router)
        )
        if self._is_calibrated_only and (why := _missing(opened.services)):
            if self._current is not None:
                await opened.close()
                raise NotReady(f"no calibration holds under these settings. {why}")
            log.warning("no requests are taken before there is a calibration. %s", why)
            while opened.services.missing:  # noqa: ASYNC110 - it is computed, not signalled
                await asyncio.sleep(_LOOK_S)
        return opened

    async def _live(self, receive: Receive, send: Send) -> None:
        with logs.logging_to(sys.stderr, self._deployed.telemetry.log):
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await asyncio.gather(*self._retiring)
            if self._current is not None:
                await self._current.close()
        await send({"type": "lifespan.shutdown.complete"})


class _ServiceSet:
    """Opened services, and the requests that they answer now."""

    def __init__(self, services: Services, stack: AsyncExitStack) -> None:
        self.services = services
        self._app: ASGIApp = create_gateway(services)
        self._stack = stack
        self._requests = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @classmethod
    async def open(cls, services: AbstractAsyncContextManager[Services]) -> _ServiceSet:
        stack = AsyncExitStack()
        return cls(await stack.enter_async_context(services), stack)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._requests += 1
        self._is_idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1
            if not self._requests:
                self._is_idle.set()

    async def retire(self, limit_s: float) -> None:
        """Close the services once their requests have ended, or the time is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), limit_s)
        await self.close()

    async def close(self) -> None:
        await self._stack.aclose()


def _missing(services: Services) -> str:
    """What certificates lack, and what comes next; empty where nothing is missing."""
    return ". ".join(map(str, services.missing))


def _refuse_fixed(deployed: Settings, changed: Settings) -> None:
    names = [name for name in FIXED if _value(deployed, name) != _value(changed, name)]
    if names:
        raise SettingsError(
            f"{', '.join(names)} cannot change while replicas run: write a configuration file of "
            "another name, and name that in `args`"
        )


def _value(settings: Settings, name: str) -> object:
    return reduce(getattr, name.split("."), settings)


def _without_id(send: Send) -> Send:
    """Remove the request id header: Serve adds the same header to every answer."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [each for each in message["headers"] if each[0] != b"x-request-id"]
        await send(message)

    return sent
