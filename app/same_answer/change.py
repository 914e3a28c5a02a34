"""What a calibration of `same_answer` changes against the fallback, and whether that is worth it.

All of it is found on the rows that fitted the policy, and on their labels. The calibration rows say
nothing here: were they asked, those calibrations would be left whose threshold is too low by chance
(docs/method.md).

No label tells which of two answers is right. But how many candidates give each does tell something:
where the new answer has more of them than the old one, the vote has found something out; where one
candidate's word stands against another's, it has not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from app.settings import WHOLE_POOL
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration, Stops
from racer_core.sequential.policy import Columns, Policy
from racer_core.sequential.reliability import checked
from racer_core.types import FloatArray

Labels = Mapping[bytes, Mapping[str, bool]]  # a row's fingerprint -> candidate -> it is right

NEARLY_ONE: Final = 0.95  # share of the answers that one candidate gives too
DEARER: Final = 1.05  # calls or price, as a multiple of today's
_SHOWN: Final = 1.645  # standard errors: a wrong "it is worse" has a chance of 5 %
_FEWEST: Final = 10  # rows by which answers are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Rightness:
    """How often the answers of now and those of the policy are right.

    Attributes:
        told_by: What tells it. Verdicts of the checker give estimates.
        rows: How many rows it is known of.
        now: Share of the fallback's answers that are right.
        then: Share of the policy's.
        shown: "worse" or "better" where a paired test at 5 % shows the policy to be so.
    """

    told_by: Literal["labels", "verdicts"]
    rows: int
    now: float
    then: float
    shown: Literal["worse", "better"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an active calibration changes, by the rows that fitted its policy.

    Attributes:
        fallback: What answers now: a candidate, or ``WHOLE_POOL``.
        calls_now: Calls of a request now.
        calls: Calls of a request then.
        price: Price of a request, as a multiple of today's; None without prices.
        differs: Share of the answers that are others than the fallback's; None: it is the pool.
        backed: Share of the requests on which more candidates give the new answer than the old one.
        keeps: Whether the fallback alone keeps the promise on these rows.
        leader: The candidate that gives most of the answers.
        leader_share: Share of the answers that it gives too.
        right: How often the answers are right; None: nothing tells.
    """

    fallback: str
    calls_now: int
    calls: float
    price: float | None
    differs: float | None
    backed: float | None
    keeps: bool
    leader: str
    leader_share: float
    right: Rightness | None

    @property
    def is_dearer(self) -> bool:
        """Whether a request takes more than now: money where prices are known, else calls."""
        return (self.calls / self.calls_now if self.price is None else self.price) > DEARER


def change_of(
    fallback: str,
    fitted: SequentialCalibration,
    alpha: float,
    prices: Mapping[str, float] | None,
    labels: Labels,
) -> Change:
    """What the policy changes.

    Args:
        fallback: What answers now.
        fitted: The policy with the rows that fitted it in the place of calibration rows.
        alpha: Risk level.
        prices: Expected price of a call of each candidate; None: they have none.
        labels: Those that are known of these rows.
    """
    rows, policy = fitted.answers, fitted.policy
    stops = fitted.stops(rows, fitted.lambda_hat(least_level(alpha, rows)))
    gives = np.stack([_same(rows, stops.winner, k) for k in range(len(rows.pool))], axis=1)
    shares: FloatArray = gives.mean(axis=0)
    now = None if fallback == WHOLE_POOL else rows.pool.index(fallback)
    full: Columns = policy.outcomes(rows).winner[:, -1]
    support = rows.same.sum(axis=2)
    places = np.arange(len(rows))
    changed = None if now is None else ~gives[:, now]
    more = None if now is None else support[places, stops.winner] > support[:, now]
    return Change(
        fallback=fallback,
        calls_now=len(rows.pool) if now is None else 1,
        calls=float(stops.calls.mean()),
        price=None if prices is None else _price(policy, stops, prices, fallback),
        differs=None if changed is None else float(changed.mean()),
        backed=None if changed is None else float((changed & more).mean()),
        keeps=now is not None and _keeps(int((~_same(rows, full, now)).sum()), len(rows), alpha),
        leader=rows.pool[int(shares.argmax())],
        leader_share=float(shares.max()),
        right=None if now is None else _right(policy, rows, stops, now, labels),
    )


def least_level(alpha: float, rows: AnswerClasses) -> float:
    """Alpha, or of few rows the smallest level with a finite threshold."""
    return max(alpha, 1.0 / (len(rows) + 1))


