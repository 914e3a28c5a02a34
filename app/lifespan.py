"""Application lifespan: opens artifact, upstream clients, store and workers; closes in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from app.access.api_keys import KeyRing
from app.access.quota_leases import QuotaLeases
from app.access.quotas import Quotas
from app.answering.answer_forms import AnswerReader
from app.answering.math_process import DEADLINE_S, MathPool
from app.answering.named_candidate import NamedCandidateService
from app.answering.service import ChatService
from app.calibrations.service import CalibrationService, setup_digest
from app.errors import NoRouter
from app.monitoring.decision_statistics import DecisionStatistics
from app.monitoring.monitor import Monitor
from app.routing.active_calibration import ActiveCalibration
from app.routing.artifact import open_racer
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.encoder_worker import EncoderWorker
from app.routing.groups import Grouping
from app.routing.row_selection import RowSelector
from app.routing.scorer import RouterBackend
from app.routing.service import RoutingService
from app.services import Drain, RouterServices, Services
from app.settings import Secrets, Settings
from app.store import Store
from app.telemetry.loop_lag import LoopLag
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer, open_tracer
from app.ui.assets import Assets
from app.upstream.fleet import Fleet
from racer_core.aggregation.answers import Equality
from racer_core.racer import TrainedRouter

log = logging.getLogger(__name__)

Opened = TypeVar("Opened", bound=TrainedRouter)


@dataclass(frozen=True, slots=True)
class OpenedRouter:
    """A trained router, and the context manager of the backend that computes its scores."""

    trained: TrainedRouter
    scoring: AbstractAsyncContextManager[RouterBackend]


OpenRouter = Callable[[Settings, Metrics], OpenedRouter]


def router_here(settings: Settings, metrics: Metrics) -> OpenedRouter:
    """Load artifact and encoder in this process; scores are computed on a thread of their own."""
    racer, limits = open_racer(settings), settings.limits
    return OpenedRouter(
        racer,
        EncoderWorker(
            racer,
            queue=limits.queue,
            queue_s=limits.queue_s,
            batch=limits.batch,
            metrics=metrics,
        ),
    )


@asynccontextmanager
async def open_services(
    settings: Settings, secrets: Secrets, open_router: OpenRouter = router_here
) -> AsyncGenerator[Services]:
    """Open all services before a socket accepts, so that a fault stops the start with a message.

    Without an artifact, candidates are called by name only: neither encoder nor store is opened.

    Args:
        settings: The configuration.
        secrets: Keys and URLs from the environment.
        open_router: Loads the configured artifact; it runs on a thread.

    Raises:
        ArtifactError: The artifact does not fit the configuration or this machine.
        SettingsError: The store cannot be opened, an evaluator cannot do what is configured, or
            traces are configured and OpenTelemetry is not installed.
        UpstreamError: An evaluator cannot be reached.
    """
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        tracer = await stack.enter_async_context(
            open_tracer(settings.telemetry, metrics.spans_dropped)
        )
        opened = None
        if settings.artifact is None:
            log.warning(NoRouter.sentence)
        else:
            opened = await asyncio.to_thread(open_router, settings, metrics)
        fleet = await stack.enter_async_context(
            Fleet(settings, secrets, metrics=metrics, tracer=tracer)
        )
        limits = settings.limits
        quotas = Quotas(
            settings.access.keys,
            in_flight=limits.in_flight,
            body_bytes=limits.body_buffer_bytes,
        )
        conditions = ConditionReader(settings.candidates)
        router = None
        if opened is not None:
            router = await stack.enter_async_context(
                _open_routing(
                    settings, secrets.store(settings), opened, conditions, fleet, metrics, tracer
                )
            )
            await stack.enter_async_context(QuotaLeases(router.store, quotas.buckets()))
        await stack.enter_async_context(LoopLag(metrics.loop_lag))
        yield Services(
            settings=settings,
            keys=KeyRing(settings.access.keys, secrets),
            quotas=quotas,
            drain=Drain(),
            metrics=metrics,
            tracer=tracer,
            conditions=conditions,
            named_candidates=NamedCandidateService(settings, fleet),
            router=router,
            ui_assets=Assets(),
        )


@asynccontextmanager
async def _open_routing(
    settings: Settings,
    store_url: str,
    router: OpenedRouter,
    conditions: ConditionReader,
    fleet: Fleet,
    metrics: Metrics,
    tracer: Tracer | None,
) -> AsyncGenerator[RouterServices]:
    trained = router.trained
    async with AsyncExitStack() as stack:
        store = stack.enter_context(await asyncio.to_thread(Store, store_url))
        scoring = await stack.enter_async_context(router.scoring)
        active = ActiveCalibration(metrics)
        grouping = await asyncio.to_thread(Grouping.open, settings.routing.group_by)
        calibration_sync = CalibrationSync(
            store,
            active,
            setup=setup_digest(trained.artifact.digest, settings.candidates),
            text=settings.routing.text,
            group_by=settings.routing.group_by,
            configured=conditions.configured,
            metrics=metrics,
        )
        # Opened before all writers, and so closed after them: closing it aborts calls to a database
        # server that does not answer.
        await stack.enter_async_context(calibration_sync)
        calibrations = await stack.enter_async_context(
            CalibrationService(
                settings=settings,
                trained=trained,
                scorer=scoring,
                store=store,
                active=active,
                calibration_sync=calibration_sync,
                grouping=grouping,
                metrics=metrics,
                conditions=conditions,
                projections=DecisionStatistics(store).projections,
            )
        )
        monitor = await stack.enter_async_context(
            Monitor(
                settings=settings.watching,
                store=store,
                active=active,
                metrics=metrics,
                key=trained.artifact.salt.encode(),
                group_by=settings.routing.group_by,
            )
        )
        calibration_sync.subscribe(monitor.on_shared_state)
        chat = await stack.enter_async_context(
            _open_chat(
                settings=settings,
                router=router,
                scoring=scoring,
                active=active,
                grouping=grouping,
                conditions=conditions,
                fleet=fleet,
                monitor=monitor,
                metrics=metrics,
                tracer=tracer,
            )
        )
        yield RouterServices(
            store=store,
            calibration_sync=calibration_sync,
            active=active,
            chat=chat,
            calibrations=calibrations,
            monitor=monitor,
        )


@asynccontextmanager
async def _open_chat(
    *,
    settings: Settings,
    router: OpenedRouter,
    scoring: RouterBackend,
    active: ActiveCalibration,
    grouping: Grouping,
    conditions: ConditionReader,
    fleet: Fleet,
    monitor: Monitor,
    metrics: Metrics,
    tracer: Tracer | None,
) -> AsyncGenerator[ChatService]:
    """The chat service, after a check of its evaluators."""
    async with _open_answer_reader(settings, scoring) as reader:
        routing = RoutingService(
            settings=settings,
            trained=router.trained,
            scoring=scoring,
            active=active,
            grouping=grouping,
            rows=RowSelector(settings.routing.text),
            down=fleet.down,
            metrics=metrics,
        )
        chat = ChatService(
            settings=settings,
            routing=routing,
            fleet=fleet,
            reader=reader,
            monitor=monitor,
            stacked=router.trained.artifact.stacked,
            metrics=metrics,
            tracer=tracer,
        )
        await chat.check()
        yield chat


@asynccontextmanager
async def _open_answer_reader(
    settings: Settings, scoring: RouterBackend
) -> AsyncGenerator[AnswerReader]:
    """The reader of answers, with workers for mathematics where the configuration needs them."""
    async with AsyncExitStack() as stack:
        mathematics = MathPool(DEADLINE_S)
        if settings.aggregation.equality is Equality.MATH:
            await stack.enter_async_context(mathematics)
        yield AnswerReader(
            scoring.embed,
            mathematics.form,
            similarity=settings.aggregation.similarity,
            embed_chars=settings.limits.query_chars,
        )
