"""Services that the lifespan opens and handlers use, and the state of graceful shutdown."""

from __future__ import annotations

import time
from dataclasses import dataclass

from app.access.api_keys import KeyRing
from app.access.quotas import Quotas
from app.answering.named_candidate import NamedCandidateService
from app.answering.service import ChatService
from app.calibrations.service import CalibrationService
from app.errors import NoRouter
from app.monitoring.monitor import Monitor
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.settings import Settings
from app.store import Store
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.ui.assets import Assets


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

    def is_over(self, delay_s: float) -> bool:
        """Whether the listeners may close: the delay has passed, or draining was given up."""
        return self._begun_at is not None and (
            self.given_up or time.monotonic() - self._begun_at >= delay_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterServices:
    """Services that exist only if an artifact is configured."""

    store: Store
    calibration_sync: CalibrationSync
    active: ActiveCalibration
    chat: ChatService
    calibrations: CalibrationService
    monitor: Monitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All services of handlers.

    The properties for parts of ``router`` raise :class:`NoRouter` if there is none.
    """

    settings: Settings
    keys: KeyRing
    quotas: Quotas
    drain: Drain
    metrics: Metrics
    tracer: Tracer | None
    conditions: ConditionReader
    named_candidates: NamedCandidateService
    router: RouterServices | None
    ui_assets: Assets

    @property
    def store(self) -> Store:
        """Stored calibrations and decisions."""
        return self._routing.store

    @property
    def chat(self) -> ChatService:
        """Routed requests."""
        return self._routing.chat

    @property
    def calibrations(self) -> CalibrationService:
        """Calibration jobs."""
        return self._routing.calibrations

    @property
    def monitor(self) -> Monitor:
        """Stored decisions and drift alarms."""
        return self._routing.monitor

    @property
    def _routing(self) -> RouterServices:
        if self.router is None:
            raise NoRouter
        return self.router
