"""Risk estimates in production: from a shadow sample with intervals, from feedback as bounds.

Users judge the candidates that were called; whether an uncalled one was right stays unknown. A
shadow sample (all candidates called and judged, at a rate pi, weight 1 / pi) is the only unbiased
source; feedback alone identifies risk up to a range, and is reported as one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.learn_then_test import clopper_pearson_lower, clopper_pearson_upper
from racer_core.errors import InputError
from racer_core.types import (
    BINARY_TARGETS,
    BoolArray,
    FloatArray,
    RiskTarget,
    any_column,
    checked_alpha,
    enum_member,
)

RIGHT, WRONG, UNKNOWN = 1, 0, -1  # a verdict on one candidate's answer
_BITS: Final = 53  # of a double in [0, 1)


def sampling_number(key: bytes, drawn_by: bytes, turn: int = 0) -> float:
    """A uniform number in [0, 1): a decision is in the sample if its rate is larger.

    (H + v(turn)) mod 1, of a keyed hash H and the van der Corput sequence v in base 2: 0, 1/2, 1/4,
    3/4, 1/8. A keyed hash: replicas and retries agree, and neither clients without the key nor the
    query's content influence the sample.

    Pass the id of the decision: with the query's fingerprint all repeats would be sampled together,
    and the interval of ``estimate_risk`` would count them as independent. For a turn of a
    conversation, pass the conversation and the turn's number. Then:

    - Every turn is drawn with the probability of its rate, for H + v mod 1 is uniform.
    - No two of the turns 0 to 2^k - 1 are drawn at rates up to 2^-k: their v differ by a multiple
      of 2^-k that is no integer, and two numbers below 2^-k differ by less.

    So the first 2^k <= 1 / rate turns of a conversation (:func:`drawn_turns`) give one row at most,
    uniform among them. Rows of independent conversations are then independent, each distributed
    like such a turn at random, however much the turns of one conversation depend on each other.
    Later ones are not drawn. To draw them all and to certify only where no two rows share a
    conversation would choose the samples with short conversations.

    Args:
        key: Secret, at least 1 byte.
        drawn_by: The id of a decision, or of a conversation; the same for all replicas and retries.
        turn: The number of the turn in its conversation, from 0.
    """
    if not key:
        raise InputError("the shadow sample needs a key: without one, clients could predict it")
    seed = hashlib.blake2b(key, digest_size=32).digest()
    digest = hashlib.blake2b(drawn_by, key=seed, person=b"shadow sample", digest_size=8).digest()
    # The top 53 bits: exactly what a double in [0, 1) can carry.
    reversed_turn = int(f"{turn % 2**_BITS:0{_BITS}b}"[::-1], 2)
    number = (int.from_bytes(digest) >> (64 - _BITS)) + reversed_turn
    return number % 2**_BITS * 2.0**-_BITS


def turn_number(answers: int, *, is_together: bool) -> int:
    """The number of a turn, from 0, among the turns of its conversation that are drawn alike.

    Args:
        answers: How many answers were given before it.
        is_together: First and later turns are drawn alike; else first turns are drawn by their
            decisions, and the numbers are those of later turns.
    """
    return answers if is_together else max(answers - 1, 0)


def drawn_turns(rate: float) -> int:
    """How many turns of a conversation may be drawn at a rate: the largest 2^k <= 1 / rate."""
    return 1 << min(math.floor(-math.log2(rate)), _BITS) if rate > 0.0 else 0


def is_sampled(key: bytes, drawn_by: bytes, rate: float, turn: int = 0) -> bool:
    """Whether a decision belongs to the shadow sample.

    Args:
        key: As :func:`sampling_number`.
        drawn_by: As :func:`sampling_number`.
        rate: pi in [0, 1].
        turn: As :func:`sampling_number`.
    """
    if not 0.0 <= rate <= 1.0:  # also false for NaN
        raise InputError("shadow_rate must lie between 0 and 1", param="shadow_rate")
    return turn < drawn_turns(rate) and sampling_number(key, drawn_by, turn) < rate


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskEstimate:
    """Risk with an interval that covers it with probability at least 1 - delta."""

    risk: float  # NaN when nothing was sampled
    lower: float
    upper: float
    sampled: int
    method: str  # clopper_pearson: exact; empirical_bernstein: conservative


def horvitz_thompson(losses: FloatArray, rates: FloatArray, decisions: int) -> float:
    """Mean loss of all decisions, without bias: sum of loss / rate, over their number.

    Args:
        losses: Of the sampled decisions, shape (s,).
        rates: Sampling rate of each, shape (s,), in (0, 1].
        decisions: Number of decisions, sampled or not.
    """
    return float(np.sum(losses / rates) / decisions)


def hajek(losses: FloatArray, rates: FloatArray) -> float:
    """Mean loss by weights that sum to one: less variance than Horvitz-Thompson, a bias of 1 / s.

    Needs no count of decisions and never leaves [0, 1]. With one rate it is the plain mean.
    """
    weights = 1.0 / rates
    return float(np.sum(weights * losses) / np.sum(weights))


def estimate_risk(
    losses: FloatArray, rates: FloatArray, decisions: int, delta: float = 0.05
) -> RiskEstimate:
    """Estimate the mean loss of the decisions from the sampled ones.

    At one rate the sampled losses are themselves independent losses: their mean, and for losses of
    0 and 1 the exact Clopper-Pearson interval. At one rate and fractional losses the interval is
    Maurer & Pontil's empirical Bernstein bound on them. At rates that differ the estimate is
    Horvitz-Thompson, and the bound is taken over all decisions, with loss / rate where sampled and
    0 elsewhere. Assumes decisions that are independent and of one distribution.

    For the ``answerable`` target pass only sampled decisions that some candidate answered right;
    all rates must then be equal, because the number of answerable decisions is unknown.

    Args:
        losses: Shape (s,), in [0, 1].
        rates: Shape (s,), in (0, 1].
        decisions: Number of decisions, sampled or not; used if rates differ.
        delta: Probability that the interval misses.

    References:
        Maurer & Pontil 2009, Theorem 4, once for each side.
    """
    delta = checked_alpha(delta, "delta")
    _check_sample(losses, rates, decisions)
    if not losses.size:
        return _estimate(math.nan, (0.0, 1.0), 0, "clopper_pearson")
    if np.unique(rates).size > 1:
        terms = np.zeros(decisions)
        terms[: losses.size] = losses / rates
        risk = min(horvitz_thompson(losses, rates, decisions), 1.0)
        interval = _empirical_bernstein(terms, 1.0 / float(rates.min()), delta)
        return _estimate(risk, interval, losses.size, "empirical_bernstein")
    if not np.isin(losses, (0.0, 1.0)).all():
        interval = _empirical_bernstein(losses, 1.0, delta)
        return _estimate(hajek(losses, rates), interval, losses.size, "empirical_bernstein")
    errors = int(losses.sum())
    interval = (
        clopper_pearson_lower(errors, losses.size, delta / 2.0),
        clopper_pearson_upper(errors, losses.size, delta / 2.0),
    )
    return _estimate(errors / losses.size, interval, losses.size, "clopper_pearson")


def _check_sample(losses: FloatArray, rates: FloatArray, decisions: int) -> None:
    if losses.shape != rates.shape or losses.ndim != 1 or losses.size > decisions:
        raise InputError("a shadow sample needs one rate per loss, and no more than the decisions")
    if not np.all((losses >= 0.0) & (losses <= 1.0) & (rates > 0.0) & (rates <= 1.0)):
        raise InputError("losses must lie in [0, 1] and sampling rates in (0, 1]")


def _estimate(
    risk: float, interval: tuple[float, float], sampled: int, method: str
) -> RiskEstimate:
    lower, upper = interval
    return RiskEstimate(risk=risk, lower=lower, upper=upper, sampled=sampled, method=method)


def _empirical_bernstein(terms: FloatArray, largest: float, delta: float) -> tuple[float, float]:
    """An interval for the mean of independent terms in [0, largest], cut to [0, 1]."""
    n = terms.size
    if n < 2:
        return 0.0, 1.0
    log_term = math.log(4.0 / delta)
    spread = math.sqrt(2.0 * float(terms.var(ddof=1)) * log_term / n)
    margin = spread + 7.0 * largest * log_term / (3.0 * (n - 1))
    mean = float(terms.mean())
    return max(mean - margin, 0.0), min(mean + margin, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackBounds:
    """The risk of these decisions lies in [lower, upper] for all values of unknown verdicts."""

    lower: float
    upper: float
    decisions: int
    identified: int  # decisions whose loss, and whether it counts, are known


def feedback_bounds(
    verdicts: NDArray[np.int8],
    selected: BoolArray,
    null_selected: BoolArray,
    risk_target: RiskTarget,
    r: int = 1,
) -> FeedbackBounds:
    """Bound the risk of served decisions over all values of the unknown verdicts.

    Pass every decision of a period, all UNKNOWN without judgements: leaving those out assumes that
    users judge right and wrong answers equally often, which they do not. The bounds hold for the
    share among these decisions; they are no confidence interval.

    Possible outcomes of a row, with x right candidates in the set and y right ones outside:
        hit   x >= r, or x >= 1 and y = 0: loss 0.
        miss  x < r and y >= 1: loss 1.
        none  x = y = 0: for ``paper`` loss 0 if the null model is in the set, else 1; for
              ``answerable`` the row does not count.
    With r = 1, a right called candidate is a hit. If all called candidates are wrong, the row is a
    loss for ``paper`` without the null model; with it, or for ``answerable``, the row stays open
    until every candidate was judged. For ``answerable`` the risk is a ratio: the upper bound counts
    every open row as a miss if possible; the lower bound counts it as a hit if possible, else not.

    Args:
        verdicts: RIGHT, WRONG or UNKNOWN, shape (n, K); uncalled candidates may be known too.
        selected: The sets without the null model, shape (n, K).
        null_selected: Shape (n,).
        risk_target: The definition of risk.
        r: Right candidates wanted in the set.

    Returns:
        [0, 1] if no verdict is known.
    """
    if verdicts.shape != selected.shape or null_selected.shape != verdicts.shape[:1] or r < 1:
        raise InputError("verdicts and sets must have the same shape (n, K), and r be at least 1")
    if not np.isin(verdicts, (RIGHT, WRONG, UNKNOWN)).all():
        raise InputError("a verdict must be right, wrong or unknown")
    risk_target = enum_member(RiskTarget, risk_target, "risk_target")
    if risk_target not in BINARY_TARGETS:
        raise InputError("verdicts of right and wrong say nothing about graded qualities")
    hit, miss, none = _possible(verdicts, selected, r)
    identified = int(np.count_nonzero(hit.astype(int) + miss + none == 1))
    if risk_target == RiskTarget.PAPER:
        hit, miss = hit | (none & null_selected), miss | (none & ~null_selected)
        none = np.zeros_like(none)
        identified = int(np.count_nonzero(hit != miss))
    lower = _ratio(miss & ~hit & ~none, hit, default=0.0)
    upper = _ratio(miss, hit & ~miss & ~none, default=1.0)
    return FeedbackBounds(lower=lower, upper=upper, decisions=len(verdicts), identified=identified)


def _possible(
    verdicts: NDArray[np.int8], selected: BoolArray, r: int
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """The rows that may be a hit, a miss, or without a right candidate; each shape (n,)."""
    right, open_ = verdicts == RIGHT, verdicts == UNKNOWN
    least = np.count_nonzero(right & selected, axis=1)  # of x
    most = least + np.count_nonzero(open_ & selected, axis=1)
    outside, outside_open = any_column(right & ~selected), any_column(open_ & ~selected)
    hit = (most >= r) | ((most >= 1) & ~outside)
    miss = (least < r) & (outside | outside_open)
    none = ~any_column(right)
    return hit, miss, none


def _ratio(misses: BoolArray, hits: BoolArray, default: float) -> float:
    missed, counted = int(misses.sum()), int(misses.sum() + hits.sum())
    return missed / counted if counted else default
