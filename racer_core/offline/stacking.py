"""Fitting of the stacked vote on training rows, with candidates masked as in serving.

Fitted on full sets and used on small ones it would lose to the majority. Its router scores are
out-of-fold: the router that scores a row must not have been trained on that row's label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.batch import RowAnswers, one_hot
from racer_core.aggregation.leaders import ClassArray
from racer_core.aggregation.stacked import StackedVote, clipped_logit
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.base import EncoderOutput, EncoderSpec
from racer_core.errors import InputError
from racer_core.offline.one_thread import one_thread
from racer_core.offline.protocol import Rows
from racer_core.offline.selection import ScoredRows
from racer_core.routers.base import Batch, Router, on_grid
from racer_core.types import BoolArray, FloatArray, RiskTarget, Score, any_column

# Routers trained again on each fold. Others are too expensive for that or not trained here: their
# stacked vote is fitted on validation rows.
CROSS_FITTED = ("knn", "mlp")
_FOLDS = 5
# Levels of alpha whose cover sets are the masks, beside the full pool.
MASK_ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.4)
RIDGE = 10.0
_SLIGHT = 1e-3  # keeps the mean skill finite where every contested row agrees
_STEPS = 50
_DONE = 1e-8
MAX_CELLS = 1 << 21  # numbers held at once
MIN_ROWS = 50

Fit = Callable[[Batch, BoolArray], Router]


def out_of_fold(
    pool: tuple[str, ...],
    fingerprints: tuple[bytes, ...],
    batch: Batch,
    labels: BoolArray,
    fit: Fit,
    units: Rows | None = None,
) -> ScoredRows:
    """Training rows with out-of-fold router scores; no unit (n,) is in two folds."""
    units = np.arange(len(labels)) if units is None else units
    fold = units % min(_FOLDS, int(units.max()) + 1)
    scores = np.empty(labels.shape)
    for each in range(int(fold.max()) + 1):
        inside, outside = np.flatnonzero(fold == each), np.flatnonzero(fold != each)
        router = fit(_part(batch, outside), labels[outside])
        scores[inside] = router.predict(_part(batch, inside)).scores
    # Pattern ids of different folds are not comparable, so the tilt replaces neighbours.
    return ScoredRows(
        pool=pool,
        fingerprints=fingerprints,
        scores=on_grid(scores),
        neighbours=None,
        labels=labels,
    )


def stack(
    pool: tuple[str, ...],
    fingerprints: tuple[bytes, ...],
    batch: Batch,
    labels: BoolArray,
    answers: RowAnswers,
    fit: Fit,
    units: Rows | None = None,
) -> StackedVote | None:
    """:func:`fit_stacked` on rows scored :func:`out_of_fold`, where there are enough to fit it."""
    if not suffices(answers, labels):
        return None
    return fit_stacked(out_of_fold(pool, fingerprints, batch, labels, fit, units), answers)


def fit_stacked(rows: ScoredRows, answers: RowAnswers) -> StackedVote | None:
    """Maximise the conditional likelihood of the right answer, regularised towards equal votes.

    The penalty is on differences between candidates: with few rows the majority remains.

    Args:
        rows: Training rows scored out of fold.
        answers: The rows' answers.

    Returns:
        None if fewer than 50 rows have both a right and a wrong answer.
    """
    if not suffices(answers, rows.labels):
        return None
    by_name = sorted(range(len(rows.pool)), key=rows.pool.__getitem__)
    masks = [np.ones_like(rows.labels), *served_masks(rows)]
    masked = [answers.voted(mask, rows.scores, by_name) for mask in masks]
    contested = [_contested(each, rows.labels) for each in masked]
    votes = ContestedRows(
        classes=np.concatenate([c[keep] for c, keep in zip(masked, contested, strict=True)]),
        right=np.concatenate([rows.labels[keep] for keep in contested]),
        logits=np.concatenate([clipped_logit(rows.scores)[keep] for keep in contested]),
    )
    # Each mask repeats the same rows, so the penalty grows with the number of masks.
    with one_thread():
        weights = maximise_likelihood(votes, ridge_penalty(len(rows.pool), RIDGE * len(masks)))
    return StackedVote(rows.pool, *np.split(weights, 2))


@dataclass(frozen=True, slots=True)
class ContestedRows:
    """Rows with right and wrong answers: answers, labels and router logits, all (n, K)."""

    classes: ClassArray
    right: BoolArray
    logits: FloatArray

    def chunks(self) -> Iterator[tuple[FloatArray, BoolArray, BoolArray]]:
        """Pieces of the features (n, C, 2K), and of which answers exist and are right, (n, C)."""
        count = self.classes.shape[1]
        step = max(1, MAX_CELLS // (2 * count * count))
        for start in range(0, len(self.classes), step):
            part = slice(start, start + step)
            gave = one_hot(self.classes[part])
            logits = self.logits[part, None, :]
            features = np.concatenate(
                [gave.astype(np.float64), np.where(gave, logits, 0.0)], axis=2
            )
            right = np.asarray((gave & self.right[part, None, :]).any(axis=2), dtype=bool)
            yield features, np.asarray(gave.any(axis=2), dtype=bool), right


def served_masks(rows: ScoredRows) -> list[BoolArray]:
    """The cover sets of the rows themselves at several levels, shape (n, K) each."""
    options = CalibrationOptions(
        score=Score.COVER, risk_target=RiskTarget.ANSWERABLE, smoothing_salt=SMOOTHING_SALT
    )
    calibration = rows.calibration(options, PatternModel.of(rows.labels))
    return [
        calibration.sets(
            rows.scores,
            rows.fingerprints,
            calibration.lambda_hat(alpha, Score.COVER),
            Score.COVER,
        ).selected
        for alpha in MASK_ALPHAS
    ]


def suffices(answers: RowAnswers, labels: BoolArray) -> bool:
    """Whether the rows are enough for :func:`fit_stacked`."""
    return len(labels) >= MIN_ROWS <= int(np.count_nonzero(_contested(answers.classes, labels)))


def _contested(classes: ClassArray, labels: BoolArray) -> BoolArray:
    """Rows with both a right and a wrong answer among those given, shape (n,)."""
    given = classes >= 0
    return any_column(given & labels) & any_column(given & ~labels)


def ridge_penalty(count: int, ridge: float) -> FloatArray:
    """Quadratic form over (skill, trust): the spread of skills, and every trust."""
    form = ridge * np.eye(2 * count)
    form[:count, :count] -= (ridge - _SLIGHT) / count  # the mean skill is next to free
    return form


def maximise_likelihood(votes: ContestedRows, penalty: FloatArray) -> FloatArray:
    """The maximum of the penalised log-likelihood: weights (skill, trust), shape (2K,).

    Newton's method, starting from the majority vote, with step halving.
    """
    count = votes.classes.shape[1]
    weights: FloatArray = np.repeat([1.0, 0.0], count)
    value = penalised_log_likelihood(votes, weights, penalty)
    for _ in range(_STEPS):
        gradient, curvature = gradient_and_curvature(votes, weights, penalty)
        step: FloatArray = np.linalg.solve(curvature, gradient).astype(np.float64)
        while (better := penalised_log_likelihood(votes, weights + step, penalty)) < value:
            step = step / 2.0
            if _size(step) <= _DONE:
                return weights
        weights, value = weights + step, better
        if _size(step) <= _DONE:
            break
    return weights


def penalised_log_likelihood(
    votes: ContestedRows, weights: FloatArray, penalty: FloatArray
) -> float:
    """Log-likelihood of the right answers, less half the quadratic form ``penalty``."""
    total = -0.5 * float(weights @ penalty @ weights)
    for features, exists, right in votes.chunks():
        strength = np.where(exists, features @ weights, -np.inf)
        total += float((_log_sum(strength, right) - _log_sum(strength, exists)).sum())
    return total


def gradient_and_curvature(
    votes: ContestedRows, weights: FloatArray, penalty: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Gradient of the penalised likelihood, and its curvature as of the softmax alone."""
    gradient = -penalty @ weights
    curvature = penalty.copy()
    for features, exists, right in votes.chunks():
        strength = np.where(exists, features @ weights, -np.inf)
        model = np.exp(strength - _log_sum(strength, exists)[:, None])
        truth = np.where(right, model, 0.0)
        truth /= truth.sum(axis=1, keepdims=True)
        mean = np.einsum("nc,ncd->nd", model, features)
        gradient += np.einsum("nc,ncd->d", truth - model, features)
        flat = (features * np.sqrt(model)[:, :, None]).reshape(-1, len(weights))
        curvature += flat.T @ flat - mean.T @ mean
    return gradient, curvature


def _log_sum(strength: FloatArray, among: BoolArray) -> FloatArray:
    """Log of the sum of exp(strength) over some answers, shape (n,); each row has one."""
    return np.logaddexp.reduce(np.where(among, strength, -np.inf), axis=1)


def _size(step: NDArray[np.floating[Any]]) -> float:
    return float(np.abs(step).max())


def _part(batch: Batch, rows: NDArray[np.intp]) -> Batch:
    """Some rows of an embedded batch."""
    texts = [batch.texts[int(i)] for i in rows]
    encoded = EncoderOutput(batch.encoded.embeddings[rows], batch.encoded.truncated[rows])
    return Batch(texts, PrecomputedEncoder(batch.encoder.spec, encoded))


@dataclass(frozen=True, slots=True)
class PrecomputedEncoder:
    """An encoder that returns precomputed embeddings."""

    spec: EncoderSpec
    encoded: EncoderOutput

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """The precomputed embeddings."""
        if len(texts) != len(self.encoded.embeddings):
            raise InputError("these texts were not embedded")
        return self.encoded
