"""Certificate of a decision: the guarantee P(the set misses) <= alpha, and its failed premises.

Of conversations it is E[share of the turns whose set misses] <= alpha.
``holds`` is false, with the reason, whenever a premise of the theorem fails. A certificate is never
a probability for one query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Final, Self

from racer_core.calibration.answer_limit import AnswerLimit
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.realised_risk import BAND_DELTA
from racer_core.types import RoutingDecision


class CoreReason(StrEnum):
    """A failed premise or an assumption that the core can see; a server adds its own."""

    ALPHA_ASSUMED = "alpha_assumed_independent_of_query"
    SCORE_ASSUMED = "score_assumed_independent_of_query"
    GROUP_UNCALIBRATED = "group_uncalibrated"
    TRAINING_OVERLAP = "training_overlap"
    ROWS_IN_CLUSTERS = "rows_in_clusters"
    ALPHA_PICKED = "alpha_picked"
    CHOSEN_BY_FIGURES = "chosen_by_figures"
    ALPHA_INFEASIBLE = "alpha_infeasible_whole_pool"
    UNLABELLED_EXCEEDS_ALPHA = "unlabelled_exceeds_alpha_whole_pool"


HOLDING: Final[frozenset[str]] = frozenset(
    {
        CoreReason.ALPHA_ASSUMED,
        CoreReason.SCORE_ASSUMED,
        CoreReason.ALPHA_INFEASIBLE,
        CoreReason.UNLABELLED_EXCEEDS_ALPHA,
    }
)


def base_reason(reason: str) -> str:
    """The reason without the name that it carries: ``stale`` of ``stale:risk``."""
    return reason.partition(":")[0]


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The guarantee P(the set misses) <= alpha for one decision. Never a per-query probability.

    Attributes:
        unit: What alpha is a share of: the random ``request``, a request of a random ``cluster``,
            or on average the turns of a random ``conversation``.
        law: What is known of the risk, given the rows: ``CalibrationOptions.law``.
        group: The group whose rows set the threshold; None: rows without a group, or all rows.
        pool: The candidates among which the set was chosen.
        weights: ``known`` or ``estimated`` weights of the rows, which stand for another population;
            None: the rows have none.
        labels: ``judge_corrected``: a judge model's verdicts, corrected by people's labels; None:
            the rows' labels are taken as they are.
        trivial: The whole pool is called, because no finite threshold is valid.
        lambda_hat: The threshold, in units of the nonconformity score.
        n: The rows that set the threshold; 0 if there was none.
        is_alpha_fixed: Whether alpha is the calibration's own, fixed before its rows were seen.
        risk_band: The bound on the threshold's risk that holds, together with those of all other
            thresholds, with probability 1 - ``BAND_DELTA``: the guarantee of an alpha that was
            chosen by looking at the rows. None: alpha is fixed, or graded or weighted rows have no
            band.
        answer_limit: The limit on wrong final answers that the threshold keeps; None: no limit is
            certified for it. Nothing is said about answers where the guarantee is void.
        calibration_id: The stored calibration; None: it is not stored.
        reasons: The failed premises and the assumptions, each once.
    """

    HOLDING: ClassVar[frozenset[str]] = HOLDING  # reasons with which the guarantee holds

    risk_target: str
    alpha: float
    delta: float | None
    r: int
    unit: str
    law: str
    group: str | None
    pool: tuple[str, ...]
    weights: str | None
    labels: str | None
    trivial: bool
    lambda_hat: float
    score: str
    n: int
    is_alpha_fixed: bool
    risk_band: float | None
    answer_limit: AnswerLimit | None
    calibration_id: str | None
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls,
        options: CalibrationOptions,
        decision: RoutingDecision,
        *,
        pool: tuple[str, ...],
        n: int,
        risk_band: float | None,
        answer_limit: AnswerLimit | None = None,
        vote: str | None = None,
        group: str | None = None,
        calibration_id: str | None = None,
        reasons: Iterable[str] = (),
    ) -> Self:
        """Certify a decision that a calibration with these options made.

        Args:
            options: The terms of the guarantee.
            decision: The decision; its alpha and score may differ from those of the options.
            pool: As the attribute.
            n: As the attribute.
            answer_limit: The limit of the rows that set the threshold.
            vote: The rule of the vote in use; None: the one that was tested.
            risk_band: The band's bound of the threshold; used if alpha is not fixed.
            group: As the attribute.
            calibration_id: As the attribute.
            reasons: As the attribute; repeats are dropped. ``rows_in_clusters``, ``alpha_picked``
                and, of another alpha without a band, ``alpha_assumed_independent_of_query`` are
                added where they apply.
        """
        is_alpha_fixed = options.is_alpha_fixed and decision.alpha == options.alpha
        if not options.is_alpha_fixed and risk_band is None:
            reasons = (CoreReason.ALPHA_PICKED, *reasons)
        elif not is_alpha_fixed and risk_band is None:
            reasons = (*reasons, CoreReason.ALPHA_ASSUMED)
        if options.has_dependent_rows:
            reasons = (CoreReason.ROWS_IN_CLUSTERS, *reasons)
        return cls(
            risk_target=options.risk_target.value,
            alpha=decision.alpha,
            delta=options.delta,
            r=options.r,
            unit=options.unit,
            law=options.law,
            group=group,
            pool=pool,
            weights=options.weights,
            labels=options.labels,
            trivial=decision.trivial,
            lambda_hat=decision.lambda_hat,
            score=decision.score.value,
            n=n,
            is_alpha_fixed=is_alpha_fixed,
            answer_limit=_certified(answer_limit, decision, vote),
            risk_band=None if is_alpha_fixed else risk_band,
            calibration_id=calibration_id,
            reasons=tuple(dict.fromkeys(map(str, reasons))),
        )

    @property
    def alpha_basis(self) -> str:
        """``fixed`` before the rows; ``band``: bounded by it; ``assumed``: there is none."""
        if self.is_alpha_fixed:
            return "fixed"
        return "assumed" if self.risk_band is None else "band"

    @cached_property
    def void_reasons(self) -> tuple[str, ...]:
        """The reasons that break the guarantee."""
        return tuple(each for each in self.reasons if base_reason(each) not in self.HOLDING)

    @property
    def holds(self) -> bool:
        """Every premise held."""
        return not self.reasons or not self.void_reasons

    def with_reasons(self, *reasons: str) -> Self:
        """The same with further reasons."""
        if not reasons:
            return self
        return replace(self, reasons=tuple(dict.fromkeys((*self.reasons, *reasons))))

    def as_json(self) -> dict[str, Any]:
        """The certificate as JSON; an infinite threshold is null, since JSON has no infinity."""
        holds = self.holds
        limit = self.answer_limit if holds else None
        return {
            "guarantee": {
                "risk_target": self.risk_target,
                "alpha": self.alpha,
                "delta": self.delta,
                "r": self.r,
                "unit": self.unit,
                "law": self.law,
                "group": self.group,
                "pool": list(self.pool),
                "conditional": "marginal" if self.delta is None else "pac",
                "alpha_basis": self.alpha_basis,
                "risk_band": self.risk_band,
                "risk_band_delta": None if self.risk_band is None else BAND_DELTA,
                "weights": self.weights,
                "labels": self.labels,
                "answer_risk_max": None if limit is None else limit.answer_risk_max,
                "answer_risk_delta": None if limit is None else limit.delta,
                "trivial": self.trivial,
            },
            "lambda_hat": self.lambda_hat if math.isfinite(self.lambda_hat) else None,
            "score": self.score,
            "n": self.n,
            "calibration_id": self.calibration_id,
            "holds": holds,
            "reasons": list(self.reasons),
        }


def _certified(
    limit: AnswerLimit | None, decision: RoutingDecision, vote: str | None
) -> AnswerLimit | None:
    """The limit, if the decision's threshold keeps it under this vote."""
    if limit is None or not limit.holds_at(decision.lambda_hat, vote or limit.vote):
        return None
    return limit
