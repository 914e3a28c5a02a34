"""Opens artifact, fleet, store and worker; yields Services; closes in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Request

from app.access.api_keys import KeyRing
from app.access.quota_leases import Leases
from app.access.quotas import Quotas
from app.answering.answer_forms import AnswerReader
from app.answering.math_process import MathChild
from app.answering.named_candidate import Direct
from app.answering.service import ChatService
from app.calibrations.service import CalibrationService, setup_digest
from app.errors import NoRouter, SettingsError
from app.front.drain import Drain
from app.monitoring.monitor import Watcher
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import Follower
from app.routing.encoder_worker import RoutingWorker
from app.routing.groups import Grouping
from app.routing.scorer import Scoring
from app.routing.service import RoutingService
from app.settings import Secrets, Settings
from app.store import Store
from app.telemetry.loop_lag import LoopLag
from app.telemetry.metrics import Telemetry
from app.telemetry.tracing import Tracer, open_tracer
from app.upstream.fleet import Fleet
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import Method
from racer_core.racer import Racer, Trained

log = logging.getLogger(__name__)

Opened = TypeVar("Opened", bound=Trained)

MATH_DEADLINE_S: Final = 1  # for reading one answer; an ordinary one takes milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterServices:
    """What there is only where an artifact is configured."""

    store: Store
    follower: Follower
    active: ActiveCalibration
    chat: ChatService
    calibrations: CalibrationService
    watcher: Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What handlers need, opened.

    Whoever asks for a part of ``router`` where there is none raises :class:`NoRouter`.
    """

    settings: Settings
    keys: KeyRing
    quotas: Quotas
    drain: Drain
    telemetry: Telemetry
    tracer: Tracer | None
    direct: Direct
    router: RouterServices | None

    @property
    def store(self) -> Store:
        """Calibrations and decisions."""
        return self._routing.store

    @property
    def chat(self) -> ChatService:
        """Answers by sets of candidates."""
        return self._routing.chat

    @property
    def calibrations(self) -> CalibrationService:
        """The writer of calibrations."""
        return self._routing.calibrations

    @property
    def watcher(self) -> Watcher:
        """Decisions as they are remembered, and the alarms."""
        return self._routing.watcher

    @property
    def _routing(self) -> RouterServices:
        if self.router is None:
            raise NoRouter
        return self.router


@dataclass(frozen=True, slots=True)
class Router:
    """What is known of a router, and who gives its scores once it is entered."""

    trained: Trained
    scoring: AbstractAsyncContextManager[Scoring]


OpenRouter = Callable[[Settings, Telemetry], Router]


def router_here(settings: Settings, telemetry: Telemetry) -> Router:
    """Artifact and encoder in this process, on a thread of their own."""
    racer, limits = open_racer(settings), settings.limits
    return Router(
        racer,
        RoutingWorker(
            racer,
            queue=limits.queue,
            queue_s=limits.queue_s,
            batch=limits.batch,
            telemetry=telemetry,
        ),
    )


@asynccontextmanager
async def open_services(
    settings: Settings, secrets: Secrets, open_router: OpenRouter = router_here
) -> AsyncGenerator[Services]:
    """Open everything, before a socket accepts: what is wrong is one sentence and an exit code.

    Without an artifact only what asks candidates by name is opened: no encoder, and no store.

    Args:
        settings: The configuration.
        secrets: Its keys.
        open_router: Opens the configured artifact; it may block.

    Raises:
        ArtifactError: The artifact does not fit the configuration or this machine.
        SettingsError: The store cannot be opened, an evaluator cannot do what is configured, or
            traces are configured and OpenTelemetry is not installed.
        UpstreamError: An evaluator cannot be reached.
    """
    async with AsyncExitStack() as stack:
        telemetry = Telemetry()
        tracer = await stack.enter_async_context(
            open_tracer(settings.telemetry, telemetry.spans_dropped)
        )
        opened = None
        if settings.artifact is None:
            log.warning(NoRouter.sentence)
        else:
            opened = await asyncio.to_thread(open_router, settings, telemetry)
        fleet = await stack.enter_async_context(Fleet(settings, secrets, telemetry, tracer))
        limits = settings.limits
        quotas = Quotas(settings.access.keys, limits.in_flight, limits.body_buffer_bytes)
        router = None
        if opened is not None:
            router = await stack.enter_async_context(
                _open_routing(settings, secrets.store(settings), opened, fleet, telemetry, tracer)
            )
            await stack.enter_async_context(Leases(router.store, quotas.buckets()))
        await stack.enter_async_context(LoopLag(telemetry.loop_lag))
        yield Services(
            settings=settings,
            keys=KeyRing(settings.access.keys, secrets),
            quotas=quotas,
            drain=Drain(),
            telemetry=telemetry,
            tracer=tracer,
            direct=Direct(settings, fleet),
            router=router,
        )


