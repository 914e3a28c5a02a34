"""Synthetic requests for the laws of sequential calls; a world draws any number of rows at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from racer_core.calibration.threshold import allowed_misses
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.verdicts import NO_VERDICT, VERDICTS

FALSE_ALARM = 1e-6
NAMES = ("b", "a", "d", "c", "e", "f", "g", "h")


def paths(rng: np.random.Generator, rows: int, rounds: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Doubts and losses, both (rows, rounds): losses come and go, doubts know half of them."""
    hard = rng.random(rows)[:, None]
    lost = rng.random((rows, rounds)) < 0.2 + 0.6 * hard
    lost[:, -1] = False
    doubt = 0.4 * lost + 0.6 * rng.random((rows, rounds)) + 0.2 * hard
    return doubt, lost


def answers(
    rng: np.random.Generator,
    rows: int,
    chances: tuple[float, ...],
    *,
    options: int = 4,
    unreadable: float = 0.05,
    common: float = 0.5,
) -> AnswerClasses:
    """Candidates with these chances; hard requests and a common wrong answer correlate them."""
    hard, size = rng.random((rows, 1)), (rows, len(chances))
    right = rng.random(size) < np.array(chances) * (1.3 - 0.6 * hard)
    wrong = np.where(rng.random(size) < common, 1, rng.integers(1, options, size))
    given = np.where(right, 0, wrong)
    classes = np.where(rng.random(size) < unreadable, -1, given).astype(np.int16)
    return AnswerClasses(
        pool=NAMES[: len(chances)],
        classes=classes,
        fingerprints=tuple(i.to_bytes(8) for i in range(rows)),
    )


def checked(rng: np.random.Generator, rows: AnswerClasses, *, none: float = 0.2) -> AnswerClasses:
    """The rows with labels, by which class 0 is right, and verdicts: wrong answers lack more."""
    right = rows.classes == 0
    shape = right.shape
    high = np.maximum(*rng.integers(0, VERDICTS, (2, *shape)))
    verdicts = np.where(right, high, VERDICTS - 1 - high)
    is_none = rng.random(shape) < none * np.where(right, 0.5, 1.0)
    return replace(
        rows, labels=right, verdicts=np.where(is_none, NO_VERDICT, verdicts).astype(np.int8)
    )


def thresholds(critical: np.ndarray, alpha: float, delta: float | None = None) -> np.ndarray:
    """lambda_hat of many calibrations at once: critical scores (trials, n) to (trials, 1)."""
    n = critical.shape[1]
    misses = allowed_misses(n, alpha, delta)
    assert misses >= 0
    return np.sort(critical, axis=1)[:, n - 1 - misses, None]


def lost_at(s: np.ndarray, lost: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """The loss of the last round with s <= threshold: (trials, R), (trials, R), (trials, 1)."""
    rounds = (s <= threshold).sum(axis=1)
    return lost[np.arange(len(lost)), rounds - 1]
