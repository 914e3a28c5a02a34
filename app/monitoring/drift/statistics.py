"""Drift statistics: the numbers of a query that the alarms watch, as for the calibration's rows.

The values of one statistic, query after query, are its stream. Each stream has a sequential test of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.seen_queries import first_of_each
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.decision import Sets
from racer_core.calibration.martingales import (
    ExchangeabilityMartingale,
    ProjectionMartingale,
    UpwardMartingale,
)
from racer_core.calibration.monitoring import DriftState, Stream, split_false_alarm
from racer_core.calibration.nonconformity import SMOOTHING_WIDTH, smoothing_noise
from racer_core.calibration.options import SMOOTHING_SALT
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.shadow import RIGHT, WRONG, feedback_bounds
from racer_core.types import BINARY_TARGETS, FloatArray, IdArray, RiskTarget

LARGEST_SCORE, MEAN_SCORE, SET_SIZE = "largest_score", "mean_score", "set_size"
EMBEDDING: Final = "embedding"
CRITICAL_SCORE, RISK = "critical_score", "risk"
UNLABELLED: Final = (LARGEST_SCORE, MEAN_SCORE, SET_SIZE, EMBEDDING)
JUDGED: Final = (CRITICAL_SCORE, RISK)
STREAMS: Final = (*UNLABELLED, *JUDGED)

RISK_SHARE: Final = 0.25  # of the false-alarm probability, where all streams are watched
NEVER_COVERED: Final = 1e300  # stands for an infinite critical score: streams take finite numbers


Statistic = float | tuple[float, ...]  # of one query


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedQuery:
    """What a judged query of the shadow sample says about a calibration."""

    loss: float | None  # at the calibration's own threshold; None: the query does not count
    critical_score: float  # the smallest threshold that does not miss it, ties broken


def new_drift_state(
    calibration: Calibration,
    false_alarm: float,
    rng: np.random.Generator,
    *,
    counts_repeats: bool = False,
    together: bool = False,
) -> DriftState:
    """Tests that share the false-alarm probability: half for judged queries, half for the others.

    p_null is 1 - the largest score, so it would be the same bet twice. The set size of the rows
    depends on the threshold that the rows gave, so the sizes of queries are compared with each
    other. Without a finite threshold there is no risk to watch, and graded or weighted rows give
    no exact law to test it against. Rows uploaded with their own scores have no embedding to
    compare.

    Rows that are one of each cluster, or of later turns, too, are not drawn like first turns, so
    these are compared with each other alone.

    Args:
        calibration: The calibration.
        false_alarm: The probability of any alarm while nothing changes.
        rng: Draws.
        counts_repeats: Repeats are fed in. Else queries are compared with the first row of each.
        together: Some rows are of later turns.
    """
    rows = calibration
    if not counts_repeats and len(calibration.queries) < len(calibration.fingerprints):
        rows = calibration.take(first_of_each(calibration.fingerprints))
    alpha, projections = calibration.options.alpha, calibration.projections
    # Weights say that requests differ from the rows.
    is_other = calibration.options.one_per_cluster or together
    is_like_requests = not is_other and calibration.weights is None
    compared = (LARGEST_SCORE, MEAN_SCORE) if is_like_requests else ()
    by_embedding = (EMBEDDING,) if is_like_requests and projections is not None else ()
    shares = _even_shares([*compared, SET_SIZE, *by_embedding])
    risk = largest_risk(calibration) if is_like_requests else None
    if risk is not None:
        # A judge's verdicts give no critical scores to compare with.
        judged = (RISK,) if calibration.options.has_judged_rows else JUDGED
        both = shares | _even_shares(judged)
        shares = {name: share / 2.0 for name, share in both.items()}
    levels = split_false_alarm(false_alarm, shares)
    start = {
        LARGEST_SCORE: rows.scores.max(axis=1),
        MEAN_SCORE: rows.scores.mean(axis=1),
        SET_SIZE: np.empty(0),
    }
    streams: dict[str, Stream] = {
        name: ExchangeabilityMartingale(values, level=levels[name], rng=rng)
        for name, values in start.items()
        if name in levels
    }
    if rows.projections is not None and EMBEDDING in levels:
        streams[EMBEDDING] = ProjectionMartingale(
            rows.projections, level=levels[EMBEDDING], rng=rng
        )
    if CRITICAL_SCORE in levels:
        critical = rows.critical_scores_of(
            rows.scores, rows.fingerprints, rows.labels, rows.neighbours
        )
        if rows.unlabelled is not None:
            critical[rows.unlabelled] = np.inf
        critical = _comparable(critical, tie_draws(rows.fingerprints))[rows.counted]
        streams[CRITICAL_SCORE] = UpwardMartingale(
            critical, tail=alpha, level=levels[CRITICAL_SCORE], rng=rng
        )
    if risk is not None:
        streams[RISK] = RiskEProcess(risk, level=levels[RISK])
    return DriftState(delta=false_alarm, streams=streams)


def largest_risk(calibration: Calibration) -> float | None:
    """The realised risk above which the threshold of the calibration's own alpha breaks its bound.

    The 95 % point of the realised risk. Of rows with a judge's verdicts it is alpha, which the
    threshold keeps with probability 1 - delta. None without a finite threshold, or without a law.
    """
    options = calibration.options
    if options.has_judged_rows and math.isfinite(calibration.lambda_hat()):
        return options.alpha
    risk = calibration.realised_risk(options.alpha)
    return None if risk is None else risk.upper()


def _even_shares(names: Sequence[str]) -> dict[str, float]:
    return dict.fromkeys(names, 1.0 / len(names))


def tie_draws(fingerprints: Sequence[bytes]) -> FloatArray:
    """Uniform numbers in [0, 1) from the keyed hashes of queries, shape (n,).

    Most critical scores may tie, as the least score there is. Ties then go by the query, as in
    serving, and not by draws of this process: on the same rows and queries every gateway sees the
    same evidence.
    """
    return smoothing_noise(SMOOTHING_SALT, fingerprints, (CRITICAL_SCORE,))[:, 0] / SMOOTHING_WIDTH


def evict_draws(decision_ids: Sequence[bytes]) -> FloatArray:
    """Uniform numbers in [0, 1) from the ids of decisions, shape (n,): what leaves a full bag.

    A decision that bets again must not draw again, or the best of many draws would count.
    """
    return smoothing_noise(SMOOTHING_SALT, decision_ids, ("evict",))[:, 0] / SMOOTHING_WIDTH


def _comparable(critical: FloatArray, ties: FloatArray) -> FloatArray:
    """Critical scores on a grid, since their last bits depend on the batch; then ties broken."""
    return np.minimum(np.round(critical, 9) + SMOOTHING_WIDTH * ties, NEVER_COVERED)


def query_statistics(
    calibration: Calibration, decisions: Sequence[DecisionRecord]
) -> dict[str, list[Statistic]]:
    """The label-free statistics of queries by name, each a function of its query alone.

    The set is the one at the calibration's own alpha, score and pool, whatever the request chose.
    """
    scores = _scores(decisions)
    sizes = own_sets(calibration, decisions).selected.sum(axis=1).astype(np.float64)
    return {
        LARGEST_SCORE: scores.max(axis=1).tolist(),
        MEAN_SCORE: scores.mean(axis=1).tolist(),
        SET_SIZE: sizes.tolist(),
        EMBEDDING: [each.projection for each in decisions if each.projection is not None],
    }


def update(stream: Stream, values: Sequence[Statistic], rng: np.random.Generator) -> None:
    """Bet on a label-free statistic of queries, in order."""
    if isinstance(stream, ProjectionMartingale):
        vectors = np.array(values, dtype=np.float64).reshape(len(values), -1)
        draws = rng.random((*vectors.shape, 2))
        for vector, pairs in zip(vectors.tolist(), draws.tolist(), strict=True):
            stream.update(vector, pairs)
    elif isinstance(stream, ExchangeabilityMartingale):
        singles = np.array(values, dtype=np.float64).tolist()
        draws = rng.random((len(singles), 2)).tolist()
        for value, (tie, evict) in zip(singles, draws, strict=True):
            stream.update(value, tie, evict)


def own_sets(calibration: Calibration, decisions: Sequence[DecisionRecord]) -> Sets:
    """The sets of queries at the calibration's own alpha, score and pool."""
    options = calibration.options
    return calibration.sets(
        _scores(decisions),
        [bytes.fromhex(each.fingerprint) for each in decisions],
        calibration.lambda_hat(options.alpha, options.score),
        options.score,
        _neighbours(calibration, decisions),
    )


