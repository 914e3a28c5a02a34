"""Services that the lifespan opens and handlers use, and the state of graceful shutdown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from app.access.api_keys import KeyRing
from app.access.budgets import Budgets
from app.access.quotas import Quotas
from app.access.typical_usage import TypicalUsage
from app.answering.chat_services import ChatServices
from app.answering.cost_meter import Costs
from app.answering.named_candidate import NamedCandidateService
from app.answering.service import ChatService
from app.answering.spending import Spending
from app.answering.token_count import TokenCounter
from app.calibrations.mean_levels import MeanLevels
from app.calibrations.service import CalibrationService
from app.errors import NoRouter
from app.monitoring.monitor import Monitor
from app.reload import Reload
from app.routing.active_calibration import ActiveCalibration, Canary
from app.routing.applications import Applications
from app.routing.artifact_files import LoadedRouter
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.reasons import Reason
from app.same_answer.calibration import rows_needed
from app.same_answer.calibrator import AnswerCalibrator
from app.same_answer.routing import RISK_TARGET as SAME_ANSWER
from app.settings import DEFAULT, SameAnswer, Secrets, Settings
from app.standing import MissingPart, Standing
from app.store import Store
from app.store.engine import DAMAGED
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.ui.assets import Assets
from racer_core.artifacts import Artifact


class Drain:
    """State of graceful shutdown (draining). A second stop signal ends it at once."""

    def __init__(self) -> None:
        self._begun_at: float | None = None
        self.given_up = False

    @property
    def begun(self) -> bool:
        """Whether the gateway drains: it is not ready, but still accepts requests for a while."""
        return self._begun_at is not None

    def begin(self) -> None:
        """Begin to drain; if called again, stop without waiting for requests."""
        if self._begun_at is None:
            self._begun_at = time.monotonic()
        else:
            self.given_up = True

    def left_s(self, limit_s: float) -> float:
        """What is left of a time limit that began with the draining; 0 once it was given up."""
        if self.given_up:
            return 0.0
        begun_at = time.monotonic() if self._begun_at is None else self._begun_at
        return max(0.0, begun_at + limit_s - time.monotonic())

    def is_over(self, delay_s: float) -> bool:
        """Whether the listeners may close: the delay has passed, or draining was given up."""
        return self._begun_at is not None and (
            self.given_up or time.monotonic() - self._begun_at >= delay_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterServices:
    """Services that exist only once an artifact is loaded."""

    loaded: LoadedRouter
    calibrations: CalibrationService

    @property
    def digest(self) -> str:
        """Digest of the artifact."""
        return self.loaded.trained.artifact.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServices:
    """Services that exist only if an artifact is configured, whether it is there or not."""

    store: Store
    calibration_sync: CalibrationSync
    active: ActiveCalibration
    mean_levels: MeanLevels
    grouping: Grouping
    monitor: Monitor
    answer_calibrator: AnswerCalibrator


class RouterSlot(Protocol):
    """The artifact watch, as handlers see it."""

    @property
    def router(self) -> RouterServices | None:
        """None before an artifact is loaded."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why the artifact that is there is not used."""
        ...

    @property
    def has_changed(self) -> bool:
        """Whether it differs on disk from the one that is loaded."""
        ...