@asynccontextmanager
async def _open_routing(
    settings: Settings,
    store_url: str,
    router: Router,
    fleet: Fleet,
    telemetry: Telemetry,
    tracer: Tracer | None,
) -> AsyncGenerator[RouterServices]:
    trained = router.trained
    async with AsyncExitStack() as stack:
        store = stack.enter_context(await asyncio.to_thread(Store, store_url))
        scoring = await stack.enter_async_context(router.scoring)
        active = ActiveCalibration(telemetry)
        grouping = await asyncio.to_thread(Grouping.open, settings.routing.group_by)
        follower = Follower(
            store,
            active,
            setup=setup_digest(trained.artifact.digest, settings.candidates),
            text=settings.routing.text,
            telemetry=telemetry,
        )
        # Before all that writes, and so closed after it: it cuts who waits for a silent server.
        await stack.enter_async_context(follower)
        calibrations = await stack.enter_async_context(
            CalibrationService(settings, trained, scoring, store, active, follower, grouping)
        )
        watcher = await stack.enter_async_context(
            Watcher(settings.watching, store, active, telemetry, key=trained.artifact.salt.encode())
        )
        follower.tell(watcher.hear)
        mathematics = MathChild(MATH_DEADLINE_S)
        if settings.aggregation.equality is Equality.MATH:
            await stack.enter_async_context(mathematics)
        reader = AnswerReader(
            scoring.embed,
            mathematics.form,
            similarity=settings.aggregation.similarity,
            embed_chars=settings.limits.query_chars,
        )
        routing = RoutingService(
            settings, trained, scoring, active, grouping, fleet.down, telemetry
        )
        chat = ChatService(
            settings,
            routing,
            fleet,
            reader,
            watcher,
            trained.artifact.stacked,
            telemetry,
            tracer,
        )
        await chat.check()
        yield RouterServices(
            store=store,
            follower=follower,
            active=active,
            chat=chat,
            calibrations=calibrations,
            watcher=watcher,
        )


def open_racer(settings: Settings) -> Racer:
    """Load artifact and encoder, and compare them with the configuration. Raises as above."""
    return _opened(Racer, settings)


def open_trained(settings: Settings) -> Trained:
    """The same without its encoder, which is then somewhere else."""
    return _opened(Trained, settings)


def _opened(kind: type[Opened], settings: Settings) -> Opened:
    if settings.artifact is None:
        raise SettingsError(NoRouter.sentence)
    opened = kind.load(settings.artifact, settings.pool)
    spec, wanted = opened.artifact.encoder, settings.encoder
    for field in ("backend", "dtype"):
        asked, has = getattr(wanted, field), getattr(spec, field)
        if asked is not None and asked != has:
            raise SettingsError(
                f"encoder.{field} is {asked}, but the artifact was trained with {has}: change the "
                "setting, or train again with `racer train`"
            )
    for candidate, was in zip(settings.candidates, opened.artifact.candidates, strict=True):
        if was.model is not None and was.model != (candidate.model or candidate.name):
            raise SettingsError(
                f"candidate {candidate.name} was labelled as the model {was.model!r}, the "
                f"configuration has {candidate.model or candidate.name!r}: change it back, or "
                "label and train again"
            )
        if was.parameters is not None and dict(was.parameters) != candidate.parameters:
            raise SettingsError(
                f"candidate {candidate.name} was labelled with the parameters "
                f"{dict(was.parameters)}, the configuration has {candidate.parameters}: change "
                "them back, or label and train again"
            )
    if settings.aggregation.method is Method.STACKED and opened.artifact.stacked is None:
        raise SettingsError(
            "aggregation.method is stacked, but the artifact has no stacked vote: train it on rows "
            "with answers, or choose another method"
        )
    return opened


async def _services(request: Request) -> Services:
    return request.app.state.services


OpenServices = Annotated[Services, Depends(_services)]
