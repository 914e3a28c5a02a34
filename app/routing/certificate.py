"""The certificate of a decision: the guarantee, and whether its premises hold.

``holds`` is false, with the reason, whenever a premise of the theorem fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from app.routing.reasons import breaks
from app.store.calibration_record import CalibrationRecord
from racer_core.types import RoutingDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The guarantee P(the set misses) <= alpha for one decision. Never a per-query probability."""

    risk_target: str
    alpha: float
    delta: float | None
    r: int
    group: str | None  # whose rows set the threshold; None: rows without a group, or all
    pool: tuple[str, ...]
    trivial: bool
    lambda_hat: float
    score: str
    n: int
    calibration_id: str
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls,
        record: CalibrationRecord,
        decision: RoutingDecision,
        reasons: tuple[str, ...],
        *,
        pool: tuple[str, ...],
        n: int,
        group: str | None = None,
    ) -> Self:
        """Certify a decision that the record made.

        Args:
            record: The record.
            decision: The decision.
            reasons: The reasons of its premises.
            pool: The candidates among which the set was chosen.
            n: The rows that set the threshold; 0 if the threshold was not ready.
            group: Their group; None: they have none, or are all rows.
        """
        options = record.calibration.options
        return cls(
            risk_target=options.risk_target,
            alpha=decision.alpha,
            delta=options.delta,
            r=options.r,
            group=group,
            pool=pool,
            trivial=decision.trivial,
            lambda_hat=decision.lambda_hat,
            score=decision.score,
            n=n,
            calibration_id=record.id,
            reasons=tuple(dict.fromkeys((*record.void_reasons, *reasons))),
        )

    @property
    def void_reasons(self) -> tuple[str, ...]:
        """The reasons that break the guarantee."""
        return tuple(filter(breaks, self.reasons))

    @property
    def holds(self) -> bool:
        """Every premise held."""
        return not self.reasons or not self.void_reasons

    @property
    def header(self) -> str:
        """``holds`` or ``void; reason=...``."""
        return "holds" if self.holds else f"void; reason={','.join(self.void_reasons)}"

    def with_reasons(self, *reasons: str) -> Certificate:
        """The same with further reasons."""
        if not reasons:
            return self
        return replace(self, reasons=tuple(dict.fromkeys((*self.reasons, *reasons))))

    def as_json(self, remarks: Sequence[str]) -> dict[str, Any]:
        """The wire form with the remarks on the query.

        An infinite threshold is null: JSON has no infinity.
        """
        finite = math.isfinite(self.lambda_hat)
        return {
            "guarantee": {
                "risk_target": self.risk_target,
                "alpha": self.alpha,
                "delta": self.delta,
                "r": self.r,
                "group": self.group,
                "pool": list(self.pool),
                "conditional": "marginal" if self.delta is None else "pac",
                "trivial": self.trivial,
            },
            "lambda_hat": self.lambda_hat if finite else None,
            "score": self.score,
            "n": self.n,
            "calibration_id": self.calibration_id,
            "holds": self.holds,
            "reasons": list(self.reasons),
            "remarks": list(remarks),
        }