def judged_query(
    calibration: Calibration, decision: DecisionRecord, correct: Mapping[str, bool]
) -> JudgedQuery | None:
    """What the verdicts on a query say about the calibration.

    None for graded qualities: a verdict of right or wrong is no quality.

    Args:
        calibration: The calibration.
        decision: A decision that has a loss for it, by ``eligibility.population_with_loss``.
        correct: A verdict on every candidate of the calibration's pool.
    """
    options = calibration.options
    if options.risk_target not in BINARY_TARGETS:
        return None
    if options.risk_target is RiskTarget.ANSWERABLE and not any(correct.values()):
        return JudgedQuery(loss=None, critical_score=NEVER_COVERED)
    sets = own_sets(calibration, [decision])
    right = np.array([[correct[name] for name in calibration.pool]])
    bounds = feedback_bounds(
        np.where(right, RIGHT, WRONG).astype(np.int8),
        sets.selected,
        sets.null_selected,
        options.risk_target,
        options.r,
    )
    fingerprints = [bytes.fromhex(decision.fingerprint)]
    critical = calibration.critical_scores_of(
        _scores([decision]), fingerprints, right, _neighbours(calibration, [decision])
    )
    return JudgedQuery(
        loss=bounds.lower,  # with every verdict known the range is a point
        critical_score=float(_comparable(critical, tie_draws(fingerprints))[0]),
    )


def stream_as_json(stream: Stream) -> dict[str, Any]:
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


def _neighbours(calibration: Calibration, decisions: Sequence[DecisionRecord]) -> IdArray | None:
    if calibration.neighbours is None:
        return None
    return np.array([each.neighbours for each in decisions], dtype=np.uint32)
