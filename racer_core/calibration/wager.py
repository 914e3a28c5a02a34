"""Wager and e-process: capital spread over several bets, the arithmetic of every drift test.

A bet is fair if the mean of its factor, given the past, is at most 1 under the null hypothesis. The
total capital is then a test supermartingale: P(it ever reaches 1 / level) <= level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from racer_core.errors import InputError
from racer_core.types import checked_alpha

State = dict[str, Any]  # JSON

RESCALE_AT = 1e100


class Wager:
    """Capital over several bets, with a reserve for late changes.

    After t rounds the share 1 / (1 + ln(1 + t)) is still uninvested; each round releases a part,
    spread evenly over the bets. Uninvested capital keeps its value, so the total is a test
    martingale if every bet is fair, and a change at round t costs a factor of about t ln(t)^2
    instead of all that the bets lost before.

    Capital is stored in units of exp(``log_unit``): the released reserve prevents underflow,
    rescaling prevents overflow.
    """

    def __init__(self, bets: int, jump: float = 0.0) -> None:
        self.jump = jump
        self.rounds = 0
        self.log_unit = 0.0
        self.log_peak = 0.0
        self.capital: list[float] = [0.0] * bets

    def settle(self, factors: Sequence[float]) -> None:
        """Release this round's reserve, let capital jump between bets, multiply by the factors.

        Factors are positive; each has a conditional mean of at most 1 under the null hypothesis.
        """
        bets = len(self.capital)
        share = self.next_share * math.exp(-self.log_unit)
        self.rounds += 1
        stay, spread = 1.0 - self.jump, self.jump * sum(self.capital) / bets
        self.capital = [
            (stay * held + spread + share) * factor
            for held, factor in zip(self.capital, factors, strict=True)
        ]
        self._rescale()
        self.log_peak = max(self.log_peak, self.log_value)

    def _rescale(self) -> None:
        total = sum(self.capital)
        grown, shrunk = total > RESCALE_AT, self.log_unit > 0.0 and total < 1.0 / RESCALE_AT
        if grown or shrunk:
            shift = max(math.log(total), -self.log_unit)
            self.capital = [held * math.exp(-shift) for held in self.capital]
            self.log_unit += shift

    @property
    def next_share(self) -> float:
        """The capital that each bet gets from the reserve in the next round."""
        return (_reserve(self.rounds) - _reserve(self.rounds + 1)) / len(self.capital)

    @property
    def log_value(self) -> float:
        """The logarithm of the total capital, the reserve included."""
        reserve = _reserve(self.rounds) * math.exp(-self.log_unit)
        return self.log_unit + math.log(sum(self.capital) + reserve)

    def to_state(self) -> State:
        """The state as JSON."""
        return {
            "capital": list(self.capital),
            "rounds": self.rounds,
            "log_unit": self.log_unit,
            "log_peak": self.log_peak,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``to_state``; the number of bets must match."""
        capital = [float(held) for held in state["capital"]]
        numbers = [*capital, float(state["log_unit"]), float(state["log_peak"])]
        fits = len(capital) == len(self.capital) and int(state["rounds"]) >= 0
        if not fits or not all(math.isfinite(x) and x >= 0.0 for x in numbers):
            raise InputError("the saved drift stream does not fit: start a new one")
        self.capital, self.rounds = capital, int(state["rounds"])
        self.log_unit, self.log_peak = numbers[-2:]


def _reserve(rounds: int) -> float:
    return 1.0 / (1.0 + math.log1p(rounds))


class EProcess:
    """Base class of the drift tests: a wager, and the level at which it raises an alarm."""

    def __init__(self, wager: Wager, level: float) -> None:
        self.wager = wager
        self.level = checked_alpha(level, "level")

    def skip(self) -> None:
        """Let a round pass without a bet: only the reserve goes on."""
        self.wager.settle([1.0] * len(self.wager.capital))

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