_DAMAGED: Final = MissingPart(
    part="calibration", reason=f"the store cannot be used: {DAMAGED}", next="racer restore FILE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All services of handlers, under one configuration.

    Properties for parts of ``artifact`` and ``stored`` raise :class:`NoRouter` without them.
    """

    # Of this configuration alone.
    settings: Settings
    keys: KeyRing
    applications: Applications
    named_candidates: NamedCandidateService
    token_counter: TokenCounter
    chats: ChatServices
    spending: Spending | None  # None: there is no budget
    # Those outlive it.
    reload: Reload
    quotas: Quotas
    budgets: Budgets | None  # None: no store is open
    typical_usage: TypicalUsage
    drain: Drain
    metrics: Metrics
    tracer: Tracer | None
    conditions: ConditionReader
    stored: StoreServices | None
    artifact: RouterSlot
    ui_assets: Assets

    def under(self, settings: Settings, secrets: Secrets) -> Services:
        """The services of the requests that begin under another configuration."""
        costs = Costs.of(settings, self.typical_usage, self.metrics)
        spending = Spending.of(settings, self.budgets)
        return replace(
            self,
            settings=settings,
            keys=KeyRing(settings.access.keys, secrets),
            applications=Applications(settings),
            named_candidates=NamedCandidateService(settings, self.chats.fleet, costs, spending),
            token_counter=TokenCounter(settings, self.chats.fleet),
            chats=replace(self.chats, settings=settings, costs=costs, spending=spending),
            spending=spending,
        )

    @property
    def store(self) -> Store:
        """Stored calibrations and decisions."""
        return self._stored.store

    @property
    def chat(self) -> ChatService:
        """Requests for ``auto``; a request that has begun keeps its service."""
        router = self.artifact.router
        return self.chats.of(router and router.loaded)

    @property
    def router_artifact(self) -> Artifact | None:
        """The artifact of the loaded router; None while none is loaded."""
        router = self.artifact.router
        return None if router is None else router.loaded.trained.artifact

    @property
    def calibrations(self) -> CalibrationService:
        """Calibration jobs."""
        if self.artifact.router is None:
            raise NoRouter
        return self.artifact.router.calibrations

    @property
    def mean_levels(self) -> MeanLevels:
        """Mean sets of the active calibration at every risk level."""
        return self._stored.mean_levels

    @property
    def canary(self) -> Canary | None:
        """The calibration that decides a share of the requests beside the active one."""
        return self._stored.active.canary

    @property
    def monitor(self) -> Monitor:
        """Stored decisions and drift alarms."""
        return self._stored.monitor

    @property
    def answer_calibrator(self) -> AnswerCalibrator:
        """Calibrations of the promise `same_answer`."""
        return self._stored.answer_calibrator

    @property
    def calibration(self) -> str | None:
        """The active calibration; None while the fallback answers."""
        return self.standing().calibration

    @property
    def is_calibrated(self) -> bool:
        """Whether a calibration of sets decides."""
        return (
            self.stored is not None
            and self.artifact.router is not None
            and self.stored.active.ready
        )

    @property
    def missing(self) -> Sequence[MissingPart]:
        """What is missing for certificates, in the order in which it is made."""
        return self.standing().missing

    @property
    def application_names(self) -> tuple[str, ...]:
        """The applications, and last the one of all other requests; its name is empty without."""
        configured = self.settings.applications
        return (*configured, DEFAULT) if configured else ("",)

    def standing(self, application: str | None = None) -> Standing:
        """How the certificates of an application stand.

        Args:
            application: Its name; None: that of requests of no configured application.
        """
        name = self.application_names[-1] if application is None else application
        section = self.settings.same_answer_of(name or None)
        if section is not None and self.stored is not None:
            return _of_answers(self.stored, name, section)
        return self._of_sets(name)

    def _of_sets(self, application: str) -> Standing:
        """The standing of the promise `set`."""
        folder, active = self.settings.artifact, self.stored and self.stored.active
        watching = self.settings.watching
        has_rows = self.settings.samples_traffic and watching.store_requests
        parts: list[MissingPart] = []
        if self.artifact.router is None:
            reason = self.artifact.refusal or f"no artifact is at {folder} yet"
            out = "artifact" if folder is None else folder
            rows = "racer label questions.jsonl --config racer.yaml --out rows.jsonl"
            if has_rows:
                rows = "racer samples rows.jsonl --url http://HOST:PORT"
            elif folder is not None:
                everything = "racer bootstrap --config racer.yaml --queries questions.jsonl"
                rows = f"{everything} --url http://HOST:PORT, or its steps: {rows}"
            command = (
                f"{rows}, then racer split rows.jsonl, then racer train --config racer.yaml --data "
                f"train.jsonl --validation validation.jsonl --out {out}"
            )
            if folder is None:
                reason = "no artifact is configured"
                command += ", then set `artifact` and restart"
            parts.append(MissingPart(part="artifact", reason=reason, next=command))
        if active is None or not active.ready:
            reason = ActiveCalibration.NONE_YET if active is None else active.why_not
            rows = "--from-shadow" if has_rows else "calibration.jsonl"
            command = f"racer calibrate {rows} --url http://HOST:PORT"
            made = MissingPart(part="calibration", reason=reason, next=command)
            is_damaged = self.stored is not None and self.stored.store.is_damaged
            parts.append(_DAMAGED if is_damaged else made)
        if parts or active is None:
            not_yet = (str(Reason.NOT_CALIBRATED),)
            return Standing(promise="set", calibration=None, reasons=not_yet, missing=tuple(parts))
        record = active.record()
        void = record.void_reasons
        shared = self.monitor.shared_reasons(record.id, application or None)
        return Standing(promise="set", calibration=record.id, reasons=(*map(str, void), *shared))

    @property
    def _stored(self) -> StoreServices:
        if self.stored is None:
            raise NoRouter
        return self.stored


def _of_answers(stored: StoreServices, application: str, section: SameAnswer) -> Standing:
    """The standing of the promise `same_answer`."""
    calibrator = stored.answer_calibrator
    record = calibrator.calibrations.find(application)
    if record is not None:
        stale = calibrator.calibrations.stale(record) is not None
        facts = (
            (stale, Reason.STALE.of(SAME_ANSWER)),
            (record.is_chosen, str(Reason.CHOSEN_BY_FIGURES)),
        )
        reasons = tuple(reason for is_so, reason in facts if is_so)
        return Standing(promise="same_answer", calibration=record.id, reasons=reasons)
    not_yet = (str(Reason.NOT_CALIBRATED),)
    if stored.store.is_damaged:
        missing = _DAMAGED
    else:
        refusal = calibrator.refusals.get(application)
        reason = refusal or "none is made of sampled requests yet, see GET /same-answer/progress"
        command = "racer calibrate --same-answer --url http://HOST:PORT"
        if section.calibrate is not None:
            needed = rows_needed(section.alpha)
            command = f"nothing, the gateway makes it from {needed} sampled requests or more"
            if refusal is not None:
                command = "nothing, the gateway tries again on twice the samples, and daily"
        missing = MissingPart(part="calibration", reason=reason, next=command)
    return Standing(promise="same_answer", calibration=None, reasons=not_yet, missing=(missing,))
