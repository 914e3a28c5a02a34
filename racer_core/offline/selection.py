"""Selection of tau, patterns and scores on validation rows, never on calibration or test rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.augmentation import augment_truth
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.null_threshold import choose_null_threshold
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.calibration.threshold import calibrate_threshold, critical_scores
from racer_core.offline.paired import (
    risk_adjusted_costs,
    shortfall_adjusted_costs,
    significantly_below,
)
from racer_core.offline.protocol import Rows, halves
from racer_core.records.units import renumbered
from racer_core.types import (
    BoolArray,
    FloatArray,
    IdArray,
    RiskTarget,
    Score,
    any_column,
    enum_member,
)

MIN_ROWS = 50  # below this a comparison of settings is noise, and the defaults stay
NEIGHBOURS = (100, 200, 400, 600)
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0)
_ALPHA = 0.1
ERROR_RATE = 0.05  # chance that a score that is no cheaper than `static` is chosen
ALPHAS = (0.05, 0.1, 0.2)  # settings are compared over several levels: one alone is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Labelled rows with the router's output."""

    pool: tuple[str, ...]
    fingerprints: tuple[bytes, ...]
    scores: FloatArray  # (n, K)
    neighbours: IdArray | None  # (n, J)
    labels: BoolArray  # (n, K)
    quality: FloatArray | None = None  # (n, K), in [0, 1]; None: not graded
    units: Rows | None = None  # (n,), what no split divides; None: every row is one of its own

    def at(self, rows: NDArray[np.intp]) -> ScoredRows:
        """Some of the rows."""
        return replace(
            self,
            fingerprints=tuple(self.fingerprints[int(i)] for i in rows),
            scores=self.scores[rows],
            neighbours=None if self.neighbours is None else self.neighbours[rows],
            labels=self.labels[rows],
            quality=None if self.quality is None else self.quality[rows],
            units=None if self.units is None else renumbered(self.units[rows]),
        )

    @property
    def split_units(self) -> Rows:
        """The unit of every row, shape (n,), numbered by first appearance."""
        return np.arange(len(self.labels)) if self.units is None else self.units

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
            quality=self.quality,
            options=options,
            neighbours=self.neighbours,
            patterns=patterns,
            prices=prices,
        )


def cross_fitted(
    units: Rows, sets_by: Callable[[Rows, Rows], BoolArray | None]
) -> BoolArray | None:
    """The sets of each half of the validation rows at the threshold of the other, shape (n, K).

    Args:
        units: The unit of every row, shape (n,), numbered by first appearance.
        sets_by: The sets of its first rows at the threshold of its second; None if these are too
            few for alpha.

    Returns:
        None if a half is too small. The whole pool would be called at such an alpha whatever the
        scores are, so that its figures say nothing of it: it is not among the choices.
    """
    found = [(own, sets_by(own, other)) for own, other in halves(units)]
    feasible = [(own, sets) for own, sets in found if sets is not None]
    if len(feasible) < len(found):
        return None
    rows = np.concatenate([own for own, _ in feasible])
    return np.concatenate([sets for _, sets in feasible])[np.argsort(rows)]


def choose_tau(scores: FloatArray, labels: BoolArray, budget: float | None) -> float | None:
    """The p_null from which to abstain; None (never) without a budget or with too few rows.

    Fewer than 50 answerable rows cannot support a budget of one in a hundred.
    """
    if budget is None or np.count_nonzero(any_column(labels)) < MIN_ROWS:
        return None
    return choose_null_threshold(scores, labels, budget)


