"""Correctness patterns: weights W(x, g) of the sets of candidates that are right together.

A pattern g in {0, 1}^K marks the right candidates of one training query; the empty pattern belongs
to the null model. ``cover`` needs joint weights; a router's scores are marginals only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.types import BoolArray, FloatArray, IdArray, any_column

_CLIP = 0.02  # a router score of 0 or 1 from few neighbours is not certainty


@dataclass(frozen=True, kw_only=True)
class PatternModel:
    """The distinct patterns of the training rows, and their weights for a query.

    Attributes:
        patterns: The distinct patterns, shape (P, K); a pattern's id is its row.
        frequencies: Their shares of the training rows, shape (P,), sum 1.
        neighbours: Number of a query's nearest training rows that vote for their pattern.
        prior: Number of votes of the frequencies, beside the neighbours' votes.
        temperature: T of the tilt, for routers without neighbours.
    """

    patterns: BoolArray
    frequencies: FloatArray
    neighbours: int = 200
    prior: float = 20.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        """Refuse tensors and settings that do not fit."""
        shape = self.patterns.shape
        if len(shape) != 2 or 0 in shape or self.frequencies.shape != shape[:1]:
            raise InputError(f"patterns {shape} and frequencies {self.frequencies.shape} differ")
        if not (self.frequencies > 0.0).all() or abs(float(self.frequencies.sum()) - 1.0) > 1e-6:
            raise InputError("the frequencies of the patterns must be above 0 and sum to 1")
        if self.neighbours < 1:
            raise InputError(f"patterns need at least 1 neighbour, not {self.neighbours}")
        if not (0.0 < self.prior < math.inf and 0.0 < self.temperature < math.inf):
            raise InputError("prior and temperature of the patterns must be above 0 and finite")

    @classmethod
    def of(cls, labels: BoolArray) -> Self:
        """Count the patterns of training labels (n, K)."""
        ids = pattern_ids(labels)
        _, first, counts = np.unique(ids, return_index=True, return_counts=True)
        return cls(patterns=labels[first], frequencies=counts / len(labels))

    def restrict(self, columns: Sequence[int]) -> Self:
        """The same training rows for a smaller pool.

        Patterns that become equal stay separate, so that neighbours' ids remain valid; this does
        not change sums of weights.
        """
        return replace(self, patterns=self.patterns[:, list(columns)])

    def weights(self, scores: FloatArray, neighbours: IdArray | None) -> FloatArray:
        """W(x, g), shape (B, P), each row with sum 1.

        With neighbours (their pattern ids, nearest first, shape (B, J)): the count of each pattern
        among them, plus the prior's votes. Without: the frequencies tilted by the router's scores,
        f_g exp(sum_m g_m (logit f(x, m) - logit base_m) / T).
        """
        raw = self._tilted(scores) if neighbours is None else self._counted(neighbours)
        return raw / raw.sum(axis=1, keepdims=True)

    def _counted(self, neighbours: IdArray) -> FloatArray:
        nearest = neighbours[:, : self.neighbours].astype(np.int64)
        rows, count = len(nearest), len(self.frequencies)
        if nearest.size and nearest.max() >= count:
            raise InputError(f"a neighbour has pattern {nearest.max()}, and there are {count}")
        nearest += np.arange(rows)[:, None] * count
        votes = np.bincount(nearest.ravel(), minlength=rows * count).reshape(rows, count)
        return votes + self.prior * self.frequencies

    def _tilted(self, scores: FloatArray) -> FloatArray:
        tilt = (_logit(scores) - self._base_logit) @ self.patterns.T / self.temperature
        tilt += np.log(self.frequencies)
        return np.exp(tilt - tilt.max(axis=1, keepdims=True))

    @cached_property
    def _base_logit(self) -> FloatArray:
        """Logit of each candidate's share of right answers, shape (K,)."""
        return _logit(self.frequencies @ self.patterns)

    @cached_property
    def answerable(self) -> BoolArray:
        """Whether each pattern has a right candidate, shape (P,)."""
        return any_column(self.patterns)


def pattern_ids(labels: BoolArray) -> NDArray[np.int64]:
    """The rank of each row's pattern among the distinct patterns, shape (n,)."""
    packed = np.ascontiguousarray(np.packbits(labels, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _logit(chances: FloatArray) -> FloatArray:
    clipped = np.clip(chances, _CLIP, 1.0 - _CLIP)
    return np.log(clipped / (1.0 - clipped))
