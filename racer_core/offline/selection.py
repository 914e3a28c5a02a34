"""Selection of tau, patterns and scores on validation rows, never on calibration or test rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.augmentation import augment_truth
from racer_core.calibration.calibration import (
    Calibration,
    CalibrationOptions,
    choose_null_threshold,
)
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.calibration.threshold import calibrate_threshold, critical_scores
from racer_core.types import BoolArray, FloatArray, IdArray, RiskTarget, Score, any_column

MIN_ROWS = 50  # below this a comparison of settings is noise, and the defaults stay
NEIGHBOURS = (100, 200, 400, 600)
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0)
_ALPHA = 0.1
ALPHAS = (0.05, 0.1, 0.2)  # settings are compared over several levels: one alone is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Labelled rows with the router's output."""

    pool: tuple[str, ...]
    fingerprints: tuple[bytes, ...]
    scores: FloatArray  # (n, K)
    neighbours: IdArray | None  # (n, J)
    labels: BoolArray  # (n, K)

    def at(self, rows: NDArray[np.intp]) -> ScoredRows:
        """Some of the rows."""
        return replace(
            self,
            fingerprints=tuple(self.fingerprints[int(i)] for i in rows),
            scores=self.scores[rows],
            neighbours=None if self.neighbours is None else self.neighbours[rows],
            labels=self.labels[rows],
        )

    def calibration(
        self,
        options: CalibrationOptions,
        patterns: PatternModel,
        prices: tuple[float, ...] | None = None,
    ) -> Calibration:
        """These rows as a calibration."""
        return Calibration(
            pool=self.pool,
            fingerprints=self.fingerprints,
            scores=self.scores,
            labels=self.labels,
            options=options,
            neighbours=self.neighbours,
            patterns=patterns,
            prices=prices,
        )


def choose_tau(scores: FloatArray, labels: BoolArray, budget: float | None) -> float | None:
    """The p_null from which to abstain; None (never) without a budget or with too few rows.

    Fewer than 50 answerable rows cannot support a budget of one in a hundred.
    """
    if budget is None or np.count_nonzero(any_column(labels)) < MIN_ROWS:
        return None
    return choose_null_threshold(scores, labels, budget)


def choose_patterns(model: PatternModel, rows: ScoredRows) -> PatternModel:
    """The number of neighbours, or the temperature, with the smallest sets at equal risk.

    Returns the model unchanged if there are fewer than 50 answerable rows.
    """
    if np.count_nonzero(any_column(rows.labels)) < MIN_ROWS:
        return model
    offered = offered_patterns(model, rows.neighbours)
    return min(
        offered,
        key=lambda each: sum(mean_cost(rows, each, Score.COVER, alpha=a) for a in ALPHAS),
    )


def offered_patterns(model: PatternModel, neighbours: IdArray | None) -> tuple[PatternModel, ...]:
    """The settings to choose from: numbers of neighbours, or temperatures without any."""
    if neighbours is None:
        return tuple(replace(model, temperature=each) for each in TEMPERATURES)
    counts = sorted({min(each, neighbours.shape[1]) for each in NEIGHBOURS})
    return tuple(replace(model, neighbours=each) for each in counts)


def choose_score(
    rows: ScoredRows,
    patterns: PatternModel,
    *,
    alpha: float,
    risk_target: RiskTarget,
    prices: tuple[float, ...] | None = None,
    offered: Iterable[Score] = tuple(Score),
) -> Score:
    """The score with the smallest mean size at alpha, or the smallest cost if there are prices.

    Returns ``cover``, or the first offered score, if there are fewer than 50 answerable rows.
    ``static`` takes part: a router that cannot beat it should not decide.
    """
    eligible = [each for each in offered if prices is not None or each is not Score.COVER_COST]
    if np.count_nonzero(any_column(rows.labels)) < MIN_ROWS:
        return Score.COVER if Score.COVER in eligible else eligible[0]

    def cost(score: Score) -> float:
        return mean_cost(rows, patterns, score, alpha=alpha, risk_target=risk_target, prices=prices)

    return min(eligible, key=cost)


def mean_cost(
    rows: ScoredRows,
    patterns: PatternModel,
    score: Score,
    *,
    alpha: float = _ALPHA,
    risk_target: RiskTarget = RiskTarget.ANSWERABLE,
    prices: tuple[float, ...] | None = None,
) -> float:
    """Mean size, or mean price of a query, of the sets that just keep alpha on these rows."""
    paper = risk_target is RiskTarget.PAPER
    fit = NonconformityScorer(
        pool=rows.pool,
        with_null=paper,
        patterns=patterns,
        prices=prices,
        # Ties are broken at random, so that all scores are compared at equal risk.
        smoothing_salt=b"selection",
    ).nonconformity(score, rows.scores, rows.neighbours, rows.fingerprints)
    truth = augment_truth(rows.labels) if paper else rows.labels
    per_call = np.ones(len(rows.pool)) if prices is None else np.array(prices)
    return cost_that_keeps(fit, truth, alpha, per_call)


def cost_that_keeps(fit: FloatArray, truth: BoolArray, alpha: float, per_call: FloatArray) -> float:
    """Mean cost of the sets with the smallest lambda that keeps alpha on these rows.

    The threshold comes from the rows themselves: valid for comparing scores, without a guarantee.

    Args:
        fit: Nonconformity, shape (n, C); candidates first, the null model last if there is one.
        truth: The right columns, shape (n, C); rows without any do not count for the threshold.
        alpha: Risk level.
        per_call: Price of each candidate, or ones for the mean size; shape (K,). The null model
            is free.
    """
    counted = any_column(truth)
    lambda_hat = calibrate_threshold(critical_scores(fit[counted], truth[counted]), alpha)
    return float((prediction_sets(fit, lambda_hat)[:, : len(per_call)] @ per_call).mean())
