"""What the lifespan opened, as handlers take it, and whether the gateway is draining."""

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
from app.settings import Settings
from app.store import Store
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.ui.assets import Assets


class Drain:
    """Not begun, begun, or given up: a second call for the end does not wait for anybody."""

    def __init__(self) -> None:
        self._begun_at: float | None = None
        self.given_up = False

    @property
    def begun(self) -> bool:
        """Not ready any more, though still accepting for a while."""
        return self._begun_at is not None

    def begin(self) -> None:
        """Leave in good order; asked again, leave now."""
        if self._begun_at is None:
            self._begun_at = time.monotonic()
        else:
            self.given_up = True

    def is_over(self, delay_s: float) -> bool:
        """Whether it began so long ago, or is not waited for."""
        return self._begun_at is not None and (
            self.given_up or time.monotonic() - self._begun_at >= delay_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterServices:
    """What there is only where an artifact is configured."""

    store: Store
    calibration_sync: CalibrationSync
    active: ActiveCalibration
    chat: ChatService
    calibrations: CalibrationService
    monitor: Monitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What handlers need, opened.

    Whoever asks for a part of ``router`` where there is none raises :class:`NoRouter`.
    """

    settings: Settings
    keys: KeyRing
    quotas: Quotas
    drain: Drain
    metrics: Metrics
    tracer: Tracer | None
    direct: NamedCandidateService
    router: RouterServices | None
    ui_assets: Assets

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
    def monitor(self) -> Monitor:
        """Decisions as they are remembered, and the alarms."""
        return self._routing.monitor

    @property
    def _routing(self) -> RouterServices:
        if self.router is None:
            raise NoRouter
        return self.router
