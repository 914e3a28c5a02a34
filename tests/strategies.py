"""Small random worlds: router scores, labels, and calibrations of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.types import BoolArray, FloatArray, RiskTarget, Score

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
risk_targets = st.sampled_from(list(RiskTarget))


@dataclass(frozen=True)
class Table:
    """Router scores f (n, K) and labels G (n, K); some candidate answers some row right."""

    scores: FloatArray
    labels: BoolArray


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 12, columns: int | None = None) -> Table:
    """Rows that can be calibrated on for either risk target."""
    rows = draw(st.integers(1, max_rows))
    shape = (rows, columns or draw(st.integers(1, 5)))
    scores = draw(hnp.arrays(np.float64, shape, elements=probabilities, fill=st.nothing()))
    labels = draw(hnp.arrays(np.bool_, shape, elements=st.booleans(), fill=st.nothing()))
    labels[0, draw(st.integers(0, shape[1] - 1))] = True
    return Table(scores, labels)


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


def calibration_of(scores: FloatArray, labels: BoolArray, **options: Any) -> Calibration:
    """A calibration of a pool m0, m1, ... on rows with a fingerprint each."""
    return Calibration(
        pool=pool_of(scores.shape[1]),
        fingerprints=fingerprints_of(len(scores)),
        scores=scores,
        labels=labels,
        options=CalibrationOptions(**options),
    )
