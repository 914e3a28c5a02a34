"""Drift statistics: the numbers of a query that the alarms watch, as for the calibration's rows.

The values of one statistic, query after query, are its stream. Each stream has a sequential test of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from app.monitoring.decision_record import DecisionRecord
from racer_core.calibration.calibration import Calibration, Sets
from racer_core.calibration.monitoring import (
    DriftState,
    ExchangeabilityMartingale,
    RiskEProcess,
    split_false_alarm,
)
from racer_core.calibration.shadow import RIGHT, WRONG, feedback_bounds
from racer_core.types import FloatArray, RiskTarget

LARGEST_SCORE, MEAN_SCORE, SET_SIZE, RISK = "largest_score", "mean_score", "set_size", "risk"
STREAMS: Final = (LARGEST_SCORE, MEAN_SCORE, SET_SIZE, RISK)


def new_drift_state(
    calibration: Calibration, false_alarm: float, rng: np.random.Generator
) -> DriftState:
    """Tests that share the false-alarm probability evenly.

    p_null is 1 - the largest score, so it would be the same bet twice. The set size of the rows
    depends on the threshold that the rows gave, so the sizes of queries are compared with each
    other. Without a finite threshold there is no risk to watch.
    """
    alpha = calibration.options.alpha
    names = STREAMS if calibration.realised_risk(alpha) is not None else STREAMS[:-1]
    levels = split_false_alarm(false_alarm, dict.fromkeys(names, 1.0 / len(names)))
    start = {
        LARGEST_SCORE: calibration.scores.max(axis=1),
        MEAN_SCORE: calibration.scores.mean(axis=1),
        SET_SIZE: np.empty(0),
    }
    streams: dict[str, ExchangeabilityMartingale | RiskEProcess] = {
        name: ExchangeabilityMartingale(values, level=levels[name], rng=rng)
        for name, values in start.items()
    }
    if RISK in levels:
        streams[RISK] = RiskEProcess(calibration.risk_q95(alpha), level=levels[RISK])
    return DriftState(delta=false_alarm, streams=streams)


def query_statistics(
    calibration: Calibration, decisions: Sequence[DecisionRecord]
) -> dict[str, list[float]]:
    """The label-free statistics of queries by name, each a function of its query alone.

    The set is the one at the calibration's own alpha, score and pool, whatever the request chose.
    """
    scores = _scores(decisions)
    sizes = own_sets(calibration, decisions).selected.sum(axis=1).astype(np.float64)
    return {
        LARGEST_SCORE: scores.max(axis=1).tolist(),
        MEAN_SCORE: scores.mean(axis=1).tolist(),
        SET_SIZE: sizes.tolist(),
    }


def own_sets(calibration: Calibration, decisions: Sequence[DecisionRecord]) -> Sets:
    """The sets of queries at the calibration's own alpha, score and pool."""
    options = calibration.options
    near = None
    if calibration.neighbours is not None:
        near = np.array([each.neighbours for each in decisions], dtype=np.uint32)
    return calibration.sets(
        _scores(decisions),
        [bytes.fromhex(each.fingerprint) for each in decisions],
        calibration.lambda_hat(options.alpha, options.score),
        options.score,
        near,
    )


def loss_of(
    calibration: Calibration, decision: DecisionRecord, correct: Mapping[str, bool]
) -> float | None:
    """The loss of a query at the calibration's own threshold; None if it does not count.

    Args:
        calibration: The calibration.
        decision: A decision that has a loss for it, by ``eligibility.has_loss``.
        correct: A verdict on every candidate of the calibration's pool.
    """
    options = calibration.options
    if options.risk_target is RiskTarget.ANSWERABLE and not any(correct.values()):
        return None
    sets = own_sets(calibration, [decision])
    verdicts = [RIGHT if correct[name] else WRONG for name in calibration.pool]
    bounds = feedback_bounds(
        np.array([verdicts], dtype=np.int8),
        sets.selected,
        sets.null_selected,
        options.risk_target,
        options.r,
    )
    return bounds.lower  # with every verdict known the range is a point


def stream_as_json(stream: ExchangeabilityMartingale | RiskEProcess) -> dict[str, Any]:
    """A test's capital beside the capital at which it alarms."""
    shown = {
        "kind": stream.kind,
        "capital": stream.e_value,
        "largest_log10_capital": stream.wager.log_peak / math.log(10.0),
        "alarm_at": 1.0 / stream.level,
        "level": stream.level,
        "alarmed": stream.alarmed,
        "rounds": stream.wager.rounds,
    }
    return shown | ({"rho": stream.rho} if isinstance(stream, RiskEProcess) else {})


def _scores(decisions: Sequence[DecisionRecord]) -> FloatArray:
    return np.array([each.scores for each in decisions], dtype=np.float64)