def most_neighbours(rows: int) -> int:
    """The largest J for this number of training rows: a quarter of them.

    With all of them every query has the same weights, and ``cover`` is the fixed order.
    """
    return max(rows // 4, 1)


def choose_patterns(model: PatternModel, rows: ScoredRows) -> PatternModel:
    """The number of neighbours, or the temperature, with the smallest sets at equal risk.

    Fewer than 50 answerable rows choose nothing: the model stays, with no more neighbours than the
    router returns.
    """
    if np.count_nonzero(any_column(rows.labels)) < MIN_ROWS:
        returned = model.neighbours if rows.neighbours is None else rows.neighbours.shape[1]
        return replace(model, neighbours=min(model.neighbours, returned))
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


def choose_scores(
    rows: ScoredRows,
    patterns: PatternModel,
    *,
    alphas: Sequence[float],
    risk_target: RiskTarget,
    prices: tuple[float, ...] | None = None,
    error_rate: float = ERROR_RATE,
) -> dict[float, Score]:
    """The score of each alpha: ``static``, unless ``cover`` is shown to be cheaper.

    ``cover``, or ``cover_cost`` with prices, replaces the fixed order only where a paired test of
    the mean size (the mean cost with prices) at equal risk says so: the chance that any level has a
    score that is no cheaper than ``static`` is at most ``error_rate``, over all levels and scores
    together. Of both, the cheaper is taken. ``gap`` and ``prob`` take no part: on recorded answers
    they are larger, and each tested score costs the others power. Levels with too few rows for the
    test keep ``static``.

    Args:
        rows: Validation rows; the scores may not have been fitted on them.
        patterns: The artifact's patterns.
        alphas: Risk levels.
        risk_target: The risk that alpha bounds.
        prices: Price per call of each candidate; None counts calls, and leaves out ``cover_cost``.
        error_rate: Chance of a false alarm.
    """
    per_call = np.ones(len(rows.pool)) if prices is None else np.array(prices)
    others = [Score.COVER] if prices is None else [Score.COVER, Score.COVER_COST]

    def costs(score: Score) -> list[FloatArray | None]:
        fit = _nonconformity(rows, patterns, score, risk_target, prices)
        if risk_target is RiskTarget.QUALITY:
            assert rows.quality is not None
            return [shortfall_adjusted_costs(fit, rows.quality, a, per_call) for a in alphas]
        truth = _truth(rows, risk_target)
        return [risk_adjusted_costs(fit, truth, alpha, per_call) for alpha in alphas]

    fixed = costs(Score.STATIC)
    found = [
        (alpha, score, cost - base)
        for score in others
        for alpha, cost, base in zip(alphas, costs(score), fixed, strict=True)
        if cost is not None and base is not None
    ]
    chosen = dict.fromkeys(alphas, Score.STATIC)
    if not found:
        return chosen
    differences = np.column_stack([each[2] for each in found])
    named = significantly_below(differences, error_rate, rows.split_units)
    cheaper = [each for each, is_below in zip(found, named, strict=True) if is_below]
    for alpha, score, _ in sorted(reversed(cheaper), key=lambda each: -float(each[2].mean())):
        chosen[alpha] = score  # the cheapest last, and of equals `cover`
    return chosen


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
    fit = _nonconformity(rows, patterns, score, risk_target, prices)
    per_call = np.ones(len(rows.pool)) if prices is None else np.array(prices)
    return cost_that_keeps(fit, _truth(rows, risk_target), alpha, per_call)


def adjusted_sizes(rows: ScoredRows, patterns: PatternModel) -> FloatArray:
    """Risk-adjusted sizes of the rows' sets of ``cover``, the mean over ``ALPHAS``, shape (n,).

    Their differences are compared in pairs. Levels with too few rows are left out; 50 answerable
    rows are enough for one.
    """
    fit = _nonconformity(rows, patterns, Score.COVER, RiskTarget.ANSWERABLE, None)
    per_call = np.ones(len(rows.pool))
    costs = [risk_adjusted_costs(fit, rows.labels, alpha, per_call) for alpha in ALPHAS]
    return np.mean([each for each in costs if each is not None], axis=0)


def _truth(rows: ScoredRows, risk_target: RiskTarget) -> BoolArray:
    """The right columns, with the null model for ``paper``."""
    risk_target = enum_member(RiskTarget, risk_target, "risk_target")
    return augment_truth(rows.labels) if risk_target == RiskTarget.PAPER else rows.labels


def _nonconformity(
    rows: ScoredRows,
    patterns: PatternModel,
    score: Score,
    risk_target: RiskTarget,
    prices: tuple[float, ...] | None,
) -> FloatArray:
    return NonconformityScorer(
        pool=rows.pool,
        with_null=risk_target == RiskTarget.PAPER,
        patterns=patterns,
        prices=prices,
        smoothing_salt=SMOOTHING_SALT,
    ).nonconformity(score, rows.scores, rows.neighbours, rows.fingerprints)


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