def not_worth_it(change: Change, *, is_vote: bool) -> str | None:
    """Why a policy that spares calls is still not worth it against the fallback; None: it is.

    Args:
        change: What it changes.
        is_vote: The reference is the vote: else the operator has said which answers are wanted.
    """
    right, name = change.right, change.fallback
    if right is not None and right.shown == "worse":
        return (
            f"not worth it: of {right.rows} requests {_told(right)} its answers are right on "
            f"{right.then:.0%}, and those of {name}, which answers now, on {right.now:.0%}"
        )
    if not is_vote or change.differs is None:
        return None
    if change.keeps and change.is_dearer:
        return (
            f"not worth it: {name}, which answers now, keeps the promise by itself, with "
            f"{change.calls_now} call a request instead of {change.calls:.1f}"
        )
    is_better = right is not None and right.shown == "better"
    if change.differs and 2.0 * (change.backed or 0.0) <= change.differs and not is_better:
        cure = "set an equality that fits the answers, or label some of the samples"
        if change.leader_share >= NEARLY_ONE and change.leader != name:
            cure = (
                f"{change.leader_share:.0%} of the answers would be those of {change.leader} "
                "alone, for the vote is nearly one model: if it is your best one, set "
                f"`routing.fallback: {change.leader}`, or label some of the samples"
            )
        return (
            f"not worth it: {change.differs:.0%} of the answers would be others than those of "
            f"{name}, which answers now, and on most of these requests no more candidates give the "
            f"new answer than the old one; {cure}"
        )
    return None


def consequences(change: Change, expected_calls: float) -> list[str]:
    """What changes once the calibration decides, for the log, the page and `GET /same-answer`."""
    name = "the whole pool" if change.fallback == WHOLE_POOL else change.fallback
    said = [f"calls per request {change.calls_now:.1f} → {expected_calls:.1f}"]
    if change.price is not None:
        said.append(f"price per request × {change.price:.2f}")
    if change.differs is not None and change.backed is not None:
        said.append(
            f"{change.differs:.0%} of the answers will be others than those of {name}; on "
            f"{change.backed:.0%} of the requests more candidates give the new answer than the old"
        )
    if change.leader_share >= NEARLY_ONE:
        said.append(
            f"{change.leader_share:.0%} of the answers will be those that {change.leader} gives "
            "alone: your vote is nearly one model"
        )
    if (right := change.right) is not None:
        said.append(
            f"of {right.rows} requests {_told(right)} {right.then:.0%} are answered right, by "
            f"{name} {right.now:.0%}"
        )
    return said


def _told(right: Rightness) -> str:
    return "that are labelled" if right.told_by == "labels" else "that the checker estimates"


def _same(rows: AnswerClasses, columns: Columns, other: int) -> Any:
    """Whether these answers are the same as those of one candidate, shape (n,)."""
    return rows.same[np.arange(len(rows)), columns, other] | (columns == other)


def _keeps(differing: int, rows: int, alpha: float) -> bool:
    return (1 + differing) / (rows + 1) <= alpha


def _price(policy: Policy, stops: Stops, prices: Mapping[str, float], fallback: str) -> float:
    spent = np.cumsum([prices[name] for name in policy.order])
    now = math.fsum(prices.values()) if fallback == WHOLE_POOL else prices[fallback]
    return float(spent[stops.calls - 1].mean()) / now


def _right(
    policy: Policy, rows: AnswerClasses, stops: Stops, now: int, labels: Labels
) -> Rightness | None:
    """By labels of both answers, or else by the verdicts of the checker."""
    known = [
        (float(given[rows.pool[now]]), float(given[rows.pool[winner]]))
        for given, winner in zip(
            (labels.get(each, {}) for each in rows.fingerprints), stops.winner.tolist(), strict=True
        )
        if {rows.pool[now], rows.pool[winner]} <= given.keys()
    ]
    if len(known) >= _FEWEST:
        return _compared("labels", np.array(known))
    if policy.checker is None or rows.verdicts is None or len(rows) < _FEWEST:
        return None
    chances = checked(np.array(policy.reliabilities), policy.checker)
    places = np.arange(len(rows))
    of_now = chances[now, rows.verdicts[:, now]]
    of_then = chances[stops.winner, rows.verdicts[places, stops.winner]]
    return _compared("verdicts", np.stack([of_now, of_then], axis=1))


def _compared(told_by: Literal["labels", "verdicts"], right: FloatArray) -> Rightness:
    gain = right[:, 1] - right[:, 0]
    error = float(gain.std()) / math.sqrt(len(gain))
    mean = float(gain.mean())
    shown: Literal["worse", "better"] | None = None
    if abs(mean) > _SHOWN * error:
        shown = "better" if mean > 0.0 else "worse"
    now, then = right.mean(axis=0).tolist()
    return Rightness(told_by=told_by, rows=len(gain), now=now, then=then, shown=shown)
