"""Small random worlds: router scores, neighbours, labels, and calibrations of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.types import BINARY_TARGETS, BoolArray, FloatArray, IdArray, Score

# A KNN router's scores are a lattice, full of ties; other routers' are not.
probabilities = st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.floats(0.0, 1.0))
nonconformities = st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.floats(0.0, allow_nan=False))
# As people type it: two or three decimals. ``Fraction`` reads the text exactly.
alpha_texts = st.one_of(
    st.integers(1, 99).map(lambda k: f"0.{k:02d}"), st.integers(1, 999).map(lambda k: f"0.{k:03d}")
)
alphas = alpha_texts.map(float)
thresholds = st.one_of(nonconformities, st.just(float("inf")))
scores_kinds = st.sampled_from(list(Score))
risk_targets = st.sampled_from(BINARY_TARGETS)

REACH = 5  # neighbours of a row of a table


@dataclass(frozen=True)
class Table:
    """What a calibration is made of, for all five scores; some candidate answers some row right.

    Router scores f (n, K), labels G (n, K), the patterns of some training rows, and prices. ``ids``
    (n, 5) are the neighbours' patterns, if the router ``finds`` neighbours.
    """

    scores: FloatArray
    labels: BoolArray
    patterns: PatternModel
    prices: tuple[float, ...]
    ids: IdArray
    finds: bool

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def neighbours(self) -> IdArray | None:
        """The rows' neighbours, as a calibration of this table wants them."""
        return self.near(self.patterns) if self.finds else None

    def near(self, patterns: PatternModel) -> IdArray:
        """Neighbours that are among these patterns."""
        return self.ids % len(patterns.frequencies)

    def columns(self, order: Sequence[int]) -> Self:
        """The same rows about some of the candidates, in this order."""
        order = list(order)
        return replace(
            self,
            scores=self.scores[:, order],
            labels=self.labels[:, order],
            patterns=self.patterns.restrict(order),
            prices=tuple(self.prices[column] for column in order),
        )

    def calibration(self, **options: Any) -> Calibration:
        """A calibration on these rows that offers every score."""
        return calibration_of(
            self.scores,
            self.labels,
            neighbours=self.neighbours,
            patterns=self.patterns,
            prices=self.prices,
            **options,
        )

    def nonconformity(self, score: Score, *, with_null: bool = True) -> FloatArray:
        """Of the rows, shape (n, K + 1) or (n, K), without smoothing."""
        scoring = NonconformityScorer(
            pool=pool_of(self.scores.shape[1]),
            with_null=with_null,
            patterns=self.patterns,
            prices=self.prices,
        )
        return scoring.nonconformity(
            score, self.scores, self.neighbours, fingerprints_of(len(self))
        )


@st.composite
def pattern_models(draw: st.DrawFn, columns: int, max_rows: int = 6) -> PatternModel:
    """The patterns of a few training rows, all of them unanswerable at times."""
    shape = (draw(st.integers(1, max_rows)), columns)
    labels = draw(hnp.arrays(np.bool_, shape, elements=st.booleans(), fill=st.nothing()))
    return replace(
        PatternModel.of(labels),
        neighbours=draw(st.integers(1, REACH + 2)),
        prior=draw(st.sampled_from([0.5, 20.0])),
        temperature=draw(st.sampled_from([0.5, 2.0])),
    )


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 12, columns: int | None = None) -> Table:
    """Rows that can be calibrated on for either risk target and with any score."""
    rows = draw(st.integers(1, max_rows))
    shape = (rows, columns or draw(st.integers(1, 5)))
    scores = draw(hnp.arrays(np.float64, shape, elements=probabilities, fill=st.nothing()))
    labels = draw(hnp.arrays(np.bool_, shape, elements=st.booleans(), fill=st.nothing()))
    labels[0, draw(st.integers(0, shape[1] - 1))] = True
    ids = hnp.arrays(np.uint8, (rows, REACH), elements=st.integers(0, 7), fill=st.nothing())
    # Powers of two: a mass per price is then as exact as the mass.
    price = st.sampled_from([0.25, 1.0, 4.0])
    return Table(
        scores=scores,
        labels=labels,
        patterns=draw(pattern_models(shape[1])),
        prices=tuple(draw(st.lists(price, min_size=shape[1], max_size=shape[1]))),
        ids=draw(ids),
        finds=draw(st.booleans()),
    )


def matrices(columns: int | None = None) -> st.SearchStrategy[FloatArray]:
    """Nonconformity scores s (n, C), +inf included."""
    widths = st.just(columns) if columns else st.integers(1, 5)
    shapes = st.tuples(st.integers(1, 6), widths)
    return shapes.flatmap(
        lambda shape: hnp.arrays(np.float64, shape, elements=nonconformities, fill=st.nothing())
    )


@st.composite
def calibration_options(draw: st.DrawFn) -> dict[str, Any]:
    """Everything that an operator may ask of a calibration but alpha."""
    return {
        "risk_target": draw(risk_targets),
        "score": draw(scores_kinds),
        "delta": draw(st.sampled_from([None, 0.05, 0.3])),
        "r": draw(st.integers(1, 3)),
        "null_threshold": draw(st.sampled_from([None, 0.5, 0.9])),
        "smoothing_salt": draw(st.sampled_from([None, b"salt"])),
    }


def pool_of(columns: int) -> tuple[str, ...]:
    """Names m0, m1, ... for K columns."""
    return tuple(f"m{column}" for column in range(columns))


def fingerprints_of(rows: int, kind: str = "row") -> tuple[bytes, ...]:
    """A different fingerprint for each row."""
    return tuple(f"{kind} {row}".encode() for row in range(rows))


def calibration_of(
    scores: FloatArray,
    labels: BoolArray,
    *,
    neighbours: IdArray | None = None,
    patterns: PatternModel | None = None,
    prices: tuple[float, ...] | None = None,
    groups: tuple[str | None, ...] | None = None,
    unlabelled: BoolArray | None = None,
    judged: NDArray[np.int8] | None = None,
    **options: Any,
) -> Calibration:
    """A calibration of a pool m0, m1, ... on rows with a fingerprint each."""
    return Calibration(
        pool=pool_of(scores.shape[1]),
        fingerprints=fingerprints_of(len(scores)),
        scores=scores,
        labels=labels,
        options=CalibrationOptions(**options),
        neighbours=neighbours,
        patterns=patterns,
        prices=prices,
        groups=groups,
        unlabelled=unlabelled,
        judged=judged,
    )
