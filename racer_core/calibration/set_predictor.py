"""Set predictor: prediction sets and routing decisions for queries, at calibrated thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from racer_core.calibration.augmentation import checked_scores
from racer_core.calibration.decision import (
    Levels,
    ScoredBatch,
    Sets,
    decision_from_sets,
    score_prints,
    scores_and_neighbours,
    whole_pool_decision,
)
from racer_core.calibration.kept_order import Continuation, kept_orders, placed
from racer_core.calibration.risk_control import RiskControl
from racer_core.errors import InputError
from racer_core.types import (
    BoolArray,
    FloatArray,
    IdArray,
    RoutingDecision,
    Score,
    checked_alpha,
    enum_member,
)


class SetPredictor(RiskControl):
    """Calibration rows that predict sets: for a batch, or one query's with its decision."""

    def predict(
        self,
        scores: ArrayLike | ScoredBatch,
        *,
        alpha: float | None = None,
        score: Score | None = None,
        groups: Sequence[str | None] | None = None,
        fingerprints: Sequence[bytes] | None = None,
    ) -> BoolArray:
        """Prediction sets of a batch, shape (B, K). Eq. (4). A row of False is an abstention.

        Args:
            scores: f, shape (B, K), in [0, 1], or the router's output for the batch.
            alpha: Risk level in (0, 1); None takes that of ``options``. Choose it independently of
                the queries.
            score: Nonconformity score; None takes that of ``options``.
            groups: The group of each query, (B,). Each group has a threshold of its own rows, and
                P(miss | group) <= alpha; a group with too few rows gets the whole pool. None takes
                the threshold of all rows.
            fingerprints: Keyed hashes of the queries, which break ties; None: their scores do.

        Raises:
            InputError: The scores are outside [0, 1], or do not fit the pool or the rows.
        """
        f, near = scores_and_neighbours(scores)
        score = self.options.score if score is None else enum_member(Score, score, "score")
        if fingerprints is None:
            fingerprints = score_prints(f, near)
        if groups is not None and len(groups) != len(f):
            raise InputError(f"{len(groups)} groups for {len(f)} queries", param="groups")
        names = [None] * len(f) if groups is None else groups
        selected = np.zeros(f.shape, dtype=bool)
        for name in dict.fromkeys(names):
            part = [i for i, each in enumerate(names) if each == name]
            rows = self if groups is None else self.group(name)
            selected[part] = rows.sets(
                f[part],
                [fingerprints[i] for i in part],
                rows.lambda_hat(alpha, score),
                score,
                None if near is None else near[part],
            ).selected
        return selected

    def sets(
        self,
        scores: FloatArray,
        fingerprints: Sequence[bytes],
        lambda_hat: float,
        score: Score,
        neighbours: IdArray | None = None,
    ) -> Sets:
        """Prediction sets at a threshold for scores (B, K) and neighbours (B, J). Eq. (4).

        At +inf every query gets the whole pool, and none abstains.
        """
        self._check(scores, fingerprints, neighbours)
        fit = self._scorer.nonconformity(score, scores, neighbours, fingerprints)
        return self.rules.sets(fit, scores, lambda_hat)

    def decide(
        self,
        fingerprint: bytes,
        scores: Sequence[float],
        *,
        neighbours: IdArray | None = None,
        alpha: float | None = None,
        score: Score | None = None,
        truncated: bool = False,
        continuation: Continuation | None = None,
    ) -> RoutingDecision:
        """Choose the set for one query from its router scores f, in the order of the pool.

        ``neighbours`` are the pattern ids (J,) that the router returned with the scores, if any.
        ``continuation`` makes it a turn of a conversation, whose order it keeps.
        """
        alpha = self.options.alpha if alpha is None else alpha
        return self.levels(
            fingerprint,
            scores,
            (alpha,),
            neighbours=neighbours,
            score=score,
            truncated=truncated,
            continuation=continuation,
        ).decisions[0]

    def levels(
        self,
        fingerprint: bytes,
        scores: Sequence[float],
        alphas: Sequence[float],
        *,
        neighbours: IdArray | None = None,
        score: Score | None = None,
        truncated: bool = False,
        continuation: Continuation | None = None,
    ) -> Levels:
        """Choose the set for one query at several alphas; nonconformity is computed once."""
        score = enum_member(Score, score or self.options.score, "score")
        thresholds = [self.lambda_hat(checked_alpha(alpha), score) for alpha in alphas]
        row = checked_scores(np.array([scores], dtype=np.float64))
        near = None if neighbours is None or self.neighbours is None else neighbours[None, :]
        self._check(row, [fingerprint], near)
        fit = self._scorer.nonconformity(score, row, near, [fingerprint])
        decide = partial(
            decision_from_sets, pool=self.pool, scores=row[0], score=score, truncated=truncated
        )
        decisions = [
            decide(self.rules.sets(fit, row, lambda_hat), alpha=alpha, lambda_hat=lambda_hat)
            for alpha, lambda_hat in zip(alphas, thresholds, strict=True)
        ]
        if continuation is not None:
            order, fit = self._continued(score, fit, row, continuation)
            for place, plain in enumerate(decisions):
                sets = self.rules.sets(fit, row, plain.lambda_hat)
                kept = decide(sets, alpha=plain.alpha, lambda_hat=plain.lambda_hat)
                is_kept = set(kept.selected) != set(plain.selected)
                decisions[place] = replace(kept, order=order, is_kept=is_kept)
        return Levels(
            nonconformity=tuple(fit[0, : len(self.pool)].tolist()), decisions=tuple(decisions)
        )

    def _continued(
        self, score: Score, fit: FloatArray, row: FloatArray, continuation: Continuation
    ) -> tuple[tuple[str, ...], FloatArray]:
        """The kept order of a turn, and s' of its candidates, shape (1, C)."""
        cold, warm = self._worth(score, row, np.array([astuple(continuation.sizes)]))
        before = continuation.columns(self.pool)
        orders = kept_orders(fit[:, : len(self.pool)], cold, warm, before)
        columns: list[int] = orders[0].tolist()
        return tuple(map(self.pool.__getitem__, columns)), placed(fit, orders)

    def whole_pool(
        self,
        scores: Sequence[float],
        *,
        alpha: float | None = None,
        score: Score | None = None,
        truncated: bool = False,
    ) -> RoutingDecision:
        """The decision to call the whole pool, for queries without a usable threshold or score."""
        return whole_pool_decision(
            self.pool,
            scores,
            risk_target=self.options.risk_target,
            alpha=self.options.alpha if alpha is None else checked_alpha(alpha),
            score=score or self.options.score,
            truncated=truncated,
        )

    def critical_scores_of(
        self,
        scores: FloatArray,
        fingerprints: Sequence[bytes],
        labels: BoolArray,
        neighbours: IdArray | None = None,
        *,
        score: Score | None = None,
    ) -> FloatArray:
        """s_i of labelled queries as of the calibration's rows, for its own score or another.

        Only for losses of 0 and 1, and meaningless for queries that do not count.
        """
        self._check(scores, fingerprints, neighbours)
        score = score or self.options.score
        fit = self._scorer.nonconformity(score, scores, neighbours, fingerprints)
        return self.rules.critical_scores(fit, scores, labels)

    def _check(
        self, scores: FloatArray, fingerprints: Sequence[bytes], neighbours: IdArray | None
    ) -> None:
        if scores.shape != (len(fingerprints), len(self.pool)):
            raise InputError(
                f"scores of shape {scores.shape} for {len(fingerprints)} queries and a pool of "
                f"{len(self.pool)}",
                param="scores",
            )
        if (neighbours is None) != (self.neighbours is None):
            raise InputError(
                "the calibration rows were scored by another kind of router: calibrate again",
                param="scores",
            )
