"""What is called in the end: the threshold's set, or something else, and why."""

from __future__ import annotations

from app.answering.request import InferenceRequest
from app.answering.sessions import Sessions
from app.errors import Abstained, Forbidden
from app.routing.decision import CertifiedDecision, ChosenBy
from app.routing.reasons import Reason
from app.settings import Settings
from racer_core.aggregation.answers import Equality


class Overrides:
    """Applies what the operator or the request put in the place of the threshold's set."""

    def __init__(self, settings: Settings) -> None:
        self._routing = settings.routing
        self._only_top = settings.aggregation.open_ended == "top"
        self._sessions = Sessions(settings.routing.session_ttl_s)

    def applied(
        self, request: InferenceRequest, routed: CertifiedDecision, kind: Equality
    ) -> CertifiedDecision:
        """The set that is called; every step that changes it leaves its reason.

        Raises:
            Abstained: Nobody was selected and ``on_abstain`` is ``error``.
            Forbidden: The observed candidate is one that the key may not call.
        """
        if (observed := self._routing.observe) is not None:
            return _observing(request, routed, observed)
        routed = self._abstaining(request, routed)
        if request.session is not None:
            routed = self._pinned(request, request.session, routed)
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

    def _pinned(
        self, request: InferenceRequest, session: str, routed: CertifiedDecision
    ) -> CertifiedDecision:
        """The set of the session's first turn, as far as it can still be called."""
        selected = routed.decision.selected
        kept = self._sessions.set_of(f"{request.caller.name} {session}", selected)
        usable = tuple(name for name in kept if name in routed.certificate.pool)
        if not usable or set(usable) == set(selected):
            return routed
        return routed.choosing(usable, ChosenBy.OVERRIDDEN, Reason.PINNED)


def _observing(
    request: InferenceRequest, routed: CertifiedDecision, observed: str
) -> CertifiedDecision:
    """One candidate, whatever was chosen."""
    allowed = request.caller.candidates
    if allowed is not None and observed not in allowed:
        raise Forbidden(f"all requests go to {observed!r} now, which this key may not call")
    return routed.calling((observed,), Reason.OBSERVED)
