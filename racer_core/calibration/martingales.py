"""Conformal test martingales: drift detection without labels, on numbers known before the answers.

``ExchangeabilityMartingale`` tests one number per query (largest router score, p_null, set size),
``ProjectionMartingale`` tests a short vector, ``UpwardMartingale`` tests the critical scores of
judged queries. Each bets against "calibration rows and queries are exchangeable".

References:
    Vovk, Gammerman & Shafer 2022, Algorithmic Learning in a Random World, chapter 8 (conformal test
    martingales, Simple Jumper).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from racer_core.calibration.wager import EProcess, State, Wager
from racer_core.errors import InputError
from racer_core.types import FloatArray, checked_alpha

MAX_BAG = 10_000
JUMP = 0.01
EPSILONS = (-1.0, 0.0, 1.0)  # 1 + e (p - 1/2) stays within [1/2, 3/2]
UPWARD_EPSILONS = (-0.25, -0.5, -1.0, -1.5)  # the same with larger stakes, on small p-values alone
TAIL_LIFTS = (1.25, 1.5, 2.0, 4.0)  # by how much small p-values became more frequent


def smoothed_p_value(ascending: Sequence[float], value: float, draw: float) -> float:
    """The share of values above ``value``, with ties and itself weighted by ``draw`` in [0, 1).

    Uniform if ``value`` and the others are exchangeable and the draw is uniform, even with ties.
    """
    above = len(ascending) - bisect_right(ascending, value)
    ties = len(ascending) - above - bisect_left(ascending, value)
    return (above + draw * (ties + 1)) / (len(ascending) + 1)


class ExchangeabilityMartingale(EProcess):
    """A conformal test martingale on one number per query, without labels.

    Null hypothesis: the values of calibration rows and queries are exchangeable, in any order that
    does not depend on the values, and the draws are independent uniforms. The p-values are then
    exactly independent and uniform, at any cap:

    A p-value depends on the position of the newest value among the bag's values, and not on the
    *set* of values. When the bag is full, the value to remove is drawn uniformly from that set, the
    newest included, so the remaining bag stays exchangeable with the next query. A fixed bag or the
    last N values would not work: their p-values share the bag's random deviations, which a long
    bet finds and reports as a change.

    A full bag forgets: half of the calibration rows are gone after 0.7 ``cap`` queries, so a much
    slower drift is not detected. Repeats, bursts and the time of day are changes too and raise
    alarms.

    The number must be a function of the query alone. Set size is not one for the calibration rows,
    on which lambda_hat depends: pass no calibration rows then, and compare queries with each other.

    Args:
        calibration: The number for every calibration row, computed as in serving; may be empty.
        level: Alarm when the capital reaches 1 / level.
        rng: Chooses the calibration rows that enter if there are more than ``cap``.
        cap: Maximum number of values in the bag; 8 bytes each.
    """

    kind = "exchangeability"

    def __init__(
        self,
        calibration: FloatArray,
        *,
        level: float,
        rng: np.random.Generator,
        cap: int = MAX_BAG,
    ) -> None:
        if not np.isfinite(calibration).all():
            raise InputError("drift statistics must be finite: remove or correct such rows")
        super().__init__(self._new_wager(), level)
        self.cap = max(cap, 1)
        sample = calibration
        if calibration.size > self.cap:
            sample = rng.choice(calibration, self.cap, replace=False)
        self.bag: list[float] = np.sort(sample).tolist()

    def update(self, value: float, tie_draw: float, evict_draw: float) -> float:
        """Bet on the next query's value and return its p-value; the arguments of :meth:`rank`."""
        p = self.rank(value, tie_draw, evict_draw)
        self.wager.settle(self.factors(p))
        return p

    def rank(self, value: float, tie_draw: float, evict_draw: float) -> float:
        """Put the next query's value into the bag and return its p-value, without a bet.

        Args:
            value: The statistic; finite.
            tie_draw: Uniform in [0, 1), drawn for this query alone.
            evict_draw: A second, independent draw.
        """
        if not math.isfinite(value):
            raise InputError("drift statistics must be finite, and the router's score is not")
        if not (0.0 <= tie_draw < 1.0 and 0.0 <= evict_draw < 1.0):
            raise InputError("the draws of a drift statistic must lie in [0, 1)")
        p = smoothed_p_value(self.bag, value, tie_draw)
        insort(self.bag, value)
        if len(self.bag) > self.cap:
            del self.bag[int(evict_draw * len(self.bag))]
        return p

    def factors(self, p: float) -> list[float]:
        """What each bet multiplies its capital by: the mean over a uniform p is 1."""
        return [1.0 + epsilon * (p - 0.5) for epsilon in EPSILONS]

    def _new_wager(self) -> Wager:
        return Wager(len(EPSILONS), JUMP)

    def to_state(self) -> State:
        """Everything that a restart needs."""
        return {
            "kind": self.kind,
            "level": self.level,
            "cap": self.cap,
            "bag": list(self.bag),
            "wager": self.wager.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken; nothing is drawn again."""
        bag = np.array(state["bag"], dtype=np.float64)
        cap = max(int(state["cap"]), bag.size)
        monitor = cls(bag, level=state["level"], rng=np.random.default_rng(0), cap=cap)
        monitor.wager.restore(state["wager"])
        return monitor


class ProjectionMartingale(EProcess):
    """Conformal test martingales on the coordinates of a short vector, as one bet.

    The capital is spread over the coordinates. Each has its own bag and its own p-values, and all
    of them come before the next query's: the total is a test martingale under the null hypothesis
    of :class:`ExchangeabilityMartingale`, however the coordinates depend on each other.

    Args:
        calibration: The vector of every calibration row, shape (n, d); d at least 1.
        level: Alarm when the capital reaches 1 / level.
        rng: Chooses the calibration rows that enter if there are more than ``cap``.
        cap: Maximum number of values in each bag.
    """

    kind = "projection"

    def __init__(
        self, calibration: FloatArray, *, level: float, rng: np.random.Generator, cap: int = 3_000
    ) -> None:
        if calibration.ndim != 2 or calibration.shape[1] < 1:
            raise InputError("projections must have the shape (n, d), d at least 1")
        coordinates = calibration.shape[1]
        super().__init__(Wager(len(EPSILONS) * coordinates, JUMP), level)
        self._coordinates = [
            ExchangeabilityMartingale(calibration[:, j], level=level, rng=rng, cap=cap)
            for j in range(coordinates)
        ]

    @property
    def dimension(self) -> int:
        """The number of coordinates, d."""
        return len(self._coordinates)

    def update(self, vector: Sequence[float], draws: Sequence[tuple[float, float]]) -> None:
        """Bet on the next query's vector.

        Args:
            vector: Finite, shape (d,).
            draws: Two uniforms in [0, 1) for each coordinate, as in
                :meth:`ExchangeabilityMartingale.update`.
        """
        if not len(vector) == len(draws) == self.dimension:
            raise InputError(f"a projection must have {self.dimension} coordinates")
        if not all(math.isfinite(value) for value in vector):
            raise InputError("a projection must be finite")
        factors: list[float] = []
        for each, value, (tie, evict) in zip(self._coordinates, vector, draws, strict=True):
            factors += each.factors(each.rank(value, tie, evict))
        self.wager.settle(factors)

    def to_state(self) -> State:
        """Everything that a restart needs."""
        return {
            "kind": self.kind,
            "level": self.level,
            "cap": self._coordinates[0].cap,
            "bags": [list(each.bag) for each in self._coordinates],
            "wager": self.wager.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken; nothing is drawn again."""
        bags = np.array(state["bags"], dtype=np.float64).T
        cap = max(int(state["cap"]), len(bags))
        monitor = cls(bags, level=state["level"], rng=np.random.default_rng(0), cap=cap)
        monitor.wager.restore(state["wager"])
        return monitor


class UpwardMartingale(ExchangeabilityMartingale):
    """A conformal test martingale that bets on larger values alone.

    For the critical scores of judged queries against those of the calibration rows: a query's
    critical score is the smallest threshold that does not miss it, so larger ones mean more risk at
    some alpha. Smaller ones raise no alarm. The null hypothesis and the p-values are those of
    :class:`ExchangeabilityMartingale`; the realised risk of the calibration plays no part in them,
    so an unlucky calibration raises no alarm.

    Bets: 1 + e (p - 1/2) with e < 0 sees that all values grew a little. For ``tail`` a and a lift c
    the factor c where p <= a, and (1 - c a) / (1 - a) elsewhere, sees that the share of p-values up
    to a, which is the risk at alpha = a, grew to c a. A lift is lowered so that no factor is below
    1/2.

    Args:
        calibration: The critical scores of the calibration rows.
        tail: The calibration's alpha.
        level: Alarm when the capital reaches 1 / level.
        rng: As in :class:`ExchangeabilityMartingale`.
        cap: As in :class:`ExchangeabilityMartingale`.
    """

    kind = "upward"

    def __init__(
        self,
        calibration: FloatArray,
        *,
        tail: float,
        level: float,
        rng: np.random.Generator,
        cap: int = MAX_BAG,
    ) -> None:
        self.tail = checked_alpha(tail, "tail")
        largest = (1.0 + self.tail) / (2.0 * self.tail)  # (1 - c a) / (1 - a) is then 1/2
        self._lifts = [min(lift, largest) for lift in TAIL_LIFTS]
        super().__init__(calibration, level=level, rng=rng, cap=cap)

    def factors(self, p: float) -> list[float]:
        """What each bet multiplies its capital by: the mean over a uniform p is 1."""
        tail = self.tail
        linear = [1.0 + epsilon * (p - 0.5) for epsilon in UPWARD_EPSILONS]
        if p <= tail:
            return linear + self._lifts
        return linear + [(1.0 - lift * tail) / (1.0 - tail) for lift in self._lifts]

    def update_unknown(self, largest: float, evict_draw: float) -> None:
        """Bet on a query whose value is not known, in the way that is worst for an alarm.

        The p-value is 1, and for later queries its value is the largest there is. Whatever the
        value is, the capital is at most what it would be with it, now and later: factors fall with
        p, and p-values grow with the values before. The same holds if the query should have been
        skipped: one more largest value turns a share of c/n values above into (c + 1)/(n + 1).

        Args:
            largest: The largest value there is.
            evict_draw: As in :meth:`ExchangeabilityMartingale.rank`.
        """
        self.rank(largest, 0.0, evict_draw)
        self.wager.settle(self.factors(1.0))

    def _new_wager(self) -> Wager:
        return Wager(len(UPWARD_EPSILONS) + len(TAIL_LIFTS))

    def to_state(self) -> State:
        """Everything that a restart needs."""
        return super().to_state() | {"tail": self.tail}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken; nothing is drawn again."""
        bag, rng = np.array(state["bag"], dtype=np.float64), np.random.default_rng(0)
        cap = max(int(state["cap"]), bag.size)
        monitor = cls(bag, tail=state["tail"], level=state["level"], rng=rng, cap=cap)
        monitor.wager.restore(state["wager"])
        return monitor
