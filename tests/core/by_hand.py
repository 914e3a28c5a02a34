"""Nonconformity in plain Python: the oracle of ``Scoring``, row by row and in rational numbers.

What a tilt needs (exp, log) is rounded to doubles; everything after it is exact again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from racer_core.calibration.patterns import PatternModel
from racer_core.types import RiskTarget, Score
from tests.core.exact_cover import NULL, columns_of, counted_weights, greedy, without_empty
from tests.kit.strategies import Table, pool_of


def training_counts(model: PatternModel) -> list[int]:
    """Training rows of each pattern: their shares times the smallest number that makes them whole.

    For the few rows of ``pattern_models`` and for shares that are counts of up to 60 rows.
    """
    for rows in range(1, 61):
        counts = [float(share) * rows for share in model.frequencies]
        if all(abs(count - round(count)) < 1e-9 for count in counts):
            return [round(count) for count in counts]
    raise AssertionError("not the patterns of so few rows")


def logit(chance: float) -> float:
    """Of a chance that is kept away from certainty by 0.02."""
    clipped = min(max(chance, 0.02), 0.98)
    return math.log(clipped / (1.0 - clipped))


def tilted_weights(model: PatternModel, f: Sequence[float]) -> list[Fraction]:
    """Frequencies times exp(sum over right candidates of (logit f - logit base) / T)."""
    counts, patterns = training_counts(model), model.patterns.tolist()
    pairs = list(zip(counts, patterns, strict=True))
    raw: list[Fraction] = []
    for count, pattern in pairs:
        tilt = 0.0
        for column, right in enumerate(pattern):
            if right:
                base = sum(each for each, other in pairs if other[column]) / sum(counts)
                tilt += (logit(f[column]) - logit(base)) / model.temperature
        raw.append(count * Fraction(math.exp(tilt)))
    return [each / sum(raw) for each in raw]


def weights_by_hand(table: Table, row: int, kind: Score) -> list[Fraction]:
    """W(x, g) of a row's patterns; for ``static`` the frequencies."""
    model = table.patterns
    counts = training_counts(model)
    if kind is Score.STATIC:
        return [Fraction(count, sum(counts)) for count in counts]
    if table.neighbours is None:
        return tilted_weights(model, table.scores[row].tolist())
    nearest = table.neighbours[row].tolist()[: model.neighbours]
    return counted_weights(counts, Fraction(model.prior), nearest)


def cover_by_hand(table: Table, row: int, kind: Score, *, with_null: bool) -> list[float]:
    """s(x, m) of the columns in the order of the pool, the null model last."""
    pool, patterns = pool_of(table.scores.shape[1]), table.patterns.patterns.tolist()
    covers = columns_of(patterns, pool, with_null=with_null)
    weights = weights_by_hand(table, row, kind)
    prices = None
    if kind is Score.COVER_COST:
        prices = dict(zip(pool, map(Fraction, table.prices), strict=True))
        prices[NULL] = min(prices.values())
    if not with_null:
        weights = without_empty(weights, patterns)
    taken = {each.name: each.before for each in greedy(weights, covers, prices, on_grid=True)}
    return [float(taken[name]) for name in ((*pool, NULL) if with_null else pool)]


def nonconformity_by_hand(table: Table, row: int, kind: Score, *, with_null: bool) -> list[float]:
    """The same for every score; ``gap`` and ``prob`` are App. B of the paper."""
    if kind in (Score.COVER, Score.COVER_COST, Score.STATIC):
        return cover_by_hand(table, row, kind, with_null=with_null)
    f = table.scores[row].tolist()
    r = [*f, 1 - max(f)] if with_null else f
    return [max(r) - each if kind is Score.GAP else 1 - each for each in r]


def critical_by_hand(table: Table, kind: Score, target: RiskTarget) -> list[float]:
    """s_i of the rows that count, without smoothing, tau or r."""
    with_null = target is RiskTarget.PAPER
    critical: list[float] = []
    for row, right in enumerate(table.labels.tolist()):
        truth = [*right, not any(right)] if with_null else right
        if any(truth):
            s = nonconformity_by_hand(table, row, kind, with_null=with_null)
            critical.append(min(each for each, is_right in zip(s, truth, strict=True) if is_right))
    return critical
