"""Calibration: labelled rows with their router scores, and all thresholds that follow from them.

Keeps the scores (n, K) and labels (n, K), not only lambda_hat, so that another alpha, another score
or a smaller pool is a look-up or a recomputation, never a new upload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from racer_core.calibration.answer_limit import AnswerLimit
from racer_core.calibration.augmentation import augment_truth, checked_scores, null_score
from racer_core.calibration.certificate import Certificate, CoreReason
from racer_core.calibration.decision import (
    Levels,
    ScoredBatch,
    Sets,
    decision_from_sets,
    scores_and_neighbours,
    whole_pool_decision,
)
from racer_core.calibration.density_ratio import CLIP, check_coverage, estimate_weights
from racer_core.calibration.loss_curve import (
    UNIT,
    IntArray,
    LossCurve,
    loss_units,
    shortfall_steps,
)
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.calibration.served_answer_risk import AnswerRisk, served_answer_risk
from racer_core.calibration.threshold import (
    allowed_misses,
    critical_scores,
    threshold_from_sorted,
)
from racer_core.errors import CalibrationError, InputError
from racer_core.renamed import renamed
from racer_core.types import (
    BINARY_TARGETS,
    BoolArray,
    FloatArray,
    IdArray,
    RiskTarget,
    RoutingDecision,
    Score,
    any_column,
    checked_alpha,
    checked_pool,
    enum_member,
)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Rows scored by the same function that scores queries in serving.

    Attributes:
        pool: The candidates, in the order of the columns.
        fingerprints: Keyed hashes of the rows' queries, so that no prompt is stored; they seed the
            smoothing.
        scores: f, shape (n, K), in [0, 1].
        labels: G, shape (n, K).
        options: The terms of the guarantee.
        neighbours: Pattern ids of each row's nearest training rows, shape (n, J); None for routers
            without neighbours and for rows uploaded with their own scores.
        projections: Each row's embedding on a few components, shape (n, d), for drift detection.
        patterns: The training rows' patterns, for the cover scores; None disables these scores.
        prices: Price per call of each candidate, above 0, for ``cover_cost``.
        groups: The group of each row; None if rows have no groups.
        quality: Quality of each candidate's answer, shape (n, K), in [0, 1]; None: not graded.
        weights: Density of served queries over that of rows, up to a constant, shape (n,); None:
            the rows are drawn as queries are.
        answer_limit: The limit on wrong final answers that thresholds keep; smaller pools and
            parts
            of the rows have none.
    """

    pool: tuple[str, ...]
    fingerprints: tuple[bytes, ...]
    scores: FloatArray
    labels: BoolArray
    options: CalibrationOptions
    neighbours: IdArray | None = None
    projections: FloatArray | None = None
    patterns: PatternModel | None = None
    prices: tuple[float, ...] | None = None
    groups: tuple[str | None, ...] | None = None
    quality: FloatArray | None = None
    weights: FloatArray | None = None
    answer_limit: AnswerLimit | None = None

    def __post_init__(self) -> None:
        """Check shapes and values once, so that no NaN reaches a sort."""
        # Column-major, so that reductions over candidates read memory in sequence.
        object.__setattr__(self, "scores", np.asfortranarray(checked_scores(self.scores)))
        object.__setattr__(self, "labels", np.asfortranarray(self.labels))
        rows, columns = shape = (len(self.fingerprints), len(self.pool))
        if self.scores.shape != shape or self.labels.shape != shape:
            raise CalibrationError(
                f"scores {self.scores.shape} and labels {self.labels.shape} must both be {shape}"
            )
        if self.patterns is not None and self.patterns.patterns.shape[1] != columns:
            raise CalibrationError(f"the training patterns do not have {columns} candidates")
        if self.neighbours is not None and len(self.neighbours) != rows:
            raise CalibrationError(f"{len(self.neighbours)} rows of neighbours for {rows} rows")
        if self.projections is not None and len(self.projections) != rows:
            raise CalibrationError(f"{len(self.projections)} projections for {rows} rows")
        if self.prices is not None and (
            len(self.prices) != columns or not all(0.0 < price < math.inf for price in self.prices)
        ):
            raise CalibrationError(f"prices must be {columns} numbers above 0")
        if self.groups is not None and len(self.groups) != rows:
            raise CalibrationError(f"{len(self.groups)} groups for {rows} rows")
        self._check_quality(shape)
        if self.weights is not None:
            object.__setattr__(self, "options", self._weighted_options(self.weights))
        elif self.options.max_weight is not None:
            raise CalibrationError("max_weight needs rows with weights")
        if self.options.score not in self._scorer.offered:
            raise CalibrationError(
                f"score {self.options.score.value!r} is not offered here; "
                f"choose one of {[score.value for score in self._scorer.offered]}"
            )

    def _check_quality(self, shape: tuple[int, int]) -> None:
        if self.quality is None:
            if self.options.risk_target == RiskTarget.QUALITY:
                raise CalibrationError(
                    "risk_target quality needs a quality of every candidate in every row"
                )
        elif self.quality.shape != shape:
            raise CalibrationError(f"qualities {self.quality.shape} must be {shape}")
        elif not ((self.quality >= 0.0) & (self.quality <= 1.0)).all():  # false for NaN, too
            raise CalibrationError("qualities must be numbers in [0, 1]")

    def _weighted_options(self, weights: FloatArray) -> CalibrationOptions:
        """The options with the largest weight, which every subset of the rows keeps."""
        if weights.shape != (len(self.fingerprints),):
            raise CalibrationError(f"{len(weights)} weights for {len(self.fingerprints)} rows")
        if not ((weights > 0.0) & np.isfinite(weights)).all():
            raise CalibrationError("weights must be above 0 and finite")
        if self.options.delta is not None:
            raise CalibrationError("delta needs rows of equal weight: leave it out, or the weights")
        largest = float(weights.max(initial=0.0))
        if self.options.max_weight is None:
            return replace(self.options, max_weight=largest or 1.0)
        if largest > self.options.max_weight:
            raise CalibrationError(
                f"a row has the weight {largest:g}, above max_weight {self.options.max_weight:g}"
            )
        return self.options

    @cached_property
    def effective_n(self) -> float:
        """Rows of equal weight that are worth the rows that count: (sum w)^2 / sum w^2."""
        if self.weights is None or not self.n:
            return float(self.n)
        counted = self.weights[self._counted] / self.weights.max()
        return float(counted.sum() ** 2 / (counted**2).sum())

    @cached_property
    def n(self) -> int:
        """Number of rows that count: all of them, or the answerable ones for ``answerable``.

        0 is possible for a sub-pool that no row covers: no threshold is then finite, and all of its
        candidates are called.
        """
        return int(self._counted.sum())

    @cached_property
    def queries(self) -> frozenset[bytes]:
        """The distinct fingerprints, to look a query up."""
        return frozenset(self.fingerprints)

    @cached_property
    def _counted(self) -> BoolArray:
        if self.options.risk_target == RiskTarget.ANSWERABLE:
            return any_column(self.labels)
        return np.ones(len(self.fingerprints), dtype=bool)

    @property
    def offered(self) -> tuple[Score, ...]:
        """The scores for which this calibration has thresholds."""
        return self._scorer.offered

    @cached_property
    def _scorer(self) -> NonconformityScorer:
        return NonconformityScorer(
            pool=self.pool,
            with_null=self.options.risk_target == RiskTarget.PAPER,
            patterns=self.patterns,
            prices=self.prices,
            smoothing_salt=self.options.smoothing_salt,
        )

    @cached_property
    def _sorted(self) -> dict[Score, FloatArray]:
        """Cache of ascending critical scores by kind of score."""
        return {}

    def _critical(self, score: Score) -> FloatArray:
        """Ascending s_i of the counted rows; +inf for rows that abstain."""
        if score not in self._sorted:
            self._sorted[score] = np.sort(self._unsorted(score))
        return self._sorted[score]

    def _unsorted(self, score: Score) -> FloatArray:
        return self._row_critical(score)[self._counted]

    def _row_critical(self, score: Score) -> FloatArray:
        """s_i of all rows; +inf for rows that abstain, meaningless for rows that do not count."""
        critical = np.empty(len(self.scores))
        for part, fit in self._nonconformity(score):
            truth = self._truth(self.labels[part])
            critical[part] = critical_scores(fit, truth, self.options.r)
        critical[self._null_abstains(self.scores)] = np.inf
        return critical

    def _nonconformity(self, score: Score) -> Iterator[tuple[slice, FloatArray]]:
        """S of the rows, in slices."""
        for part in self._scorer.slices(score, len(self.scores)):
            near = None if self.neighbours is None else self.neighbours[part]
            prints = self.fingerprints[part]
            yield part, self._scorer.nonconformity(score, self.scores[part], near, prints)

    @property
    def has_order_statistic(self) -> bool:
        """Whether the threshold is an order statistic of critical scores, and its risk a Beta law.

        Otherwise losses are graded or rows weighted, and a :class:`LossCurve` has the threshold.
        """
        return self.weights is None and self.options.risk_target in BINARY_TARGETS

    @cached_property
    def _curves(self) -> dict[Score, LossCurve]:
        """Cache of loss curves by kind of score."""
        return {}

    def loss_curve(self, score: Score) -> LossCurve:
        """The loss of the rows that count at every threshold, for any risk target and weights."""
        if score not in self._curves:
            graded = self.options.risk_target == RiskTarget.QUALITY
            steps, drops = self._shortfalls(score) if graded else self._misses_at(score)
            self._curves[score] = LossCurve.of(
                steps,
                drops,
                weights=None if self.weights is None else self.weights[self._counted],
                max_weight=self.options.max_weight or 1.0,
            )
        return self._curves[score]

    def _misses_at(self, score: Score) -> tuple[FloatArray, IntArray]:
        steps = self._unsorted(score)[:, None]
        return steps, np.full(steps.shape, UNIT)

    def _shortfalls(self, score: Score) -> tuple[FloatArray, IntArray]:
        assert self.quality is not None
        quality = loss_units(self.quality)
        steps, drops = np.empty(quality.shape), np.empty_like(quality)
        for part, fit in self._nonconformity(score):
            steps[part], drops[part] = shortfall_steps(fit, quality[part])
        steps[self._null_abstains(self.scores)] = np.inf
        return steps, drops

    def _truth(self, labels: BoolArray) -> BoolArray:
        """G' of rows; every column is right in a row that does not count."""
        paper = self.options.risk_target == RiskTarget.PAPER
        return augment_truth(labels) if paper else labels | ~any_column(labels)[:, None]

    def sort_scores(self) -> None:
        """Sort the critical scores of every offered score; ``lambda_hat`` is then a look-up."""
        for score in self.offered:
            self._critical(score) if self.has_order_statistic else self.loss_curve(score)

    @property
    def row_critical_scores(self) -> FloatArray:
        """s_i of the rows that count, ascending, for the calibration's own score."""
        return self._critical(self.options.score)

    def answer_risk(
        self, called: BoolArray, right: BoolArray, recorded: BoolArray
    ) -> AnswerRisk | None:
        """Bound P(final answer wrong | answered) at the threshold of the calibration's own alpha.

        Args:
            called: Rows of which some candidate is called at that threshold, shape (n,).
            right: Rows whose final answer is right, shape (n,).
            recorded: Rows whose answers were recorded, shape (n,). The bound is about such queries.

        Returns:
            None where abstentions exceed alpha, so that the rows decided to call the whole pool;
            None for graded losses and weights, whose threshold is no order statistic.
        """
        if not self.has_order_statistic:
            return None
        score, misses = self.options.score, self.misses()
        if misses >= 0 and math.isinf(self.lambda_hat()):
            return None
        refused = self._null_abstains(self.scores) & (misses >= 0)
        return served_answer_risk(
            np.where(self._counted, self._row_critical(score), np.nan),
            misses,
            eligible=recorded & ~refused,
            answered=recorded & called,
            right=recorded & called & right,
            may_be_empty=score == Score.PROB or self.options.risk_target == RiskTarget.PAPER,
        )

    def critical_scores_of(
        self,
        scores: FloatArray,
        fingerprints: Sequence[bytes],
        labels: BoolArray,
        neighbours: IdArray | None = None,
    ) -> FloatArray:
        """s_i of labelled queries that count, for the calibration's own score, as for its rows.

        Only for losses of 0 and 1: a graded loss falls at several scores.
        """
        self._check(scores, fingerprints, neighbours)
        fit = self._scorer.nonconformity(self.options.score, scores, neighbours, fingerprints)
        critical = critical_scores(fit, self._truth(labels), self.options.r)
        return np.where(self._null_abstains(scores), np.inf, critical)

    def _null_abstains(self, scores: FloatArray) -> BoolArray:
        tau = self.options.null_threshold
        if tau is None or self.options.risk_target == RiskTarget.PAPER:
            return np.zeros(len(scores), dtype=bool)
        return null_score(scores) >= tau

    def misses(self, alpha: float | None = None, delta: float | None = None) -> int:
        """Calibration rows that lambda_hat leaves uncovered; -1 when alpha is infeasible.

        Only where the threshold is an order statistic.
        """
        alpha = self.options.alpha if alpha is None else alpha
        return allowed_misses(self.n, alpha, delta if delta is not None else self.options.delta)

    def is_enough(self, alpha: float) -> bool:
        """Whether the rows that count are enough for alpha, if none of them abstained."""
        if self.has_order_statistic:
            return self.misses(alpha) >= 0
        return self.loss_curve(self.options.score).allowed(alpha, self.options.delta) >= 0

    def lambda_hat(
        self,
        alpha: float | None = None,
        score: Score | None = None,
        delta: float | None = None,
    ) -> float:
        """The threshold for any alpha: a look-up in the sorted critical scores. Eq. (6).

        Arguments that are None are those of ``options``. +inf calls the whole pool. With a limit on
        wrong answers it is the next larger threshold that keeps the limit, if there is one.
        """
        score = score or self.options.score
        if self.has_order_statistic:
            threshold = threshold_from_sorted(self._critical(score), self.misses(alpha, delta))
            limit = self.answer_limit
            if limit is None or score != self.options.score or math.isinf(threshold):
                return threshold
            return limit.served(threshold)
        alpha = self.options.alpha if alpha is None else alpha
        delta = self.options.delta if delta is None else delta
        return self.loss_curve(score).threshold(alpha, delta)

    def realised_risk(self, alpha: float, score: Score | None = None) -> RealisedRisk | None:
        """What the rows tell about the risk of the threshold.

        None if all candidates are called, or if graded losses or weights leave no exact law.
        """
        score = score or self.options.score
        if not self.has_order_statistic or math.isinf(self.lambda_hat(alpha, score)):
            return None
        misses = self.misses(alpha)
        critical, threshold = self._critical(score), self.lambda_hat(alpha, score)
        risk = RealisedRisk.of(critical, misses)
        if threshold == critical[critical.size - 1 - misses]:
            return risk
        missed = critical.size - int(np.searchsorted(critical, threshold, side="right"))
        return replace(risk, missed=missed, tied=0)  # a limit on wrong answers raised it

    def risk_q95(self, alpha: float) -> float | None:
        """95 % of calibration sets of this size have at most this risk; 94.9 % if scores tie.

        None if graded losses or weights leave no exact law.
        """
        if math.isinf(self.lambda_hat(alpha, self.options.score)):
            return 0.0
        risk = self.realised_risk(alpha)
        return None if risk is None else risk.upper()

    def risk_band(self, alpha: float, score: Score | None = None) -> float | None:
        """The bound on the risk at an alpha that may have been chosen by looking at the rows.

        None as for :meth:`risk_q95`.
        """
        if math.isinf(self.lambda_hat(alpha, score)):
            return 0.0
        risk = self.realised_risk(alpha, score)
        return None if risk is None else risk.band()

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
            fingerprints: Keyed hashes of the queries; only smoothing reads them.

        Raises:
            InputError: The scores are outside [0, 1], or do not fit the pool or the rows.
        """
        f, near = scores_and_neighbours(scores)
        score = self.options.score if score is None else enum_member(Score, score, "score")
        if fingerprints is None:
            if self.options.smoothing_salt is not None:
                raise InputError("smoothing needs the fingerprints of the queries")
            fingerprints = (b"",) * len(f)
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

        At +inf no query abstains: rows that abstain have the critical score +inf, so only the whole
        pool covers them, and an infeasible alpha must give the whole pool.
        """
        self._check(scores, fingerprints, neighbours)
        fit = self._scorer.nonconformity(score, scores, neighbours, fingerprints)
        return self._sets_of(fit, scores, lambda_hat)

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

    def _sets_of(self, fit: FloatArray, scores: FloatArray, lambda_hat: float) -> Sets:
        inside = prediction_sets(fit, lambda_hat)
        abstains = self._null_abstains(scores) & math.isfinite(lambda_hat)
        count = len(self.pool)
        null = inside[:, count] if inside.shape[1] > count else np.zeros(len(scores), dtype=bool)
        return Sets(
            selected=inside[:, :count] & ~abstains[:, None],
            null_selected=null | abstains,
            null_abstained=abstains,
        )

    def decide(
        self,
        fingerprint: bytes,
        scores: Sequence[float],
        *,
        neighbours: IdArray | None = None,
        alpha: float | None = None,
        score: Score | None = None,
        truncated: bool = False,
    ) -> RoutingDecision:
        """Choose the set for one query from its router scores f, in the order of the pool.

        ``neighbours`` are the pattern ids (J,) that the router returned with the scores, if any.
        """
        alpha = self.options.alpha if alpha is None else alpha
        return self.levels(
            fingerprint,
            scores,
            (alpha,),
            neighbours=neighbours,
            score=score,
            truncated=truncated,
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
    ) -> Levels:
        """Choose the set for one query at several alphas; nonconformity is computed once."""
        score = enum_member(Score, score or self.options.score, "score")
        thresholds = [self.lambda_hat(checked_alpha(alpha), score) for alpha in alphas]
        row = checked_scores(np.array([scores], dtype=np.float64))
        near = None if neighbours is None or self.neighbours is None else neighbours[None, :]
        self._check(row, [fingerprint], near)
        fit = self._scorer.nonconformity(score, row, near, [fingerprint])
        return Levels(
            nonconformity=tuple(fit[0, : len(self.pool)].tolist()),
            decisions=tuple(
                decision_from_sets(
                    self._sets_of(fit, row, lambda_hat),
                    self.pool,
                    row[0],
                    alpha=alpha,
                    score=score,
                    lambda_hat=lambda_hat,
                    truncated=truncated,
                )
                for alpha, lambda_hat in zip(alphas, thresholds, strict=True)
            ),
        )

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

    def certify(
        self,
        decision: RoutingDecision | None = None,
        *,
        alpha: float | None = None,
        score: Score | None = None,
        reasons: Iterable[str] = (),
    ) -> Certificate:
        """Certify a decision that this calibration made, or all sets of one :meth:`predict`.

        Args:
            decision: From :meth:`decide`, :meth:`levels` or ``Racer.route_batch``; None certifies
                the sets that ``predict`` gives for alpha and score.
            alpha: Without a decision, as for :meth:`predict`.
            score: Without a decision, as for :meth:`predict`.
            reasons: Further failed premises, which the calibration cannot see.

        Returns:
            The certificate. Its group is that of the rows, where all have the same.
        """
        if decision is not None and not decision.trivial:
            score = enum_member(Score, decision.score, "score")
            made_here = decision.lambda_hat == self.lambda_hat(decision.alpha, score)
            if not (made_here and set(decision.selected) <= set(self.pool)):
                raise InputError(
                    "another calibration made this decision: certify it with that one, such as "
                    "calibration.group(name) or calibration.restrict(names)"
                )
        if decision is None:
            decision = RoutingDecision(
                selected=(),
                scores=(),
                null_selected=False,
                alpha=self.options.alpha if alpha is None else alpha,
                score=enum_member(Score, score or self.options.score, "score"),
                lambda_hat=self.lambda_hat(alpha, score),
                truncated=False,
            )
        facts = (
            (decision.alpha != self.options.alpha, CoreReason.ALPHA_ASSUMED),
            (decision.score != self.options.score, CoreReason.SCORE_ASSUMED),
            (decision.trivial, self.trivial_reason(decision.alpha)),
        )
        groups = set(self.groups or ())
        return Certificate.of(
            self.options,
            decision,
            pool=self.pool,
            n=self.n,
            risk_band=0.0 if decision.trivial else self.risk_band(decision.alpha, decision.score),
            answer_limit=self.answer_limit if decision.score == self.options.score else None,
            group=groups.pop() if len(groups) == 1 else None,
            reasons=(*reasons, *(reason for is_so, reason in facts if is_so)),
        )

    def trivial_reason(self, alpha: float) -> CoreReason:
        """Why no finite threshold is valid for ``alpha``, if none is."""
        if not self.is_enough(alpha):
            return CoreReason.ALPHA_INFEASIBLE
        return CoreReason.ABSTENTION_EXCEEDS_ALPHA

    def restrict(self, names: Sequence[str]) -> Calibration:
        """The same rows for a smaller pool: G', scores and every threshold are recomputed.

        Valid when the cause lies outside the query: an outage, a key's allow-list.
        """
        if unknown := [name for name in names if name not in self.pool]:
            raise InputError(f"{unknown[0]!r} is not in the pool", param="candidates")
        columns = [self.pool.index(name) for name in names]
        return replace(
            self,
            pool=checked_pool(names),
            answer_limit=None,
            scores=self.scores[:, columns],
            labels=self.labels[:, columns],
            patterns=None if self.patterns is None else self.patterns.restrict(columns),
            prices=None if self.prices is None else tuple(self.prices[i] for i in columns),
            quality=None if self.quality is None else self.quality[:, columns],
        )

    def group(self, name: str | None) -> Calibration:
        """The rows of one group, for a threshold of its own: P(miss | group) <= alpha (Mondrian).

        Rows without a group (None) are a group like any other. A group is never joined with others
        because its rows are few: which ones are would depend on the counts drawn, and the joined
        rows would have fewer of a group than the queries that they serve. With too few rows no
        threshold is finite. The group must be known in serving, as a function of the query or of
        the caller.
        """
        groups = self.groups or (None,) * len(self.fingerprints)
        return self.take([i for i, group in enumerate(groups) if group == name])

    def reweighted(self, served: FloatArray) -> Calibration:
        """The rows with weights estimated for the population of served queries: approximate.

        No certificate holds on estimated weights (``weights_estimated``).

        Args:
            served: Embeddings of unlabelled queries, on the components of ``projections``, (m, d).

        Raises:
            CalibrationError: Rows have no embeddings or have weights already, queries or rows are
                too few, or the rows do not cover the served queries.
        """
        if self.projections is None:
            raise CalibrationError("the rows have no embeddings to estimate weights from")
        if self.weights is not None:
            raise CalibrationError("the rows have weights already: leave these out, or estimate")
        weights = estimate_weights(self.projections, served, self.fingerprints)
        estimated = replace(
            self,
            weights=weights,
            options=replace(self.options, max_weight=CLIP, has_estimated_weights=True),
        )
        check_coverage(weights, estimated.effective_n)
        return estimated

    def take(self, rows: list[int]) -> Calibration:
        """The calibration on a subset of the rows."""
        return replace(
            self,
            answer_limit=None,
            fingerprints=tuple(self.fingerprints[i] for i in rows),
            scores=self.scores[rows],
            labels=self.labels[rows],
            neighbours=None if self.neighbours is None else self.neighbours[rows],
            projections=None if self.projections is None else self.projections[rows],
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            quality=None if self.quality is None else self.quality[rows],
            weights=None if self.weights is None else self.weights[rows],
        )


__getattr__ = renamed(
    __name__,
    {"choose_null_threshold": "racer_core.calibration.null_threshold.choose_null_threshold"},
)
