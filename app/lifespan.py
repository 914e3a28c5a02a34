"""Application lifespan: opens artifact, upstream clients, store and workers; closes in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from app.access.api_keys import KeyRing
from app.access.budgets import BudgetMetrics, Budgets
from app.access.leases import Leases
from app.access.quotas import Quotas
from app.access.typical_usage import TypicalUsage
from app.answering.answer_cache import AnswerCaches
from app.answering.chat_services import ChatServices
from app.answering.cost_meter import Costs
from app.answering.evidence import EvidenceChecks
from app.answering.named_candidate import NamedCandidateService
from app.answering.shadow_calls import ShadowCalls
from app.answering.spending import Spending
from app.answering.token_count import TokenCounter
from app.artifact_watch import ArtifactWatch
from app.calibrations.carried import read_carried, take_over
from app.calibrations.mean_levels import MeanLevels
from app.calibrations.service import CalibrationService, setup_digest
from app.calibrations.thinning import RateInForce, SampledScores
from app.errors import StoreError
from app.judging.checker_calls import CheckerCode, checker_code
from app.judging.math_pool import DEADLINE_S, MathPool
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.monitor import Monitor
from app.monitoring.samples.checker import Checkers
from app.monitoring.samples.rechecks import Rechecks
from app.monitoring.samples.rows import are_read_alike, population_digests
from app.monitoring.samples.sampler import SamplerOptions
from app.monitoring.samples.store import SampleStore
from app.reload import Load, Reload
from app.routing.active_calibration import ActiveCalibration
from app.routing.applications import Applications
from app.routing.artifact_files import LoadedRouter, fetch, open_racer, open_trained
from app.routing.calibration_copy import CalibrationCopies, CalibrationCopy
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.encoder_process import EncoderClient
from app.routing.encoder_worker import EncoderWorker
from app.routing.groups import Grouping
from app.routing.router_breaker import RouterBreaker
from app.routing.scorer import RouterBackend
from app.routing.scoring_inputs import ScoringInputs
from app.same_answer.calibrations import AnswerCalibrations, answer_setup
from app.same_answer.calibrator import AnswerCalibrator
from app.services import Drain, RouterServices, Services, StoreServices
from app.settings import Secrets, Settings
from app.standing import PARTS
from app.store import KeyPurpose, Store
from app.store.encryption import Cipher
from app.telemetry.metrics import LoopLag, Metrics
from app.telemetry.tracing import open_tracer
from app.ui.assets import Assets
from app.upstream.fleet import Fleet
from racer_core.aggregation.answers import Equality
from racer_core.trained_router import TrainedRouter

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


def configured_router(settings: Settings, metrics: Metrics) -> OpenedRouter:
    """The artifact, and the encoder in this process or in the one that gateways share."""
    if settings.encoder.socket is None:
        return router_here(settings, metrics)
    trained = open_trained(settings)
    client = EncoderClient(settings.encoder.socket, trained.artifact.scoring_digest)
    return OpenedRouter(trained, client)


@asynccontextmanager
async def open_services(
    settings: Settings,
    secrets: Secrets,
    open_router: OpenRouter = configured_router,
    load: Load | None = None,
) -> AsyncGenerator[Services]:
    """Open all services before a socket accepts, so that a fault stops the start with a message.

    Without an artifact the fallback answers ``auto``. Where one is configured, it is loaded now or
    once it appears; where none is, neither encoder nor store is opened.

    Args:
        settings: The configuration.
        secrets: Keys and URLs from the environment.
        open_router: Loads the configured artifact; it runs on a thread.
        load: Reads the configuration again; None: it cannot be reloaded.

    Raises:
        ArtifactError: The artifact does not fit the configuration or this machine.
        SettingsError: The store cannot be opened, an evaluator cannot do what is configured, or
            traces are configured and cannot be sent.
        UpstreamError: An evaluator of `aggregation` cannot be reached.
    """
    async with AsyncExitStack() as stack:
        metrics, reload = Metrics(), Reload(settings, load)
        tracer = await stack.enter_async_context(
            open_tracer(settings.telemetry, metrics.spans_dropped)
        )
        fleet = await stack.enter_async_context(
            Fleet(settings, secrets, metrics=metrics, tracer=tracer)
        )
        limits = settings.limits
        quotas = Quotas(
            settings.access.keys,
            in_flight=limits.in_flight,
            body_bytes=limits.body_buffer_bytes,
        )
        metrics.in_flight.set_function(lambda: quotas.in_flight)
        conditions = ConditionReader(settings.candidates, settings.limits.extra_fields)
        grouping = await asyncio.to_thread(Grouping.open, settings.group_by, settings.applications)
        code = await asyncio.to_thread(checker_code, settings)
        stored, budgets, typical_usage = None, None, TypicalUsage()
        answers = AnswerCalibrations(None, setup="")
        if settings.has_store:
            stored = await stack.enter_async_context(
                _open_store(settings, secrets, grouping, conditions, code, metrics, typical_usage)
            )
            answers = stored.answer_calibrator.calibrations
            leases = Leases(stored.store)
            budgets = Budgets(leases, settings, BudgetMetrics(metrics.registry))
            if stored.store.is_shared:
                leases.follow(quotas.shares)
            await stack.enter_async_context(leases)
        mathematics = MathPool(DEADLINE_S)
        if settings.aggregation.equality is Equality.MATH:
            await stack.enter_async_context(mathematics)
        checkers = None
        if stored is not None:
            checkers = await stack.enter_async_context(
                stored.monitor.checkers(settings, secrets, code)
            )
            await stack.enter_async_context(Rechecks(stored.monitor.sampler, checkers))
        evidence = await stack.enter_async_context(
            EvidenceChecks(settings, secrets, fleet, metrics.evidence, code)
        )
        shadow_calls = ShadowCalls(
            settings,
            fleet,
            stored and stored.monitor,
            evidence=evidence,
            on_answers=checkers and checkers.submit,
        )
        costs = Costs.of(settings, typical_usage, metrics)
        spending = Spending.of(settings, budgets)
        chats = ChatServices(
            settings=settings,
            fleet=fleet,
            grouping=grouping,
            conditions=conditions,
            mathematics=mathematics,
            active=stored and stored.active,
            monitor=stored and stored.monitor,
            shadow_calls=shadow_calls,
            evidence=evidence,
            answer_calibrations=answers,
            answer_caches=AnswerCaches.open(settings, metrics),
            metrics=metrics,
            tracer=tracer,
            costs=costs,
            spending=spending,
        )
        await chats.of(None).check()
        await asyncio.to_thread(fetch, settings)

        def reconfigure(new: Settings, new_secrets: Secrets) -> None:
            fleet.reconfigure(new, new_secrets)
            quotas.reconfigure(
                new.access.keys,
                in_flight=new.limits.in_flight,
                body_bytes=new.limits.body_buffer_bytes,
            )
            if stored is not None:
                stored.monitor.reconfigure(new.watching, new.shadow_rates)
                stored.answer_calibrator.reconfigure(new)
            if budgets is not None:
                budgets.reconfigure(new)

        reload.subscribe(reconfigure)

        def router_services() -> AbstractAsyncContextManager[RouterServices]:
            assert stored is not None
            return _open_router_services(reload, open_router, stored, conditions, code, metrics)

        services = Services(
            settings=settings,
            keys=KeyRing(settings.access.keys, secrets),
            applications=Applications(settings),
            named_candidates=NamedCandidateService(settings, fleet, costs, spending),
            token_counter=TokenCounter(settings, fleet),
            chats=chats,
            spending=spending,
            reload=reload,
            quotas=quotas,
            budgets=budgets,
            typical_usage=typical_usage,
            drain=Drain(),
            metrics=metrics,
            tracer=tracer,
            conditions=conditions,
            stored=stored,
            artifact=await stack.enter_async_context(
                ArtifactWatch(settings.artifact, router_services)
            ),
            ui_assets=Assets(),
        )
        # Closed before the router, whose encoder compares answers, the store and the candidates.
        stack.push_async_callback(_finish_samples, shadow_calls, checkers, services)
        await stack.enter_async_context(LoopLag(metrics.loop_lag))
        _show_missing(services)
        yield services


def _sampled_scores(
    store: Store,
    digests: str,
    inputs: Mapping[str, str],
    decision_ids: Sequence[str],
    setup: str,
) -> dict[str, SampledScores]:
    own, members = store.ids_scored_by(setup, inputs), digests.split(" ")[0]

    def are_own(decision: DecisionRecord) -> bool:
        is_scored_alike = decision.calibration_id in own and not decision.router_changed
        return is_scored_alike and are_read_alike(decision.sampled_under, digests)

    return {
        decision.decision_id: SampledScores(
            scores=decision.scores if are_own(decision) else None,
            later=later,
            application=decision.application,
            rate=decision.shadow_rate,
            calibration_id=decision.calibration_id,
            created_at=decision.created_at,
            is_of_other_members=(decision.sampled_under or members).split(" ")[0] != members,
        )
        for decision, later in SampleStore(store).decisions(decision_ids)
    }


def _sampling_rates(store: Store, since: str | None) -> list[RateInForce]:
    return [
        RateInForce(
            application=each.application,
            rate=each.rate,
            requests=each.requests,
            last_at=each.last_at,
        )
        for each in DecisionStatistics(store).sampling_rates(since)
    ]


async def _finish_samples(
    shadow_calls: ShadowCalls, checkers: Checkers | None, services: Services
) -> None:
    """Finish calls and checks of the shadow sample in what is left of the time for draining."""
    limits = services.settings.limits
    limit_s = limits.drain_delay_s + limits.drain_s
    await shadow_calls.close(services.drain.left_s(limit_s))
    if checkers is not None:
        await checkers.finish(services.drain.left_s(limit_s))


def _show_missing(services: Services) -> None:
    """Let the gauge follow what is missing, and log it once."""
    for part in PARTS:
        services.metrics.missing.labels(part).set_function(
            lambda part=part: part in {each.part for each in services.missing}
        )
    for name in services.application_names:
        services.metrics.holds.labels(name).set_function(
            lambda name=name: services.standing(name).holds
        )
    if missing := services.missing:
        log.warning(
            "no certificate holds yet, and `auto` is answered by %s. %s",
            services.settings.fallback,
            ". ".join(map(str, missing)),
        )


@asynccontextmanager
async def _open_store(
    settings: Settings,
    secrets: Secrets,
    grouping: Grouping,
    conditions: ConditionReader,
    code: CheckerCode,
    metrics: Metrics,
    typical_usage: TypicalUsage,
) -> AsyncGenerator[StoreServices]:
    async with AsyncExitStack() as stack:
        url = secrets.store(settings)
        copies = CalibrationCopies(settings.cache, url)
        samples_key = await asyncio.to_thread(copies.samples_key)
        # Without a copy the gateway has nothing to start with but the database.
        store = stack.enter_context(
            await asyncio.to_thread(Store, url, may_be_away=samples_key is not None)
        )
        if samples_key is None or not store.is_away:
            samples_key = await store.run(store.key, KeyPurpose.SAMPLES)
        keys = [key.get_secret_value() for key in secrets.samples_keys]
        setup = answer_setup(settings, conditions.added, code)
        active = ActiveCalibration(metrics)
        copy = None
        if store.is_shared:  # a file is on this machine itself
            copy = await stack.enter_async_context(CalibrationCopy(store, copies))
        calibration_sync = CalibrationSync(
            store,
            active,
            text=settings.routing.text,
            grouping=settings.grouping,
            metrics=metrics,
            copy=copy,
        )
        # Opened before all writers, and so closed after them: closing it aborts calls to a database
        # server that does not answer.
        await stack.enter_async_context(calibration_sync)
        monitor = await stack.enter_async_context(
            Monitor(
                settings=settings.watching,
                store=store,
                active=active,
                metrics=metrics,
                sampling=SamplerOptions(
                    key=samples_key,
                    conditions=conditions,
                    group_by=settings.group_by,
                    rates=settings.shadow_rates,
                    drawn=settings.drawn_applications,
                    together=settings.together_applications,
                    sampled_under=population_digests(settings, conditions),
                    pool=settings.pool,
                    cipher=Cipher(*keys) if keys else None,
                    answer_setup=setup,
                ),
            )
        )
        answers = AnswerCalibrator(
            settings,
            store,
            key=samples_key,
            setup=setup,
            show=monitor.metrics.show_answers,
            typical_usage=typical_usage,
        )
        await stack.enter_async_context(answers)
        calibration_sync.subscribe(monitor.on_shared_state)
        if copy is not None:
            calibration_sync.subscribe(copy.on_shared_state)
        yield StoreServices(
            store=store,
            calibration_sync=calibration_sync,
            active=active,
            mean_levels=MeanLevels(active, grouping),
            grouping=grouping,
            monitor=monitor,
            answer_calibrator=answers,
        )


@asynccontextmanager
async def _open_router_services(
    reload: Reload,
    open_router: OpenRouter,
    stored: StoreServices,
    conditions: ConditionReader,
    code: CheckerCode,
    metrics: Metrics,
) -> AsyncGenerator[RouterServices]:
    """Load the artifact and its encoder off the event loop, and its active calibration."""
    settings = reload.settings  # what the artifact must fit is in no reload
    opened = await asyncio.to_thread(open_router, settings, metrics)
    trained = opened.trained
    async with opened.scoring as scoring:
        setup = setup_digest(trained.artifact.digest, settings.candidates)
        answers_by = answer_setup(settings, conditions.added, code, trained.artifact)
        stored.monitor.sampler.follow(setup, trained.artifact.inputs, answers_by)
        try:
            await stored.store.run(stored.answer_calibrator.calibrations.follow, answers_by)
        except StoreError as exc:
            log.warning("calibrations of same_answer wait for the store: %s", exc)
        assert settings.artifact is not None  # it was opened
        carried = await asyncio.to_thread(read_carried, settings.artifact, setup, settings.pool)
        await stored.calibration_sync.follow(
            setup, None if carried is None else partial(take_over, stored.store, carried)
        )
        inputs = ScoringInputs(trained.artifact)
        calibrations = CalibrationService(
            settings=reload.settings,
            trained=trained,
            scorer=scoring,
            inputs=inputs,
            store=stored.store,
            active=stored.active,
            calibration_sync=stored.calibration_sync,
            setup=setup,
            grouping=stored.grouping,
            conditions=conditions,
            sampled_scores=partial(
                _sampled_scores,
                stored.store,
                population_digests(settings, conditions),
                trained.artifact.inputs,
            ),
            sampling_rates=partial(_sampling_rates, stored.store),
        )
        reload.subscribe(lambda new, _: calibrations.reconfigure(new))
        breaker = RouterBreaker(
            scoring,
            timeout_s=lambda: reload.settings.limits.route_timeout_s,
            up=metrics.router_up,
        )
        async with inputs, calibrations, breaker:
            loaded = LoadedRouter(trained, breaker, inputs)
            yield RouterServices(loaded=loaded, calibrations=calibrations)
