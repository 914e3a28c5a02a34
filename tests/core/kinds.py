"""Simulated queries of three kinds, for laws of scores that read patterns and neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel, pattern_ids
from racer_core.types import BoolArray, FloatArray, IdArray, RiskTarget, any_column
from tests.kit.strategies import pool_of

_NEIGHBOURS = 12
_SKILL = np.array([[0.9, 0.5, 0.5, 0.1], [0.2, 0.5, 0.6, 0.5], [0.3, 0.2, 0.1, 0.2]])  # per kind
_TRAINING = 397


@dataclass(frozen=True)
class Queries:
    """What a router says of queries, and who is right on them."""

    scores: FloatArray  # (n, 4)
    neighbours: IdArray  # (n, 12)
    labels: BoolArray  # (n, 4)
    groups: np.ndarray[Any, np.dtype[np.str_]]  # (n,): the kind, which the router hardly sees

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Self:
        return replace(
            self,
            scores=self.scores[rows],
            neighbours=self.neighbours[rows],
            labels=self.labels[rows],
            groups=self.groups[rows],
        )


class Kinds:
    """Generator of queries of three kinds, whose candidates are right or wrong together.

    Candidates 0 and 1 are near-copies. No candidate is right on about one query in five.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        kinds = self._rng.integers(0, 3, _TRAINING)
        labels = self._labels(kinds)
        self.patterns = replace(PatternModel.of(labels), neighbours=_NEIGHBOURS)
        ids = pattern_ids(labels)
        self._ids = [ids[kinds == kind] for kind in range(3)]

    def _labels(self, kinds: np.ndarray[Any, np.dtype[np.int64]]) -> BoolArray:
        labels = self._rng.random((len(kinds), 4)) < _SKILL[kinds]
        copies = self._rng.random(len(kinds)) < 0.7
        labels[copies, 1] = labels[copies, 0]
        return labels

    def draw(self, count: int, *, answerable: bool | None = None) -> Queries:
        """Draw independent queries; only answerable or only unanswerable ones if requested."""
        size = count if answerable is None else 3 * count if answerable else 8 * count
        kinds = self._rng.integers(0, 3, size)
        # The neighbours are of the query's kind for three in four queries, of any for others.
        near = np.where(self._rng.random(size) < 0.75, kinds, self._rng.integers(0, 3, size))
        neighbours = np.empty((size, _NEIGHBOURS), dtype=np.uint8)
        for kind, ids in enumerate(self._ids):
            rows = near == kind
            neighbours[rows] = self._rng.choice(ids, (int(rows.sum()), _NEIGHBOURS))
        drawn = Queries(
            scores=0.7 * self.patterns.patterns[neighbours].mean(axis=1)
            + 0.3 * self._rng.random((size, 4)),
            neighbours=neighbours,
            labels=self._labels(kinds),
            groups=kinds.astype(str),
        )
        if answerable is not None:
            drawn = drawn[np.flatnonzero(any_column(drawn.labels) == answerable)[:count]]
        assert len(drawn) == count
        return drawn

    def calibration(self, rows: Queries, *, finds: bool = True, **options: Any) -> Calibration:
        """These rows as a calibration that offers every score."""
        return Calibration(
            pool=pool_of(4),
            fingerprints=tuple(f"row {row}".encode() for row in range(len(rows))),
            scores=rows.scores,
            labels=rows.labels,
            options=CalibrationOptions(**options),
            neighbours=rows.neighbours if finds else None,
            patterns=self.patterns,
            prices=(4.0, 1.0, 2.0, 8.0),
            groups=tuple(rows.groups.tolist()),
        )


def missed(calibration: Calibration, queries: Queries, lambda_hat: float, trial: int = 0) -> int:
    """How many of the queries get a set that misses G', or G for ``answerable``.

    Smoothing draws a query's noise once, so every trial needs queries of its own.
    """
    sets = calibration.sets(
        queries.scores,
        [f"query {trial} {row}".encode() for row in range(len(queries))],
        lambda_hat,
        calibration.options.score,
        None if calibration.neighbours is None else queries.neighbours,
    )
    hit = any_column(sets.selected & queries.labels)
    if calibration.options.risk_target is RiskTarget.PAPER:
        hit |= sets.null_selected & ~any_column(queries.labels)
    return int(np.count_nonzero(~hit))
