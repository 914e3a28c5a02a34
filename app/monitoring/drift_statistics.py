"""The numbers that are watched, computed as they are for the calibration's own rows."""

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
    """Streams that share the false-alarm probability evenly.

    p_null is 1 - the largest score, so it would be the same bet twice. The set size of the rows
    depends on the threshold that they gave, so queries are compared with each other there. Without
    a finite threshold there is no risk to watch.
    """
    alpha = calibration.options.alpha
    names = STREAMS if calibration.misses(alpha) >= 0 else STREAMS[:-1]
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


def fits(note: DecisionRecord, calibration_id: str, calibration: Calibration) -> bool:
    """Whether a query says something of a calibration: routed by it, and of the labelled kind."""
    return (
        note.calibration_id == calibration_id
        and note.like_rows
        and (calibration.neighbours is None or note.neighbours is not None)
    )


def query_statistics(
    calibration: Calibration, notes: Sequence[DecisionRecord]
) -> dict[str, list[float]]:
    """The label-free numbers of queries, each a function of its query alone.

    The set is the one at the calibration's own alpha, score and pool, whatever the request chose.
    """
    scores = _scores(notes)
    sizes = own_sets(calibration, notes).selected.sum(axis=1).astype(np.float64)
    return {
        LARGEST_SCORE: scores.max(axis=1).tolist(),
        MEAN_SCORE: scores.mean(axis=1).tolist(),
        SET_SIZE: sizes.tolist(),
    }


def own_sets(calibration: Calibration, notes: Sequence[DecisionRecord]) -> Sets:
    """The sets of queries at the calibration's own alpha, score and pool."""
    options = calibration.options
    near = None
    if calibration.neighbours is not None:
        near = np.array([note.neighbours for note in notes], dtype=np.uint32)
    return calibration.sets(
        _scores(notes),
        [bytes.fromhex(note.fingerprint) for note in notes],
        calibration.lambda_hat(options.alpha, options.score),
        options.score,
        near,
    )


def loss_of(
    calibration: Calibration, note: DecisionRecord, correct: Mapping[str, bool]
) -> float | None:
    """The loss of a query at the calibration's own threshold; None where it does not count.

    Args:
        calibration: Of which the note ``fits``.
        note: The query.
        correct: A verdict on every candidate of the calibration's pool.
    """
    options = calibration.options
    if options.risk_target is RiskTarget.ANSWERABLE and not any(correct.values()):
        return None
    sets = own_sets(calibration, [note])
    verdicts = [RIGHT if correct[name] else WRONG for name in calibration.pool]
    bounds = feedback_bounds(
        np.array([verdicts], dtype=np.int8),
        sets.selected,
        sets.null_selected,
        options.risk_target,
        options.r,
    )
    return bounds.lower  # everything is known: the range is a point


def stream_as_json(stream: ExchangeabilityMartingale | RiskEProcess) -> dict[str, Any]:
    """A stream's capital beside the capital at which it alarms."""
    told = {
        "kind": stream.kind,
        "capital": stream.e_value,
        "largest_log10_capital": stream.wager.log_peak / math.log(10.0),
        "alarm_at": 1.0 / stream.level,
        "level": stream.level,
        "alarmed": stream.alarmed,
        "rounds": stream.wager.rounds,
    }
    return told | ({"rho": stream.rho} if isinstance(stream, RiskEProcess) else {})


def _scores(notes: Sequence[DecisionRecord]) -> FloatArray:
    return np.array([note.scores for note in notes], dtype=np.float64)
