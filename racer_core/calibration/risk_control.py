"""Conformal risk control over calibration rows: the threshold of every alpha, and its risk."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from racer_core.calibration.calibration_rows import CalibrationRows
from racer_core.calibration.judge_correction import (
    CorrectedThresholds,
    JudgeErrors,
    Losses,
    Parts,
    alpha_grid,
    corrected_thresholds,
)
from racer_core.calibration.kept_order import COMPUTED, conversation_scores, warm_costs
from racer_core.calibration.loss_curve import (
    SCALE,
    IntArray,
    LossCurve,
    RowLosses,
    scaled_losses,
    shortfall_steps,
    unit_steps,
)
from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.calibration.served_answer_risk import AnswerRisk, served_answer_risk
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from racer_core.errors import CalibrationError
from racer_core.types import BoolArray, FloatArray, RiskTarget, Score


class RiskControl(CalibrationRows):
    """Calibration rows with the thresholds that follow from them, and what is known of their risk.

    Critical scores are sorted once for each nonconformity score.
    """

    def __post_init__(self) -> None:
        """Check the rows, and that their score can be computed."""
        super().__post_init__()
        if self.options.score not in self._scorer.offered:
            raise _not_offered(self.options.score, self._scorer.offered)

    @property
    def offered(self) -> tuple[Score, ...]:
        """The scores for which this calibration has thresholds.

        Judged rows have those of their own score alone: computing others would take seconds.
        """
        return self._scorer.offered if self.judged is None else (self.options.score,)

    @cached_property
    def _scorer(self) -> NonconformityScorer:
        return NonconformityScorer(
            pool=self.pool,
            with_null=self.options.risk_target == RiskTarget.PAPER,
            patterns=self.patterns,
            prices=self.prices,
            smoothing_salt=self.options.smoothing_salt,
        )

    @property
    def has_order_statistic(self) -> bool:
        """Whether the threshold is an order statistic of critical scores, and its risk a Beta law.

        Otherwise losses are graded or those of conversations, or rows weighted, and a
        :class:`LossCurve` has the threshold; or a judge's verdicts are corrected, by
        ``judge_correction``.
        """
        return self.options.law == "beta"

    def misses(self, alpha: float | None = None, delta: float | None = None) -> int:
        """Calibration rows that lambda_hat leaves uncovered; -1 when alpha is infeasible.

        Only where the threshold is an order statistic.
        """
        alpha = self.options.alpha if alpha is None else alpha
        return allowed_misses(self.n, alpha, delta if delta is not None else self.options.delta)

    def is_enough(self, alpha: float) -> bool:
        """Whether the rows that count are enough for alpha, if none of them abstained.

        Of judged rows those that people labelled have to be enough.
        """
        if self.has_order_statistic or self.judged is not None:
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
        wrong answers it is the next larger threshold that keeps the limit, if there is one. For
        judged rows alpha is rounded down, see ``alpha_grid``, and delta is that of ``options``.
        """
        score = score or self.options.score
        if self.judged is not None:
            if delta not in (None, self.options.delta):
                raise CalibrationError("judged rows have thresholds for their own delta alone")
            corrected = self.corrected(score)
            return corrected.threshold(self.options.alpha if alpha is None else alpha)
        if self.has_order_statistic:
            threshold = threshold_from_sorted(self._critical(score), self.misses(alpha, delta))
            limit = self.answer_limit
            if limit is None or score != self.options.score or math.isinf(threshold):
                return threshold
            return limit.served(threshold)
        alpha = self.options.alpha if alpha is None else alpha
        delta = self.options.delta if delta is None else delta
        return self.loss_curve(score).threshold(alpha, delta)

    def sort_scores(self) -> None:
        """Sort the critical scores of every offered score; ``lambda_hat`` is then a look-up."""
        for score in self.offered:
            if self.judged is not None:
                self.corrected(score)
            else:
                self._critical(score) if self.has_order_statistic else self.loss_curve(score)

    @property
    def row_critical_scores(self) -> FloatArray:
        """s_i of the rows that count, ascending, for the calibration's own score."""
        return self._critical(self.options.score)

    @cached_property
    def _sorted(self) -> dict[Score, FloatArray]:
        """Cache of ascending critical scores by kind of score."""
        return {}

    def _critical(self, score: Score) -> FloatArray:
        """Ascending s_i of the counted rows."""
        if score not in self._sorted:
            self._sorted[score] = np.sort(self._unsorted(score))
        return self._sorted[score]

    def _unsorted(self, score: Score) -> FloatArray:
        return self._row_critical(score)[self._counted]

    def _row_critical(self, score: Score) -> FloatArray:
        """s_i of all rows, +inf for unlabelled ones, meaningless for rows that do not count."""
        critical = self._critical_of(self.labels, score)
        if self.unlabelled is not None:
            critical[self.unlabelled] = np.inf
        return critical

    def _critical_of(self, labels: BoolArray, score: Score) -> FloatArray:
        """s_i of all rows by these labels (n, K)."""
        critical = np.empty(len(self.scores))
        for part, fit in self._nonconformity(score):
            critical[part] = self.rules.critical_scores(fit, self.scores[part], labels[part])
        return critical

    @cached_property
    def _corrected(self) -> dict[Score, CorrectedThresholds]:
        """Cache of corrected thresholds by kind of score."""
        return {}

    def corrected(self, score: Score) -> CorrectedThresholds:
        """The thresholds of judged rows, by people's labels and a judge's verdicts.

        Raises:
            CalibrationError: The score is not that of ``options``.
        """
        assert self.judged is not None
        assert self.options.delta is not None
        if score not in self.offered:
            raise _not_offered(score, self.offered)
        if score not in self._corrected:
            verdicts = self.judged > 0
            fits = [fit[:, : len(self.pool)] for _, fit in self._nonconformity(score)]
            self._corrected[score] = corrected_thresholds(
                self._losses(self.labels, score),
                self._losses(verdicts, score),
                Parts.of(self.fingerprints, ~self._without_labels, self._has_verdicts),
                alpha_grid(self.options.alpha),
                self.options.delta,
                nonconformity=np.concatenate(fits),
            )
        return self._corrected[score]

    def judge_errors(self) -> JudgeErrors | None:
        """The judge's errors on the rows that people labelled; None: there are no such rows."""
        both = self._has_verdicts & ~self._without_labels
        if self.judged is None or not both.any():
            return None
        return JudgeErrors.of(self.labels[both], self.judged[both] > 0)

    def _losses(self, labels: BoolArray, score: Score) -> Losses:
        """Losses by these labels; a row without verdicts counts, and is missed at every level."""
        without = ~self._has_verdicts
        critical = self._critical_of(labels, score)
        critical[without] = np.inf
        return Losses(critical=critical, counted=self.rules.counted(labels) | without)

    def _nonconformity(self, score: Score) -> Iterator[tuple[slice, FloatArray]]:
        """S of the rows, in slices; of conversations all at once, in the kept order."""
        if self.conversations is not None:
            yield slice(None), self.row_nonconformity(score)
            return
        for part in self._scorer.slices(score, len(self.scores)):
            near = None if self.neighbours is None else self.neighbours[part]
            prints = self.fingerprints[part]
            yield part, self._scorer.nonconformity(score, self.scores[part], near, prints)

    def row_nonconformity(self, score: Score) -> FloatArray:
        """S of all rows, shape (n, K + 1) with the null model; of conversations in kept order."""
        near, prints = self.neighbours, self.fingerprints
        fit = self._scorer.nonconformity(score, self.scores, near, prints)
        if self.conversations is None:
            return fit
        assert self.turn_sizes is not None
        worth = self._worth(score, self.scores, self.turn_sizes)
        return conversation_scores(fit, *worth, self.conversations)

    def row_losses(self, score: Score) -> RowLosses:
        """The losses of the rows that count."""
        if self.options.risk_target == RiskTarget.QUALITY:
            steps, drops = self._shortfalls(score)
            return RowLosses(scores=steps, drops=drops)
        return RowLosses.of_misses(self._unsorted(score))

    def _worth(
        self, score: Score, scores: FloatArray, sizes: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What candidates are worth with a cold and with a warm cache; see ``kept_order``.

        Args:
            score: The nonconformity score.
            scores: f, shape (B, K).
            sizes: Lengths of the turns, shape (B, 3).
        """
        prices = self.token_prices or (COMPUTED,) * len(self.pool)
        warm = scores + self.options.alpha * (1.0 - warm_costs(sizes, prices))
        if score == Score.COVER_COST and self.prices is not None:
            of_call = np.array(self.prices)
            return scores / of_call, warm / of_call
        return scores, warm

    @cached_property
    def _curves(self) -> dict[Score, LossCurve]:
        """Cache of loss curves by kind of score."""
        return {}

    def loss_curve(self, score: Score) -> LossCurve:
        """The loss of the rows that count at every threshold, for any risk target and weights."""
        if score not in self._curves:
            losses, units = self.row_losses(score), None
            steps, drops = losses.scores, losses.drops
            if self.conversations is not None:
                steps, drops = unit_steps(steps, drops, self.conversations[self._counted])
                units = self.n
            self._curves[score] = LossCurve.of(
                steps,
                drops,
                units=units,
                weights=None if self.weights is None else self.weights[self._counted],
                max_weight=self.options.max_weight or 1.0,
            )
        return self._curves[score]

    def _shortfalls(self, score: Score) -> tuple[FloatArray, IntArray]:
        assert self.quality is not None
        quality = scaled_losses(self.quality)
        steps, drops = np.empty(quality.shape), np.empty_like(quality)
        for part, fit in self._nonconformity(score):
            steps[part], drops[part] = shortfall_steps(fit, quality[part])
        steps = np.maximum(steps, self.rules.undone(self.scores)[:, None])
        if self.unlabelled is not None:  # they lose 1 at every finite threshold
            steps[self.unlabelled], drops[self.unlabelled] = np.inf, 0
            drops[self.unlabelled, 0] = SCALE
        return steps, drops

    def realised_risk(self, alpha: float, score: Score | None = None) -> RealisedRisk | None:
        """What the rows tell about the risk of the threshold.

        None if all candidates are called, or if graded losses or weights leave no exact law.
        """
        score = score or self.options.score
        if not self.has_order_statistic or math.isinf(self.lambda_hat(alpha, score)):
            return None
        misses = self.misses(alpha)
        critical, threshold = self._critical(score), self.lambda_hat(alpha, score)
        risk = replace(RealisedRisk.of(critical, misses), unlabelled=self.unlabelled_rows)
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

    def picked_bound(
        self, alpha: float, score: Score | None = None, levels: Collection[float] = ()
    ) -> float | None:
        """The bound on the risk at an alpha that may have been chosen by looking at the rows.

        Of a declared level it is the one that holds for all declared levels together; of any other
        the band over all.

        Args:
            alpha: The risk level.
            score: The nonconformity score; of another than that of ``options`` none is declared.
            levels: Those that were declared before the rows were seen.

        Returns:
            None as for :meth:`risk_q95`.
        """
        score = score or self.options.score
        if alpha not in levels or score != self.options.score:
            return self.risk_band(alpha, score)
        if math.isinf(self.lambda_hat(alpha, score)):
            return 0.0
        risk = self.realised_risk(alpha, score)
        return None if risk is None else risk.declared(len(levels))

    def answer_risk(
        self, called: BoolArray, right: BoolArray, recorded: BoolArray
    ) -> AnswerRisk | None:
        """Bound P(final answer wrong | answered) at the threshold of the calibration's own alpha.

        Args:
            called: Rows of which some candidate is called at that threshold, shape (n,).
            right: Rows whose final answer is right, shape (n,).
            recorded: Rows whose answers were recorded, shape (n,). The bound is about such queries.

        Returns:
            None where unlabelled rows exceed alpha, so that the rows decided to call the whole
            pool; None for graded losses and weights, whose threshold is no order statistic.
        """
        if not self.has_order_statistic:
            return None
        score, misses = self.options.score, self.misses()
        if misses >= 0 and math.isinf(self.lambda_hat()):
            return None
        return served_answer_risk(
            np.where(self._counted, self._row_critical(score), np.nan),
            misses,
            eligible=recorded,
            answered=recorded & called,
            right=recorded & called & right,
            may_be_empty=score == Score.PROB
            or self.options.risk_target == RiskTarget.PAPER
            or self.options.null_threshold is not None,
        )


def _not_offered(score: Score, offered: Iterable[Score]) -> CalibrationError:
    return CalibrationError(
        f"score {score.value!r} is not offered here; "
        f"choose one of {[each.value for each in offered]}"
    )
