"""Confidence bound on the rate of wrong final answers at the threshold that the same rows set.

P(final answer wrong | answered) need not be monotone in the threshold, and the rows chose it. If
the vote is worse just where the rows happen to put the threshold, Clopper-Pearson on their answers
fails, and so does a bound from thresholds that are not served. No row is kept back all the same:

**Theorem.** Order the rows that count by critical score; put right ones first among ties, then
break ties by independent uniforms. Let T be the k-th of them: the threshold row. Let N rows be
i.i.d. from the queries that may be answered, and B of them be before T and right at T's threshold.
Then P(right and before T), given T, is at least the lower confidence *band* of the distribution
function of N uniforms at the count B, with probability 1 - delta.

Proof. Given T and how many rows are before it, these are i.i.d., and each is right with a
probability that depends on T alone. Write their places as uniforms V_i in [0, v(T)), and call a row
right if V_i < x(T), with x(T) = P(right and before T): the pair (T, B) keeps its law. So
B = #{V_i < x(T)}. The band bounds x from below by #{V_i < x} for all x at once, hence for x(T).

The same holds from the other end for right rows after T, which matter where many rows tie with it.
Whether the set of a query is empty is monotone in the threshold, so that its rate has a band, too.
The three take 3/5, 1/5 and 1/5 of delta, and P(wrong | answered) = 1 - P(right) / P(answered).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from racer_core.calibration.laws import simultaneous_risk_bound
from racer_core.calibration.learn_then_test import clopper_pearson_upper
from racer_core.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRisk:
    """The rate of wrong final answers at the served threshold.

    Attributes:
        errors: Rows with a wrong final answer.
        answered: Rows with a final answer.
        upper: P(wrong | answered) is at most this, with probability 1 - ``delta`` over rows.
        delta: See ``upper``.
    """

    errors: int
    answered: int
    upper: float
    delta: float

    @property
    def rate(self) -> float:
        """The share of wrong answers; NaN when nothing was answered."""
        return self.errors / self.answered if self.answered else math.nan


def served_answer_risk(
    critical: FloatArray,
    misses: int,
    *,
    eligible: BoolArray,
    answered: BoolArray,
    right: BoolArray,
    may_be_empty: bool,
    delta: float = 0.05,
) -> AnswerRisk:
    """Bound P(final answer wrong | answered) at the threshold that these rows set.

    Args:
        critical: s_i, shape (N,), in any order; NaN for rows that do not count for the risk.
        misses: Rows that the threshold may leave uncovered; -1 if the whole pool is called.
        eligible: Rows whose answers were recorded. The bound is about such queries, shape (N,).
        answered: Eligible rows with a final answer at the threshold, shape (N,).
        right: Answered rows whose final answer is right, shape (N,).
        may_be_empty: Whether an eligible query can be refused, or its set empty, at some threshold.
        delta: Probability that the bound fails.
    """
    errors, answers = int(np.count_nonzero(answered & ~right)), int(np.count_nonzero(answered))
    rows = int(np.count_nonzero(eligible))
    if misses < 0 or not answers:  # the whole pool is called, whatever the rows
        upper = clopper_pearson_upper(errors, answers, delta)
        return AnswerRisk(errors=errors, answered=answers, upper=upper, delta=delta)
    ascending: FloatArray = np.sort(critical[~np.isnan(critical)])
    threshold = float(ascending[ascending.size - 1 - misses])
    before = int(np.searchsorted(ascending, threshold, side="left"))
    tied_before = ascending.size - 1 - misses - before
    tied = int(right[critical == threshold].sum())
    first = int(right[critical < threshold].sum()) + min(tied, tied_before)
    # The threshold row itself is not among the rows after it.
    then = max(tied - min(tied, tied_before) - 1, 0)
    part = delta / 5.0  # for each of the smaller terms
    p_right = 1.0 - _upper_band(rows - first, rows, delta - 2.0 * part)
    p_right += max(0.0, then / rows - _dkw(rows, part))
    p_answered = 1.0
    if may_be_empty:
        p_answered -= max(0.0, 1.0 - answers / rows - _dkw(rows, part))
    upper = min(max(1.0 - p_right / p_answered, 0.0), 1.0)
    return AnswerRisk(errors=errors, answered=answers, upper=upper, delta=delta)


def _upper_band(count: int, rows: int, delta: float) -> float:
    """Two bands at delta / 2 each: the first is closer for small counts, the second for others."""
    if count >= rows:
        return 1.0
    return min(
        simultaneous_risk_bound(rows, count, delta / 2.0), count / rows + _dkw(rows, delta / 2.0)
    )


def _dkw(rows: int, delta: float) -> float:
    """The distance that an empirical distribution function exceeds on one side, at any place.

    References:
        Dvoretzky, Kiefer & Wolfowitz 1956 with the constant of Massart 1990; delta <= 1/2.
    """
    return math.sqrt(math.log(1.0 / delta) / (2.0 * rows))
