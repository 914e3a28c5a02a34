"""Risk e-process: a sequential test of judged losses against a bound on the mean loss.

References:
    Waudby-Smith & Ramdas 2024 (betting). Podkopaev & Ramdas 2022 (monitoring the risk that the
    calibration promised).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Self

from racer_core.calibration.laws import binomial_cdf_at
from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.wager import EProcess, State, Wager
from racer_core.errors import CalibrationError, InputError
from racer_core.types import checked_alpha

MOST_LOSSES: Final = 100_000  # an alarm that takes more is none; to count further takes minutes


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
    """

    kind = "risk"

    def __init__(self, rho: float, *, level: float, max_weight: float = 1.0) -> None:
        self.rho = checked_alpha(rho, "rho")
        self.bets = _bets_against(self.rho)
        super().__init__(Wager(len(self.bets)), level)
        if not (math.isfinite(max_weight) and max_weight > 0.0):
            raise InputError("max_weight must be a positive number: 1 / the smallest sampling rate")
        self.max_weight = float(max_weight)

    @classmethod
    def for_calibration(
        cls, risk: RealisedRisk | None, *, level: float, max_weight: float = 1.0
    ) -> Self:
        """Test the threshold in use against the 95 % point of its realised risk.

        rho is not alpha: the realised risk of a calibrated threshold exceeds alpha for about half
        of all calibration sets, and a long test would report that as drift. While the realised risk
        is at most ``risk.upper()``, the alarm is false with probability ``level``. Over calibration
        sets and queries together it is false with probability at most ``level`` + 0.05, + 0.051
        where scores tie. A bound that fails more rarely would add less and detect less: at
        ``level`` 0.0025, 1,000 rows and alpha 0.1, one that fails with probability 0.00125 finds
        10 of 25 changes to 0.15 within 5,000 losses, where this one finds 25.

        Raises:
            CalibrationError: No finite threshold is in use: the whole pool is called, and there is
                no risk to test.
        """
        if risk is None:
            raise CalibrationError("no finite threshold is in use, so there is no risk to monitor")
        return cls(risk.upper(), level=level, max_weight=max_weight)

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

    def alarm_within(self, loss_rate: float, chance: float = 0.95) -> int | None:
        """The number of losses from now on by which the alarm is raised with at least this chance.

        For losses of 0 and 1 and weights of 1, each of which is 1 with at least ``loss_rate`` given
        the past. What bet p gets with the first of m losses is worth (p / rho)^x ((1 - p) /
        (1 - rho))^(m - x) of it after them if x of them are 1, in any order. So the least x that
        raises the alarm is known, and x is at least binomial. Older capital only helps.

        Args:
            loss_rate: The mean loss after a change.
            chance: Of an alarm by then.

        Returns:
            None where the rate is at most rho: then there may be none. None also beyond
            ``MOST_LOSSES``.
        """
        if self.alarmed:
            return 0
        if loss_rate <= self.rho:
            return None
        missing = -math.log(self.level) - math.log(self.wager.next_share)
        rho = self.rho
        gains = [(math.log1p(bet * (1.0 - rho)), math.log1p(-bet * rho)) for bet in self.bets]

        def is_raised(count: int) -> bool:
            least = min(math.ceil((missing - count * no) / (yes - no)) for yes, no in gains)
            return least <= count and binomial_cdf_at(least - 1, count, loss_rate) <= 1.0 - chance

        high = 1
        while not is_raised(high):
            if high >= MOST_LOSSES:
                return None
            high = min(2 * high, MOST_LOSSES)
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_raised(middle) else (middle, high)
        return high

    def to_state(self) -> State:
        """Everything that a restart needs."""
        return {
            "kind": self.kind,
            "rho": self.rho,
            "level": self.level,
            "max_weight": self.max_weight,
            "wager": self.wager.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken."""
        monitor = cls(state["rho"], level=state["level"], max_weight=state["max_weight"])
        monitor.wager.restore(state["wager"])
        return monitor


def _bets_against(rho: float) -> list[float]:
    """b(p) for alternatives p that halve the distance from 1 to rho, down to rho / 16."""
    halvings = 4 + math.ceil(-math.log2(rho))
    alternatives = [rho + (1.0 - rho) * 0.5**k for k in range(1, halvings + 1)]
    return [(p - rho) / (rho * (1.0 - rho)) for p in alternatives]
