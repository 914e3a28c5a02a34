"""Fallback routing: which candidates answer ``auto`` before a calibration is active.

Such a decision rests on no rows: its certificate is void, ``not_calibrated``. Needs neither an
artifact nor a store. A request that no row covers may get the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from app.routing.candidate_choice import CandidateChooser
from app.routing.decision import CertifiedDecision, ChosenBy, ServedCertificate
from app.routing.groups import Grouping
from app.routing.reasons import Reason
from app.routing.request import RiskLevels, RoutingRequest
from app.settings import WHOLE_POOL, Settings
from app.telemetry.metrics import Metrics
from racer_core.calibration.decision import whole_pool_decision
from racer_core.calibration.options import CalibrationOptions
from racer_core.types import RoutingDecision


class FallbackRouting:
    """Chooses the configured fallback, among the candidates that the request may call.

    Args:
        settings: ``routing.fallback``, and the terms that a calibration would have.
        candidates: The candidates that a request may call.
        grouping: Finds the request's group.
        fingerprint: Keyed hash of a query.
        metrics: Counts decisions.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        candidates: CandidateChooser,
        grouping: Grouping,
        fingerprint: Callable[[str], bytes],
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._candidates = candidates
        self._grouping = grouping
        self._fingerprint = fingerprint
        self._metrics = metrics
        routing = settings.routing
        self._terms = CalibrationOptions(
            alpha=routing.alpha, score=routing.score, risk_target=routing.risk_target
        )

    async def route(
        self, request: RoutingRequest, deadline: float, drawn_by: str = ""
    ) -> CertifiedDecision:
        """The fallback, at once: neither the deadline nor a draw matters."""
        del deadline, drawn_by
        routed = self._decide(request)
        self._metrics.count_decision(len(routed.decision.selected), holds=False)
        return routed

    async def levels(self, request: RoutingRequest, deadline: float) -> RiskLevels:
        """The fallback at every alpha. No metric counts it."""
        del deadline
        return RiskLevels(routed=self._decide(request))

    async def without(
        self, routed: CertifiedDecision, request: RoutingRequest, failed: Collection[str]
    ) -> tuple[str, ...]:
        """The next candidate in the order of the pool."""
        del request
        return tuple(name for name in routed.certificate.pool if name not in failed)[:1]

    def _decide(self, request: RoutingRequest) -> CertifiedDecision:
        choice = self._candidates.choice(request)
        decision = self._decision(request, choice.names)
        text = request.query.text
        routed = CertifiedDecision(
            decision=decision,
            certificate=ServedCertificate.of(
                self._terms,
                decision,
                pool=choice.names,
                n=0,
                risk_band=1.0,  # nothing is known
                reasons=(
                    Reason.NOT_CALIBRATED,
                    *(Reason.CANDIDATE_DOWN.of(name) for name in choice.down),
                ),
            ),
            pool_scores={},
            fingerprint=self._fingerprint(text),
            scored=None,
            record=None,
            population=0,
            group=self._grouping.of_request(
                text, request.options.group, request.caller.group, request.application
            ),
            member=request.application,
            chosen=decision.selected,
            chosen_by=ChosenBy.FALLBACK,
        )
        limit = self._settings.limits.fan_out
        if len(decision.selected) > limit:
            routed = routed.calling(decision.selected[:limit], Reason.FAN_OUT_LIMITED)
        return routed

    def _decision(self, request: RoutingRequest, names: tuple[str, ...]) -> RoutingDecision:
        alpha = self._candidates.alpha(request)
        terms = replace(self._terms, alpha=alpha, score=request.options.score or self._terms.score)
        return fallback_decision(self._settings.fallback, names, terms)


def fallback_decision(
    fallback: str, names: tuple[str, ...], terms: CalibrationOptions
) -> RoutingDecision:
    """The decision to call a configured candidate, which needs no row and no score.

    Args:
        fallback: A candidate, or ``WHOLE_POOL``.
        names: The candidates that the request may call; the first where ``fallback`` is not among
            them.
        terms: Alpha, score and risk target.
    """
    if fallback == WHOLE_POOL:
        return whole_pool_decision(
            names,
            [0.0] * len(names),
            risk_target=terms.risk_target,
            alpha=terms.alpha,
            score=terms.score,
            truncated=False,
        )
    return RoutingDecision(
        selected=(fallback if fallback in names else names[0],),
        scores=(0.0,),
        null_selected=False,
        alpha=terms.alpha,
        score=terms.score,
        lambda_hat=math.nan,  # there is no threshold
        truncated=False,
    )
