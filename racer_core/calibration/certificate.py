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
from racer_core.calibration.threshold import fewest_rows
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


@dataclass(frozen=True, slots=True)
class RiskBound:
    """A bound on the risk.

    Attributes:
        value: The risk is at most this,
        confidence: with this probability over calibration sets; None: on average over them.
    """

    value: float
    confidence: float | None

    @property
    def header(self) -> str:
        """``0.1``, or ``0.142;confidence=0.95``."""
        confidence = "" if self.confidence is None else f";confidence={self.confidence:g}"
        return f"{self.value}{confidence}"

    @property
    def in_words(self) -> str:
        """``at most 0.1 on average``, or ``at most 0.142 with confidence 0.95``."""
        how = "on average" if self.confidence is None else f"with confidence {self.confidence:g}"
        return f"at most {self.value:g} {how}"

    def as_json(self) -> dict[str, float | None]:
        """The bound as JSON."""
        return {"value": self.value, "confidence": self.confidence}


def _rounded_up(risk: float) -> float:
    """A risk with four digits, no smaller: headers and JSON show the same bound."""
    return min(math.ceil(risk * 1e4) / 1e4, 1.0)


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
        is_alpha_declared: Whether alpha is one of the levels that were declared before.
        risk_band: The bound on the threshold's risk that holds, together with those of all
            declared levels, or else of all thresholds, with probability 1 - ``BAND_DELTA``: the
            guarantee of an alpha that may have been chosen by looking at the rows. None: alpha is
            fixed, or graded or weighted rows have no band.
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
    is_alpha_declared: bool
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
            risk_band: ``SetPredictor.picked_bound`` of alpha; used if it is not fixed.
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
            is_alpha_declared=decision.alpha in options.levels and decision.score == options.score,
            answer_limit=_certified(answer_limit, decision, vote),
            risk_band=None if is_alpha_fixed else risk_band,
            calibration_id=calibration_id,
            reasons=tuple(dict.fromkeys(map(str, reasons))),
        )

    @property
    def alpha_basis(self) -> str:
        """What the bound of alpha rests on.

        ``fixed`` before the rows; ``declared`` before them with others; ``band``: bounded by it;
        ``assumed``: there is none.
        """
        if self.is_alpha_fixed:
            return "fixed"
        if self.risk_band is None:
            return "assumed"
        return "declared" if self.is_alpha_declared else "band"

    @property
    def bound(self) -> RiskBound | None:
        """What holds of the risk; None where the guarantee is void."""
        if not self.holds:
            return None
        if self.is_alpha_fixed or self.risk_band is None:
            return RiskBound(self.alpha, self.delta and round(1.0 - self.delta, 12))
        return RiskBound(_rounded_up(self.risk_band), 1.0 - BAND_DELTA)

    @property
    def advice(self) -> str | None:
        """What would give the smaller bound alpha; None where it holds, or nothing does."""
        if self.bound is None or self.is_alpha_fixed or self.risk_band is None or self.trivial:
            return None
        rows = max(self.n, fewest_rows(self.alpha, self.delta) or self.n)
        return (
            f"alpha {self.alpha:g} was picked after these rows were seen: label {rows} new rows "
            f"that count and calibrate on them, and {self.alpha:g} itself holds"
        )

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
        holds, bound = self.holds, self.bound
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
                "bound": bound and bound.as_json(),
                "advice": self.advice,
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
