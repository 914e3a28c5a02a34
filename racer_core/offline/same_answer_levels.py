"""What the promise "the same answer" would take of recorded rows, for `racer tune`.

As a gateway does, a quarter of the rows fits each policy and the rest calibrates it. The figures
are means over the calibration rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from racer_core.offline.same_answer import SAME_ANSWER_AT
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.fit import fit_policy, tuned_policy
from racer_core.types import BoolArray

_FITTING = 4  # one row in four fits the policy
_SALT = b"tune"
# With a named reference one round would call it with all others, and three hardly spare more.
_ROUNDS: Mapping[bool, tuple[int, ...]] = {False: (1, 2, 3), True: (2,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SameAnswerLevel:
    """One setting of the promise.

    Attributes:
        reference: The candidate that is the reference; None: the vote of the whole pool.
        max_rounds: Most rounds of calls.
        alpha: The largest share of answers that differ.
        calls: Mean number of calls.
        rounds: Mean number of rounds.
        price: Mean price of a request; its calls where there are no prices.
        accuracy: Share of right answers.
        se: Its standard error.
    """

    reference: str | None
    max_rounds: int
    alpha: float
    calls: float
    rounds: float
    price: float
    accuracy: float
    se: float


def same_answer_levels(
    answers: AnswerClasses,
    labels: BoolArray,
    prices: Mapping[str, float] | None = None,
    alphas: Sequence[float] = SAME_ANSWER_AT,
) -> Iterator[SameAnswerLevel]:
    """Every reference and number of rounds at every level that the rows suffice for.

    Without prices the vote is the only reference: they alone say whether a candidate is cheaper.

    Args:
        answers: Rows with the answers of all candidates.
        labels: Their correctness, shape (n, K).
        prices: Price of one call of each candidate; None: all are equal.
        alphas: The levels.
    """
    order = np.random.default_rng(0).permutation(len(answers))
    fit, rest = np.split(order, [len(order) // _FITTING])
    fitting, own, right = answers.at(fit), answers.at(rest), labels[rest]
    each = prices or dict.fromkeys(answers.pool, 1.0)
    for reference in (None, *(answers.pool if prices else ())):
        for most in _ROUNDS[reference is not None]:
            policy = fit_policy(fitting, max_rounds=most, reference=reference, prices=prices)
            for alpha in alphas:
                if (len(rest) + 1) * alpha < 1.0:
                    continue
                tuned = tuned_policy(policy, fitting, alpha, most, prices)
                calibration = SequentialCalibration(policy=tuned, answers=own, salt=_SALT)
                stops = calibration.stops(own, calibration.lambda_hat(alpha))
                spent = np.cumsum([each[name] for name in tuned.order])
                hits = right[np.arange(len(rest)), stops.winner]
                yield SameAnswerLevel(
                    reference=reference,
                    max_rounds=most,
                    alpha=alpha,
                    calls=float(stops.calls.mean()),
                    rounds=float(stops.rounds.mean()),
                    price=float(spent[stops.calls - 1].mean()),
                    accuracy=float(hits.mean()),
                    se=float(hits.std()) / len(hits) ** 0.5,
                )


def cheapest_level(levels: Sequence[SameAnswerLevel], max_rounds: int) -> SameAnswerLevel | None:
    """The cheapest among those that are as accurate as the best but for its standard error.

    Args:
        levels: Of :func:`same_answer_levels`.
        max_rounds: Settings with more rounds are left out.
    """
    offered = [each for each in levels if each.max_rounds <= max_rounds]
    if not offered:
        return None
    best = max(offered, key=lambda each: each.accuracy)
    good = [each for each in offered if each.accuracy >= best.accuracy - best.se]
    return min(good, key=lambda each: (each.price, -each.accuracy))
