"""Verdicts: what a checker says of an answer, and how often it is right to say so.

A checker gives an answer a score in [0, 1]: a judge its P(True), a test 0 or 1. The score is cut at
fixed places, which no row chooses. No score (the checker failed, timed out, or does not apply) is a
verdict of its own with rates of its own: a checker may fail where answers are wrong.

In the one-coin model the verdict depends on whether the answer is right, and on nothing else. With
a_v = P(v | right) and b_v = P(v | wrong), an answer with verdict v of a candidate of reliability p
is right with probability p a_v / (p a_v + (1 - p) b_v): a verdict changes the candidate's
reliability for this request, and nothing else of a policy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.types import BoolArray, FloatArray

VerdictArray = NDArray[np.int8]
EDGES: Final = (0.05, 0.2, 0.5, 0.8, 0.95)
VERDICTS: Final = len(EDGES) + 1
NO_VERDICT: Final = -1  # as an index it is the last place, which is that of no verdict


def verdict_of(score: float | None) -> int:
    """The verdict of a score, 0 (surely wrong) to 5 (surely right).

    ``NO_VERDICT`` for None and for all that is no number in [0, 1].
    """
    if score is None or not math.isfinite(score) or not 0.0 <= score <= 1.0:
        return NO_VERDICT
    return bisect_right(EDGES, score)


@dataclass(frozen=True, slots=True)
class VerdictRates:
    """How often each verdict is given.

    Attributes:
        right: P(verdict | the answer is right), of 0, 1, .. and last of no verdict.
        wrong: P(verdict | it is wrong).
    """

    right: tuple[float, ...]
    wrong: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse other shapes, and what is no probability above 0."""
        for rates in (self.right, self.wrong):
            if len(rates) != VERDICTS + 1 or not all(0.0 < each <= 1.0 for each in rates):
                raise InputError(f"a checker needs {VERDICTS + 1} rates above 0, twice")

    def reliabilities(self, before: FloatArray) -> FloatArray:
        """P(right | verdict) for candidates of these reliabilities, (K,) to (K, verdicts)."""
        right = before[:, None] * np.array(self.right)
        return right / (right + (1.0 - before[:, None]) * np.array(self.wrong))

    @classmethod
    def of(cls, verdicts: VerdictArray, right: FloatArray, counted: BoolArray) -> Self:
        """The rates of these verdicts.

        Every value has one further verdict on average, right and wrong alike, so that rates from
        few rows say little.

        Args:
            verdicts: Shape (n, K).
            right: The chance that each answer is right, or whether it is, shape (n, K).
            counted: The answers that count, shape (n, K).
        """
        values = verdicts[counted] % (VERDICTS + 1)
        chances = right[counted].astype(np.float64)
        total = np.bincount(values, minlength=VERDICTS + 1).astype(np.float64)
        of_right = np.bincount(values, chances, minlength=VERDICTS + 1)
        prior = (total + 1.0) / (total.sum() / (VERDICTS + 1) + 1.0)
        rates: list[FloatArray] = [
            (each + prior) / (each.sum() + prior.sum()) for each in (of_right, total - of_right)
        ]
        return cls(*(tuple(np.round(each, _DECIMALS).tolist()) for each in rates))

    @classmethod
    def from_state(cls, state: Mapping[str, Sequence[Any]]) -> Self:
        """The rates that ``dataclasses.asdict`` wrote."""
        return cls(tuple(state["right"]), tuple(state["wrong"]))


_DECIMALS: Final = 9  # of a rate
