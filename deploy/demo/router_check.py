"""Check of the demo's encoder: a KNN router on its embeddings, and its conformal sets.

An independent implementation of ``racer_core``'s method in plain numpy. Knows no encoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]

NEIGHBOURS: Final = 40
ALPHA: Final = 0.1


@dataclass(frozen=True, slots=True)
class RouterQuality:
    """How a KNN router does on the test rows."""

    top1: float
    brier: float
    size_paper: float
    risk_paper: float
    size_answerable: float
    miss_answerable: float


def knn_scores(train: Floats, right: Labels, queries: Floats) -> Floats:
    """Return f, shape (B, K): the mean correctness of the nearest training rows by cosine."""
    similarity = unit(queries) @ unit(train).T
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :NEIGHBOURS]
    return right[nearest].mean(axis=1)


def unit(rows: Floats) -> Floats:
    """Return the rows at length one."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def augmented(scores: Floats) -> Floats:
    """Return r, shape (B, K + 1): the null model's score is one minus the best."""
    return np.hstack([scores, 1 - scores.max(axis=1, keepdims=True)])


def gap(scores: Floats) -> Floats:
    """Return the ``gap`` nonconformity: how far each column is below the best one."""
    return scores.max(axis=1, keepdims=True) - scores


def threshold(critical: Floats) -> float:
    """Return lambda_hat (Algorithm 1, line 9) at ``ALPHA``."""
    n = critical.size
    misses = np.arange(n)
    allowed = misses[(1 + misses) / (n + 1) <= ALPHA]
    return float(np.sort(critical)[n - 1 - allowed[-1]]) if allowed.size else math.inf


def conformal(
    f_cal: Floats, g_cal: Labels, f_test: Floats, g_test: Labels, candidates: int
) -> tuple[float, float]:
    """Return the mean number of candidates called, and the realised risk.

    Rows on which no column is right carry no loss; with the null model's column there are none.

    Args:
        f_cal: Scores of the calibration rows, shape (n, columns).
        g_cal: Who is right on them, same shape.
        f_test: Scores of the test rows.
        g_test: Who is right on them.
        candidates: How many of the leading columns are candidates; the null model is not called.
    """
    critical = np.where(g_cal, gap(f_cal), np.inf).min(axis=1)[g_cal.any(axis=1)]
    chosen = gap(f_test) <= threshold(critical)
    missed = ~(chosen & g_test).any(axis=1)
    called = chosen[:, :candidates].sum(axis=1)
    return float(called.mean()), float(missed[g_test.any(axis=1)].mean())


def with_null(right: Labels) -> Labels:
    """Return G' as columns: the null model is right where no candidate is."""
    return np.hstack([right, ~right.any(axis=1, keepdims=True)])


def evaluate(
    train: tuple[Floats, Labels], calibration: tuple[Floats, Labels], test: tuple[Floats, Labels]
) -> RouterQuality:
    """Return how KNN on these embeddings routes; each pair is embeddings and labels."""
    f_cal, f_test = (knn_scores(*train, rows[0]) for rows in (calibration, test))
    g_cal, g_test = calibration[1], test[1]
    first = f_test.argmax(axis=1)
    size = g_test.shape[1]
    null_cal, null_test = with_null(g_cal), with_null(g_test)
    paper = conformal(augmented(f_cal), null_cal, augmented(f_test), null_test, size)
    answerable = conformal(f_cal, g_cal, f_test, g_test, size)
    return RouterQuality(
        float(g_test[np.arange(len(first)), first].mean()),
        float(((f_test - g_test) ** 2).mean()),
        *paper,
        *answerable,
    )
