"""Overrides: what the operator or the request puts in the place of the threshold's set."""

from __future__ import annotations

from app.answering.request import InferenceRequest
from app.errors import Abstained, Forbidden
from app.routing.decision import CertifiedDecision, ChosenBy
from app.routing.reasons import Reason
from app.settings import Settings
from racer_core.aggregation.answers import Equality


class Overrides:
    """Applies the configured and requested overrides to a decision."""

    def __init__(self, settings: Settings) -> None:
        self._routing = settings.routing
        self._only_top = settings.aggregation.open_ended == "top"

    def applied(
        self, request: InferenceRequest, routed: CertifiedDecision, kind: Equality
    ) -> CertifiedDecision:
        """The decision with the set that is called; each override adds its reason.

        Raises:
            Abstained: The set is empty and ``on_abstain`` is ``error``.
            Forbidden: The key may not call the observed candidate.
        """
        if (observed := self._routing.observe) is not None:
            return _observing(request, routed, observed)
        routed = self._abstaining(request, routed)
        selected = routed.decision.selected
        if self._only_top and kind is Equality.SEMANTIC and len(selected) > 1:
            return routed.calling(selected[:1], Reason.NO_VOTE)
        return routed

    def _abstaining(
        self, request: InferenceRequest, routed: CertifiedDecision
    ) -> CertifiedDecision:
        if not routed.decision.abstained:
            return routed
        match request.options.on_abstain or self._routing.on_abstain:
            case "error":
                raise Abstained("the router abstained: no candidate is likely to be right")
            case "strongest":
                return routed.choosing(
                    (routed.strongest,), ChosenBy.STRONGEST, Reason.ABSTAINED_STRONGEST
                )
            case "refuse":
                return routed


def _observing(
    request: InferenceRequest, routed: CertifiedDecision, observed: str
) -> CertifiedDecision:
    """Call the observed candidate instead of the set."""
    allowed = request.caller.candidates
    if allowed is not None and observed not in allowed:
        raise Forbidden(f"all requests go to {observed!r} now, which this key may not call")
    return routed.calling((observed,), Reason.OBSERVED)
