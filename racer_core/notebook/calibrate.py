"""Calibration of arrays: router scores and correctness in, thresholds out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.decision import (
    ScoredBatch,
    score_prints,
    scores_and_neighbours,
)
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.errors import InputError
from racer_core.offline.selection import ScoredRows, choose_patterns, choose_tau
from racer_core.trained_router import refuse_uncounted
from racer_core.types import BoolArray, RiskTarget, Score, checked_pool, enum_member

FALSE_ABSTAIN_BUDGET = 0.01  # as `racer train` chooses tau


def calibrate(
    scores: ArrayLike | ScoredBatch,
    correct: ArrayLike,
    *,
    alpha: float = 0.1,
    score: Score | str | None = None,
    target: RiskTarget | str = RiskTarget.ANSWERABLE,
    patterns: PatternModel | ArrayLike | None = None,
    validation: tuple[ArrayLike | ScoredBatch, ArrayLike] | None = None,
    null_threshold: float | None = None,
    pool: Sequence[str] | None = None,
    groups: Sequence[str | None] | None = None,
    prices: Sequence[float] | None = None,
    delta: float | None = None,
    r: int = 1,
    quality: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    max_weight: float | None = None,
) -> Calibration:
    """Calibrate thresholds on labelled rows, with the defaults that the gateway serves with.

    Rows and later queries must be exchangeable (drawn alike, in any order), and the rows must not
    have trained or tuned the scores. Repeats belong to a sample of traffic: keep them.

    Args:
        scores: f(x, m), the estimated chance that candidate m answers query x right, shape (n, K),
            in [0, 1]; or the output of :meth:`EmbeddingRouter.predict` or ``Racer.score``.
        correct: Whether m answers x right, shape (n, K), of booleans or of 0 and 1.
        alpha: Risk level in (0, 1); a later call may take another.
        score: ``cover``, ``cover_cost``, ``static``, ``gap`` or ``prob``. None takes ``cover`` if
            there are patterns, else ``gap``.
        target: ``answerable`` bounds P(miss | some candidate is right), ``paper`` bounds
            P(C misses G'), ``quality`` bounds the mean shortfall of the best called quality.
        patterns: Correctness (m, K) of the rows that trained the router, or a fitted model of it,
            for ``cover`` and ``static``. None takes that of the router's output, if it has one.
        validation: Scores and correctness of further rows, which neither trained nor calibrate.
            They choose the settings of the patterns, and tau if ``null_threshold`` is None: at most
            1 % of the answerable rows abstain. 50 answerable rows are needed, else nothing is
            chosen.
        null_threshold: tau: abstain from queries with 1 - max f >= tau; ``answerable`` only.
        pool: The candidates' names; None names them m0, m1, ...
        groups: The group of each row, for thresholds by group (Mondrian).
        prices: Price per call of each candidate, above 0, for ``cover_cost``.
        delta: None bounds the risk on average over calibration sets; else at most a share delta of
            calibration sets exceeds alpha.
        r: Right candidates wanted in the set.
        quality: Grades of the answers, shape (n, K), in [0, 1], for the target ``quality``.
        weights: Density of later queries over that of rows, up to a constant, shape (n,). Known,
            not estimated: of a model's weights no bound holds.
        max_weight: Largest weight of any later query; rows with weights need it.

    Returns:
        The calibration: ``predict`` gives the sets, ``lambda_hat`` the threshold, ``n`` the number
        of rows that count.

    Raises:
        InputError: Shapes or values are wrong.
        CalibrationError: No row counts for the risk, weights leave too few effective rows, or the
            score needs patterns or prices.

    References:
        RACER, Eq. (2)-(6) and Algorithm 1; ``cover``: docs/method.md.
    """
    f, neighbours = scores_and_neighbours(scores)
    labels = checked_labels(correct, f.shape)
    target = enum_member(RiskTarget, target, "target")
    names = checked_pool(pool if pool is not None else default_pool(f.shape[1]))
    model = _pattern_model(patterns if patterns is not None else getattr(scores, "patterns", None))
    if model is None:
        neighbours = None  # they are ids of patterns
    if validation is not None:
        held_out = _validation_rows(validation, names, has_patterns=model is not None)
        if null_threshold is None and target is RiskTarget.ANSWERABLE:
            null_threshold = choose_tau(held_out.scores, held_out.labels, FALSE_ABSTAIN_BUDGET)
        if model is not None:
            model = choose_patterns(model, held_out)
    usual = Score.GAP if model is None else Score.COVER
    calibration = Calibration(
        pool=names,
        fingerprints=score_prints(f, neighbours),
        scores=f,
        labels=labels,
        options=CalibrationOptions(
            alpha=alpha,
            score=usual if score is None else enum_member(Score, score, "score"),
            risk_target=target,
            delta=delta,
            r=r,
            null_threshold=null_threshold,
            max_weight=max_weight,
            smoothing_salt=SMOOTHING_SALT,
        ),
        neighbours=neighbours,
        patterns=model,
        prices=None if prices is None else tuple(prices),
        groups=None if groups is None else tuple(groups),
        quality=None if quality is None else np.asarray(quality, np.float64),
        weights=None if weights is None else np.asarray(weights, np.float64),
    )
    refuse_uncounted(calibration)
    return calibration


def checked_labels(correct: ArrayLike, shape: tuple[int, ...]) -> BoolArray:
    """Return correctness as booleans of this shape; refuse anything but booleans, 0 and 1.

    Raises:
        InputError: Another shape, or another value, such as NaN for an unlabelled answer.
    """
    labels = np.asarray(correct)
    if labels.shape != shape:
        raise InputError(
            f"correct has the shape {labels.shape}, the scores {shape}", param="correct"
        )
    if labels.dtype != np.bool_ and not np.isin(labels, (0, 1)).all():
        raise InputError("correct must hold True and False, or 1 and 0", param="correct")
    return labels.astype(bool)


def default_pool(count: int) -> tuple[str, ...]:
    """Names of candidates that have none: m0, m1, ..., of equal length."""
    width = len(str(count - 1))
    return tuple(f"m{i:0{width}}" for i in range(count))


def _pattern_model(patterns: PatternModel | ArrayLike | None) -> PatternModel | None:
    if patterns is None or isinstance(patterns, PatternModel):
        return patterns
    labels = np.asarray(patterns)
    return PatternModel.of(checked_labels(labels, labels.shape))


def _validation_rows(
    validation: tuple[ArrayLike | ScoredBatch, ArrayLike],
    pool: tuple[str, ...],
    *,
    has_patterns: bool,
) -> ScoredRows:
    f, neighbours = scores_and_neighbours(validation[0])
    if not has_patterns:
        neighbours = None
    return ScoredRows(
        pool=pool,
        fingerprints=score_prints(f, neighbours),
        scores=f,
        neighbours=neighbours,
        labels=checked_labels(validation[1], f.shape),
    )
