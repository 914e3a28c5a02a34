"""A small world to watch: a calibrated record, queries like its rows, and queries unlike them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.monitoring.decision_record import DecisionRecord
from app.monitoring.monitor import Monitor
from app.routing.active_calibration import ActiveCalibration
from app.routing.decision import ChosenBy
from app.settings.monitoring import MonitoringSettings
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.types import FloatArray

POOL = ("adder", "speller", "poet")


def draw(rng: np.random.Generator, count: int, *, harder: float = 1.0) -> FloatArray:
    """Router scores of queries, shape (count, 3); ``harder`` below 1 makes them smaller."""
    return np.round(rng.beta(2.0, 2.0, (count, len(POOL))) * harder, 6)


def record(
    seed: int = 1, rows: int = 600, *, name: str | None = None, **options: Any
) -> CalibrationRecord:
    """A calibration whose router is right: f is the chance that a candidate is."""
    rng = np.random.default_rng(seed)
    scores = draw(rng, rows)
    return CalibrationRecord(
        id=name or f"cal-{secrets.token_hex(8)}",
        created_at=now(),
        artifact="a" * 64,
        calibration=Calibration(
            pool=POOL,
            fingerprints=tuple(rng.bytes(16) for _ in range(rows)),
            scores=scores,
            labels=rng.random(scores.shape) < scores,
            options=CalibrationOptions(**options),
        ),
        evidence={},
    )


def noted(record: CalibrationRecord, scores: Sequence[float], **changes: Any) -> DecisionRecord:
    """What is remembered of a query with these scores, decided by the record."""
    calibration = record.calibration
    print_ = secrets.token_bytes(16)
    alpha = changes.get("alpha", calibration.options.alpha)
    decision = calibration.decide(print_, scores, alpha=alpha)
    usual: dict[str, Any] = {
        "decision_id": f"chatcmpl-{secrets.token_hex(16)}",
        "created_at": now(),
        "calibration_id": record.id,
        "key": "data",
        "group": None,
        "alpha": decision.alpha,
        "score": decision.score,
        "lambda_hat": decision.lambda_hat,
        "pool": calibration.pool,
        "selected": tuple(name for name in calibration.pool if name in decision.selected),
        "null_selected": decision.null_selected,
        "fingerprint": print_.hex(),
        "scores": tuple(scores),
        "neighbours": None,
        "chosen_by": ChosenBy.THRESHOLD,
        "holds": True,
    }
    return DecisionRecord(**usual | changes)


def notes(record: CalibrationRecord, scores: FloatArray, **changes: Any) -> list[DecisionRecord]:
    """One note a row of scores."""
    return [noted(record, row, **changes) for row in scores.tolist()]


class Watched:
    """A store and an active calibration; ``watcher()`` begins as the process would."""

    def __init__(self, store: Store, record: CalibrationRecord) -> None:
        self.store = store
        self.store.add(record, activate=True)
        self.record = record

    async def monitor(self, *, seed: int = 7, **settings: Any) -> Monitor:
        """A watcher of the record; use it as a context."""
        metrics = Metrics()
        self.active = ActiveCalibration(metrics)
        await self.active.swap(self.record)
        self.metrics = metrics
        return Monitor(
            settings=MonitoringSettings(**settings),
            store=self.store,
            active=self.active,
            metrics=metrics,
            key=b"a key of the tests",
            rng=np.random.default_rng(seed),
        )


def everyone(labels: Sequence[bool]) -> Mapping[str, bool]:
    """A verdict on every candidate."""
    return dict(zip(POOL, (bool(label) for label in labels), strict=True))
