"""Risk levels: the set that every alpha would select for one query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.routing.decision import CertifiedDecision
from racer_core.calibration.decision import Levels


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskLevels:
    """A decision, and the sets that other alphas would select for the same query.

    Attributes:
        routed: The decision at the alpha in force.
        found: The others; None where every alpha calls the whole pool.
        prices: Price of a call by candidate; None without prices.
    """

    routed: CertifiedDecision
    found: Levels | None = None
    prices: tuple[float, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        decisions = self.found.decisions if self.found else ()
        return {
            **self.routed.json,
            "nonconformity": self._by_name(self.found.nonconformity) if self.found else {},
            "levels": [
                {
                    "alpha": each.alpha,
                    "lambda_hat": None if each.trivial else each.lambda_hat,
                    "selected": list(each.selected),
                    "null_in_set": each.null_selected,
                    "abstained": each.abstained,
                    "cost_share": self._cost_share(each.selected),
                }
                for each in decisions
            ],
        }

    def _by_name(self, values: Sequence[float]) -> dict[str, float]:
        return dict(zip(self.routed.certificate.pool, values, strict=True))

    def _cost_share(self, names: Sequence[str]) -> float | None:
        """The price of calling these, as a share of calling all; no price is shown."""
        if self.prices is None:
            return None
        price = self._by_name(self.prices)
        return sum(price[name] for name in names) / sum(self.prices)


def alphas_for(max_alpha: float | None, used: float) -> list[float]:
    """The alphas to show: half a percent apart, with the alpha in force among them."""
    shown = {step / 200 for step in range(1, max(100, int(200 * used)) + 1)} | {used}
    return sorted(alpha for alpha in shown if max_alpha is None or alpha <= max_alpha)
