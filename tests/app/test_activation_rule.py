"""What the activation rule compares and says, from evidence alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.calibrations.evidence import evidence
from app.calibrations.service import refusal
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.types import Score

RNG = np.random.default_rng(0)
SCORES = RNG.random((30, 2))
ROWS = Calibration(
    pool=("a", "b"),
    fingerprints=tuple(b"%d" % i for i in range(30)),
    scores=SCORES,
    labels=SCORES > 0.2,
    options=CalibrationOptions(alpha=0.1, score=Score.GAP),
)


def test_weighted_rows_are_not_counted_like_others() -> None:
    """The message says what they are worth, and no number of rows that they need."""
    weights = np.r_[np.full(29, 1.0), 20.0]
    weighted = replace(ROWS, weights=weights, options=replace(ROWS.options, max_weight=20.0))
    found = evidence(weighted)
    assert not found["feasible"]
    message = str(refusal(found, None))
    assert f"worth {weighted.effective_n:.1f} of equal weight" in message
    assert "max_weight 20" in message
    assert "it needs" not in message


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"alpha": 0.2},
        {"sample": {"kind": "traffic", "unit": "cluster"}},
        {"weights": {"max_weight": 2.0, "effective_n": 20.0}},
        {"answer_limit": {"answer_risk_max": 0.2, "tested": 9}},
    ],
)
def test_a_change_of_size_is_refused_at_the_same_promise_alone(change: dict[str, Any]) -> None:
    """Unit, weights and the limit on wrong answers are part of the promise."""
    before = evidence(ROWS) | {
        "feasible": True,
        "mean_size": 1.0,
        "sample": {"kind": "traffic", "unit": "request"},
    }
    active = CalibrationRecord(
        id="cal-1", created_at="", artifact="", populations=(), evidence=before
    )
    refused = refusal(before | {"mean_size": 1.5} | change, active)
    assert (refused is None) == bool(change)
    # Other counts of the same kind of rows are the same promise.
    other = {"sample": {"kind": "traffic", "unit": "request", "clusters": 7}}
    assert refusal(before | {"mean_size": 1.5} | other, active) is not None
