"""Drift detection: sequential tests (e-processes) that are valid after every query.

Each stream is a bet against "nothing has changed". Under that hypothesis no strategy has an
expected gain, so P(capital ever reaches 1 / level) <= level (Ville's inequality). The alarm may
therefore be read at any time; a fixed-sample test repeated after each query would be wrong half
the time.

``ExchangeabilityMartingale`` tests a number known before the answers (largest router score, p_null,
set size): it detects new kinds of queries without labels and says nothing about risk.
``RiskEProcess`` tests judged losses against a bound. ``UpwardMartingale`` tests the critical scores
of the same judged queries against those of the calibration rows, which takes fewer of them.
``DriftState`` holds several streams under one false-alarm probability.

The objects change with ``update`` and use no clock; ``to_state`` is plain JSON, so that a restart
loses no evidence. One object must receive its stream in order, from one thread at a time.

References:
    Vovk, Gammerman & Shafer 2022, Algorithmic Learning in a Random World, chapter 8 (conformal test
    martingales, Simple Jumper). Waudby-Smith & Ramdas 2024 (betting). Podkopaev & Ramdas 2022
    (watching risk against what the calibration promised). Shin, Ramdas & Rinaldo 2024 (restarts).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from racer_core.calibration.laws import beta_quantile
from racer_core.calibration.wager import State, Wager
from racer_core.errors import CalibrationError, InputError
from racer_core.renamed import renamed
from racer_core.types import FloatArray, checked_alpha

MAX_BAG = 10_000
JUMP = 0.01
EPSILONS = (-1.0, 0.0, 1.0)  # 1 + e (p - 1/2) stays within [1/2, 3/2]
UPWARD_EPSILONS = (-0.25, -0.5, -1.0, -1.5)  # the same with larger stakes, on small p-values alone
TAIL_LIFTS = (1.25, 1.5, 2.0, 4.0)  # by how much small p-values became more frequent


class EProcess:
    """Base of both kinds of stream: a wager, and the level at which it raises an alarm."""

    def __init__(self, wager: Wager, level: float) -> None:
        self.wager = wager
        self.level = checked_alpha(level, "level")

    @property
    def e_value(self) -> float:
        """The current capital: 1 at the start; its mean never exceeds 1 while nothing changes."""
        return math.exp(min(self.wager.log_value, 700.0))  # e**710 is more than a double holds

    @property
    def alarmed(self) -> bool:
        """Whether the capital has ever reached 1 / level. Stays true."""
        return self.wager.log_peak >= -math.log(self.level)

    @property
    def false_alarm(self) -> float:
        """P(ever alarmed) while nothing changes is at most this."""
        return self.level


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


class RiskEProcess(EProcess):
    """A bet on judged losses against "the mean loss is at most rho".

    Assumption under that hypothesis: given the past, the next judged loss times its weight has a
    mean of at most rho times the weight's mean. This holds if the draw that selects queries for
    judging does not depend on them. For risk among answerable queries, pass only those.

    With v = weight / max_weight each alternative risk p > rho multiplies its capital by
    1 + b v (loss - rho), b = (p - rho) / (rho (1 - rho)): for weights of one and losses of 0 and 1
    the likelihood ratio p / rho or (1 - p) / (1 - rho). Since p is at most halfway from rho to 1
    and v <= 1, no factor is below 1/2. Queries that are not judged change nothing and need not be
    passed.

    Args:
        rho: The largest mean loss that must not raise an alarm.
        level: Alarm when the capital reaches 1 / level.
        max_weight: The largest possible weight: 1 / the smallest sampling rate. Leave it and every
            weight at 1 if all queries are sampled at one rate.
        rho_may_fail: Probability that rho itself is too low; part of ``false_alarm``.
    """

    kind = "risk"

    def __init__(
        self, rho: float, *, level: float, max_weight: float = 1.0, rho_may_fail: float = 0.0
    ) -> None:
        self.rho = checked_alpha(rho, "rho")
        self.bets = _bets_against(self.rho)
        super().__init__(Wager(len(self.bets)), level)
        if not (math.isfinite(max_weight) and max_weight > 0.0):
            raise InputError("max_weight must be a positive number: 1 / the smallest sampling rate")
        self.max_weight = float(max_weight)
        self.rho_may_fail = float(rho_may_fail)

    @classmethod
    def for_calibration(cls, n: int, misses: int, *, delta: float, max_weight: float = 1.0) -> Self:
        """Monitor a threshold that left ``misses`` of ``n`` calibration rows uncovered.

        rho is not alpha: the realised risk of a calibrated threshold exceeds alpha for about half
        of all calibration sets, and a long test would report that as drift. Given the rows the
        risk is Beta(misses + 1, n - misses), so it exceeds rho, the 1 - delta / 2 quantile, with
        probability delta / 2. Otherwise the alarm at level delta / 2 is false with probability
        delta / 2. Together: at most delta.

        Raises:
            CalibrationError: No finite threshold was valid (``misses`` -1): the whole pool is
                called, and there is no risk to monitor.
        """
        if not 0 <= misses < n:
            raise CalibrationError("no finite threshold is in use, so there is no risk to monitor")
        half = checked_alpha(delta, "delta") / 2.0
        rho = beta_quantile(1.0 - half, misses + 1, n - misses)
        return cls(rho, level=half, max_weight=max_weight, rho_may_fail=half)

    def update(self, loss: float, weight: float = 1.0) -> None:
        """Bet on the next judged loss.

        Args:
            loss: In [0, 1].
            weight: 1 / the probability with which this query was sampled, in (0, max_weight].
        """
        if not 0.0 <= loss <= 1.0:  # also false for NaN
            raise InputError("a loss must lie between 0 and 1")
        if not 0.0 < weight <= self.max_weight:
            raise InputError(f"a weight must lie in (0, {self.max_weight}]: raise max_weight")
        gain = weight / self.max_weight * (loss - self.rho)
        self.wager.settle([1.0 + bet * gain for bet in self.bets])

    @property
    def false_alarm(self) -> float:
        """P(ever alarmed) while the calibration's guarantee holds is at most this."""
        return self.level + self.rho_may_fail

    def to_state(self) -> State:
        """Everything that a restart needs."""
        return {
            "kind": self.kind,
            "rho": self.rho,
            "level": self.level,
            "max_weight": self.max_weight,
            "rho_may_fail": self.rho_may_fail,
            "wager": self.wager.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken."""
        names = ("level", "max_weight", "rho_may_fail")
        monitor = cls(state["rho"], **{name: state[name] for name in names})
        monitor.wager.restore(state["wager"])
        return monitor


def _bets_against(rho: float) -> list[float]:
    """b(p) for alternatives p that halve the distance from 1 to rho, down to rho / 16."""
    halvings = 4 + math.ceil(-math.log2(rho))
    alternatives = [rho + (1.0 - rho) * 0.5**k for k in range(1, halvings + 1)]
    return [(p - rho) / (rho * (1.0 - rho)) for p in alternatives]


def split_false_alarm(delta: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Each named stream's part of the false-alarm probability ``delta``.

    Raises:
        InputError: The weights are not positive or do not sum to one.
    """
    delta = checked_alpha(delta, "delta")
    positive = all(math.isfinite(weight) and weight > 0.0 for weight in weights.values())
    if not positive or not math.isclose(sum(weights.values()), 1.0, rel_tol=1e-9):
        raise InputError("the weights of the streams must be positive and sum to one")
    return {name: delta * weight for name, weight in weights.items()}


Stream = ExchangeabilityMartingale | ProjectionMartingale | RiskEProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """Several streams; while nothing changes, P(any of them ever alarms) <= delta.

    By the union bound: the streams may depend on each other in any way. A new calibration needs a
    new drift state, and with it a new delta.
    """

    delta: float
    streams: Mapping[str, Stream]

    def __post_init__(self) -> None:
        """Refuse streams whose false-alarm probabilities exceed delta together."""
        delta = checked_alpha(self.delta, "delta")
        if sum(stream.false_alarm for stream in self.streams.values()) > delta * (1.0 + 1e-9):
            raise InputError("the streams' false alarms exceed delta: use split_false_alarm")

    @property
    def raised(self) -> tuple[str, ...]:
        """The names of the streams that have ever alarmed."""
        return tuple(name for name, stream in self.streams.items() if stream.alarmed)

    @property
    def alarmed(self) -> bool:
        """Whether any stream has ever alarmed."""
        return bool(self.raised)

    def to_state(self) -> State:
        """Everything that a restart needs."""
        streams = {name: stream.to_state() for name, stream in self.streams.items()}
        return {"delta": self.delta, "streams": streams}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken.

        Raises:
            InputError: The state is damaged, or from another version.
        """
        try:
            return cls._restored(state)
        except (KeyError, TypeError, ValueError) as exc:
            raise InputError("the saved drift state does not fit: start a new one") from exc

    @classmethod
    def _restored(cls, state: Mapping[str, Any]) -> Self:
        classes = (
            ExchangeabilityMartingale,
            ProjectionMartingale,
            UpwardMartingale,
            RiskEProcess,
        )
        kinds = {each.kind: each for each in classes}
        if unknown := {saved["kind"] for saved in state["streams"].values()} - kinds.keys():
            raise InputError(f"unknown drift stream kind {unknown.pop()!r}: start a new one")
        streams = {
            name: kinds[saved["kind"]].from_state(saved) for name, saved in state["streams"].items()
        }
        return cls(delta=state["delta"], streams=streams)


__getattr__ = renamed(__name__, {"Monitor": "EProcess", "Watch": "DriftState"})
