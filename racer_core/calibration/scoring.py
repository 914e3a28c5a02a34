"""Nonconformity scores s(x, m) from router output, identical in calibration and serving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.augmentation import augment_scores
from racer_core.calibration.cover import greedy_cover
from racer_core.calibration.nonconformity import (
    inverse_probability,
    score_gap,
    smoothing_noise,
)
from racer_core.calibration.patterns import PatternModel
from racer_core.errors import InputError
from racer_core.types import BoolArray, FloatArray, IdArray, Score, enum_member

NULL_COLUMN = ""  # the null model's name in the smoothing hash; no candidate may be blank
_CELLS = 1 << 18  # numbers in one slice, so that it fits the CPU cache


@dataclass(frozen=True, kw_only=True)
class NonconformityScorer:
    """Computes the nonconformity scores of one pool.

    Attributes:
        pool: Candidates in the order of the columns.
        with_null: Whether the null model is a column, the last one.
        patterns: Patterns of the training rows, for the cover scores; None if not available.
        prices: Price per call of each candidate, for ``cover_cost``.
        smoothing_salt: Key of the noise that breaks ties; None adds no noise.
    """

    pool: tuple[str, ...]
    with_null: bool
    patterns: PatternModel | None = None
    prices: tuple[float, ...] | None = None
    smoothing_salt: bytes | None = None

    @cached_property
    def offered(self) -> tuple[Score, ...]:
        """The scores that can be computed here."""
        missing: set[Score] = set()
        if self.patterns is None:
            missing |= {Score.COVER, Score.COVER_COST, Score.STATIC}
        if self.prices is None:
            missing.add(Score.COVER_COST)
        return tuple(score for score in Score if score not in missing)

    def nonconformity(
        self,
        score: Score,
        scores: FloatArray,
        neighbours: IdArray | None,
        fingerprints: Sequence[bytes],
    ) -> FloatArray:
        """s, shape (B, K + 1) with the null model, (B, K) without; lower fits better.

        Args:
            score: The kind of nonconformity score.
            scores: f, shape (B, K).
            neighbours: Pattern ids of the nearest training rows, nearest first, shape (B, J).
            fingerprints: Keyed hashes of the queries, B of them; read for smoothing only.

        Raises:
            InputError: The score needs patterns or prices that are missing.
        """
        score = enum_member(Score, score, "score")
        if score not in self.offered:
            wanted = "prices of the candidates" if self.patterns else "an artifact with patterns"
            raise InputError(f"score {score.value!r} needs {wanted}", param="score")
        # Column-major, since callers reduce over columns.
        fit = np.empty((len(scores), len(self.pool) + self.with_null), order="F")
        for part in self.slices(score, len(scores)):
            near = None if neighbours is None else neighbours[part]
            fit[part] = self._exact(score, scores[part], near)
        return self._smoothed(fit, fingerprints)

    def fixed_orders(
        self, weights: FloatArray, groups: NDArray[np.intp], fingerprints: Sequence[bytes]
    ) -> FloatArray:
        """``static`` with an order for each group: s of the shape of :meth:`nonconformity`.

        Args:
            weights: Weights of the patterns in each group, shape (G, P); each row sums to 1.
            groups: The group of each query, shape (B,).
            fingerprints: As for :meth:`nonconformity`.
        """
        return self._smoothed(self._cover(weights, priced=False)[groups], fingerprints)

    def _smoothed(self, fit: FloatArray, fingerprints: Sequence[bytes]) -> FloatArray:
        if self.smoothing_salt is None:
            return fit
        names = (*self.pool, NULL_COLUMN) if self.with_null else self.pool
        smoothed = fit + smoothing_noise(self.smoothing_salt, fingerprints, names)
        if self.with_null:
            return smoothed
        # Many critical scores are the least score there is (0 of ``gap`` and ``cover``): noise on
        # it would refuse queries at random until alpha is spent.
        return np.where(fit == fit.min(axis=1, keepdims=True), fit, smoothed)

    def slices(self, score: Score, rows: int) -> Iterator[slice]:
        """Slices of a batch, small enough for the CPU cache."""
        width = len(self.pool) + self.with_null
        if self.patterns is not None and score in (Score.COVER, Score.COVER_COST):
            width += len(self.patterns.frequencies)
        step = max(1, _CELLS // width)
        return (slice(start, start + step) for start in range(0, rows, step))

    def _exact(self, score: Score, scores: FloatArray, neighbours: IdArray | None) -> FloatArray:
        match score:
            case Score.GAP:
                return score_gap(augment_scores(scores) if self.with_null else scores)
            case Score.PROB:
                return inverse_probability(augment_scores(scores) if self.with_null else scores)
            case Score.COVER | Score.COVER_COST:
                return self._cover(self._weights(scores, neighbours), score == Score.COVER_COST)
            case Score.STATIC:
                return np.repeat(self._static, len(scores), axis=0)

    def _weights(self, scores: FloatArray, neighbours: IdArray | None) -> FloatArray:
        assert self.patterns is not None
        return self.patterns.weights(scores, neighbours)

    @cached_property
    def _static(self) -> FloatArray:
        """The order of the overall frequencies, shape (1, C)."""
        assert self.patterns is not None
        return self._cover(self.patterns.frequencies[None, :], priced=False)

    def _cover(self, weights: FloatArray, priced: bool) -> FloatArray:
        members, order, prices = self._columns
        if not self.with_null:  # unanswerable patterns are left out
            assert self.patterns is not None
            weights = weights[:, self.patterns.answerable]
            total = weights.sum(axis=1, keepdims=True)
            weights = weights / np.where(total > 0.0, total, 1.0)
        score = np.empty((len(weights), len(order)))
        score[:, order] = greedy_cover(weights, members, prices if priced else None)
        return score

    @cached_property
    def _columns(self) -> tuple[BoolArray, list[int], FloatArray | None]:
        """Patterns (P, C) with columns in the order of their names, and that order.

        Ties go by name and not by place, so that a pool may be listed in any order.
        """
        assert self.patterns is not None
        count = len(self.pool)
        order = sorted(range(count), key=self.pool.__getitem__)
        members = self.patterns.patterns[:, order]
        prices = None if self.prices is None else np.array([self.prices[i] for i in order])
        if not self.with_null:
            return members[self.patterns.answerable], order, prices
        members = np.column_stack([members, ~self.patterns.answerable])
        if prices is not None:  # the null model costs nothing; the least price keeps it finite
            prices = np.append(prices, prices.min())
        return members, [*order, count], prices
