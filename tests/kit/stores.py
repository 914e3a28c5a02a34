"""Records of calibrations and decisions, and stores of another schema."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import Engine, text

from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.store import DecisionStore
from app.store import now, schema
from app.store.calibration_record import CalibrationRecord, Population
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from tests.kit.monitored import calibration_record, decision_record


def set_version(engine: Engine, version: str | None) -> None:
    """Make the tables of this program, and say that they have another version, or none."""
    schema.prepare(engine)
    change = f"UPDATE alembic_version SET version_num = '{version}'"
    with engine.begin() as connection:
        connection.execute(text(change if version else "DROP TABLE alembic_version"))


def record(
    name: str, seed: int = 0, parts: dict[str, Any] | None = None, **options: object
) -> CalibrationRecord:
    """A record of 40 random rows; ``parts`` are neighbours, patterns, prices and groups."""
    rng = np.random.default_rng(seed)
    scores = rng.random((40, 3))
    return CalibrationRecord(
        id=name,
        created_at=now(),
        artifact="a" * 64,
        populations=(
            Population(
                calibration=Calibration(
                    pool=("adder", "speller", "poet"),
                    fingerprints=tuple(rng.bytes(16) for _ in range(40)),
                    scores=scores,
                    labels=rng.random((40, 3)) < scores,
                    options=CalibrationOptions(**options),  # type: ignore[arg-type]
                    **(parts or {}),
                )
            ),
        ),
        evidence={"alpha": 0.1, "lambda_hat": None, "text": "é😀"},
        void_reasons=("training_overlap",),
    )


PATTERNS = replace(
    PatternModel.of(np.random.default_rng(9).random((70, 3)) < 0.5),
    neighbours=4,
    prior=0.1 + 0.2,
    temperature=1 / 3,
)

NEAR = np.random.default_rng(10).integers(0, len(PATTERNS.frequencies), (40, 6))

PARTS: dict[str, dict[str, Any]] = {
    "patterns": {"patterns": PATTERNS},
    "neighbours": {"patterns": PATTERNS, "neighbours": NEAR.astype(np.uint8)},
    "many patterns": {"patterns": PATTERNS, "neighbours": NEAR.astype(np.uint16)},
    "prices": {"patterns": PATTERNS, "prices": (0.1 + 0.2, 1.0, 1e-9)},
    "prices alone": {"prices": (3.0, 2.0, 1.0)},
    "groups": {"groups": ("tenant ü", *[None] * 38, "")},
    "everything": {
        "patterns": PATTERNS,
        "neighbours": NEAR.astype(np.uint8),
        "prices": (3.0, 2.0, 1.0),
        "groups": ("a", "b") * 20,
    },
    "grades and weights": {
        "patterns": PATTERNS,
        "quality": np.random.default_rng(8).integers(0, 10**6, (40, 3)) / 10**6,
        "weights": np.linspace(0.1, 3.0, 40),
    },
    "verdicts": {
        "unlabelled": np.zeros(40, bool),
        "judged": np.random.default_rng(7).integers(0, 2, (40, 3)).astype(np.int8),
    },
}


RECORD = calibration_record()
SCORES = [0.9, 0.5, 0.1]


def note(**changes: Any) -> DecisionRecord:
    """One decision with everything in it."""
    full: dict[str, Any] = {
        "group": "de\ud800",
        "neighbours": (0, 7, 70_000),
        "reasons": ("conditions_differ",),
        "served_by": "adder",
        "answered": ("adder", "poet"),
        "shadow_rate": 0.25,
    }
    return replace(decision_record(RECORD, SCORES), **full | changes)


def aged(days: float) -> DecisionRecord:
    """A decision of some days ago."""
    then = datetime.now(UTC) - timedelta(days=days)
    return note(created_at=then.isoformat(timespec="microseconds"))


def prune(decisions: DecisionStore, keep_days: float | None, keep_rows: int) -> int:
    """Delete what is past these limits, at most a chunk of it; returns how many."""
    up_to = decisions.past_limits(keep_days, keep_rows)
    return 0 if up_to is None else decisions.prune(up_to)
