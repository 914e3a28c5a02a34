"""The request router, the first stage of a request: its decision, deadline and rule of the vote."""

from __future__ import annotations

import time
from dataclasses import replace

from app.answering.answer_forms import AnswerReader
from app.answering.cost_meter import Costs
from app.answering.decision_log import DecisionLog
from app.answering.outcome import Outcome
from app.answering.request import InferenceRequest, RequestState
from app.answering.rounds import Rounds, RoundsVote, UsualLatencies
from app.answering.sessions import Sessions
from app.answering.vote import Vote
from app.errors import Abstained, Forbidden
from app.ids import IdGenerator
from app.monitoring.monitor import Monitor
from app.monitoring.samples.draw import ConversationTurn
from app.monitoring.samples.sampler import Sampler
from app.routing.decision import CertifiedDecision, ChosenBy
from app.routing.reasons import Reason, Remark
from app.routing.request import RiskLevels, Routing, RoutingRequest
from app.same_answer.routing import SameAnswerRouting
from app.settings import Settings
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.rule import equality_of
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method
from racer_core.records.conversation import WITHOUT_SYSTEM


class RequestRouter:
    """Routes requests, and applies what overrides the threshold's set."""

    def __init__(
        self,
        *,
        settings: Settings,
        routing: Routing,
        monitor: Monitor | None,
        reader: AnswerReader,
        stacked: StackedVote | None,
        decision_log: DecisionLog,
        same_answer: SameAnswerRouting,
        latencies: UsualLatencies,
        costs: Costs | None,
    ) -> None:
        self._costs = costs
        self._settings = settings
        self._routing = routing
        self._monitor = monitor
        self._reader = reader
        self._stacked = stacked
        self._decision_log = decision_log
        self._same_answer = same_answer
        self._latencies = latencies
        self._overrides = Overrides(settings)
        self._sessions = Sessions(settings.routing.session_ttl_s, settings.limits.query_chars)
        self._rule = self._rule_without_scores = settings.aggregation
        if self._rule.method in (Method.LOG_ODDS, Method.STACKED):  # a score of 0 votes against
            self._rule_without_scores = self._rule.model_copy(update={"method": Method.MAJORITY})
        self._ids = IdGenerator()

    async def route(self, request: InferenceRequest) -> RequestState:
        """Decide which candidates a request calls, and how their answers will be counted.

        Raises:
            Abstained: The set is empty and ``on_abstain`` is ``error``.
            RacerError: As :meth:`Routing.route`.
        """
        started = time.monotonic()
        deadline = self._deadline(request.options.timeout, started)
        decision_id = request.api_format.id_prefix + self._ids.new_id()
        session = request.session and f"{request.caller.name} {request.session}"
        if session is not None:
            request = replace(request, turn=self._sessions.turn_of(session, request))
        routed = await self._decision(request, deadline, drawn_by=session or decision_id)
        if session is not None:
            self._sessions.keep(session, request.turn, routed)
        sampling_rate, is_sampled, turn = 0.0, False, None
        if self._monitor is not None and (sampler := self._monitor.sampler).is_on:
            # Drawn before anything overrides, refuses or fails it.
            turn = _turn_of(request, sampler)
            sampling_rate = sampler.rate_of(routed.application)
            is_sampled = sampler.draw(decision_id, sampling_rate, turn)
        costs = self._costs
        meter = None if costs is None else costs.meter(request.fields, routed.application)
        question = request.query.text
        kind = equality_of(self._settings.aggregation.equality, question, request.fields)

        def state(decision: CertifiedDecision) -> RequestState:
            vote = Vote(
                rule=self._rule if decision.scored is not None else self._rule_without_scores,
                kind=kind,
                reader=self._reader,
                stacked=self._stacked,
                scores=decision.vote_scores,
                members=decision.decision.selected,
                deadline=deadline,
                question=question,
                waits_for_all=request.options.explain,
            )
            if decision.rounds is not None:
                is_same = self._reader.is_same if kind.is_pairwise else None
                rounds = Rounds(
                    decision.rounds, decision_id, is_same=is_same, compared=vote.compared
                )
                vote = RoundsVote.of(
                    vote,
                    rounds,
                    latencies=self._latencies,
                    application=decision.application,
                )
            return RequestState(
                request=request,
                decision_id=decision_id,
                routed=decision,
                vote=vote,
                started=started,
                deadline=deadline,
                sampling_rate=sampling_rate,
                shadow_rate=sampling_rate if is_sampled else None,
                turn=turn if is_sampled else None,
                meter=meter,
            )

        try:
            overridden = self._overrides.applied(request, routed, kind)
        except Abstained:
            self._decision_log.record_abstained(state(routed))
            raise
        self._decision_log.trace(decision_id, overridden, overridden.certificate)
        return state(overridden)

    async def decide(self, request: RoutingRequest) -> Outcome:
        """The decision alone, as an outcome without answers."""
        started = time.monotonic()
        decision_id = f"chatcmpl-{self._ids.new_id()}"
        deadline = self._deadline(request.options.timeout, started)
        routed = await self._decision(request, deadline, drawn_by=decision_id)
        return Outcome(
            decision_id=decision_id,
            routed=routed,
            certificate=routed.certificate,
            overhead_ms=(time.monotonic() - started) * 1e3,
        )

    async def levels(self, request: RoutingRequest) -> RiskLevels:
        """The set that every alpha would select; for calls in rounds the plan alone."""
        promised = self._same_answer.section(request)
        if promised is not None:
            return RiskLevels(routed=await self._same_answer.decide(request, promised))
        deadline = self._deadline(request.options.timeout, time.monotonic())
        levels = await self._routing.levels(request, deadline)
        routed = self._with_alarms(levels.routed)
        remarks = self._remarks(request, routed, records=False)
        return replace(levels, routed=routed.remarked(remarks, repeated=routed.repeated))

    async def _decision(
        self, request: RoutingRequest, deadline: float, drawn_by: str
    ) -> CertifiedDecision:
        """The decision, with what the monitor knows of the calibration and of this query."""
        promised = self._same_answer.section(request)
        if promised is not None:
            routed = await self._same_answer.route(request, promised)
            remarks = self._remarks(request, routed, records=True)
            return routed.remarked(remarks, repeated=routed.repeated)
        routed = self._with_alarms(await self._routing.route(request, deadline, drawn_by))
        if self._monitor is None:
            return routed
        repeated = self._monitor.is_repeat(
            routed.fingerprint,
            routed.certificate.reasons,
            routed.application,
            routed.population,
            routed.certificate.calibration_id,
        )
        remarks = self._remarks(request, routed, records=True)
        return routed.remarked(remarks, repeated=repeated)

    def _remarks(
        self, request: RoutingRequest, routed: CertifiedDecision, *, records: bool
    ) -> tuple[Remark, ...]:
        """The remarks on a query, whether its certificate holds or not.

        There are none where the fingerprint is of a part of the query, which others may share.
        """
        query, fingerprint = request.query, routed.fingerprint
        later = query.later
        is_of_a_part = query.is_cut or query.is_thinned or query.conditions.is_other_kind
        reads = self._settings.text_of(routed.application)
        is_of_a_part |= later and WITHOUT_SYSTEM[reads] != "conversation"
        if self._monitor is None or is_of_a_part:
            return ()
        remarks, record = (), routed.record
        if record is not None and record.has_query(fingerprint, routed.population, later=later):
            remarks = (Remark.CALIBRATION_QUERY,)
        key = request.caller.name
        if self._monitor.was_sent(key, fingerprint, later=later, records=records):
            remarks = (*remarks, Remark.REPEATED_QUERY)
        return remarks

    def _with_alarms(self, routed: CertifiedDecision) -> CertifiedDecision:
        """The decision, with what gateways share of the calibration that decided it."""
        if self._monitor is None or routed.record is None:
            return routed
        return routed.with_reasons(
            *self._monitor.shared_reasons(routed.record.id, routed.application)
        )

    def _deadline(self, timeout_s: float | None, started: float) -> float:
        longest_s = self._settings.limits.deadline_s
        return started + (longest_s if timeout_s is None else min(timeout_s, longest_s))


def _turn_of(request: InferenceRequest, sampler: Sampler) -> ConversationTurn | None:
    """The turn of a conversation by which a request is drawn."""
    application = request.application
    is_together = application is not None and application.terms.turns == "together"
    if not request.query.later and not is_together:
        return None
    return sampler.turn_of(
        request.fields,
        request.api_format.path,
        caller=request.caller.name,
        application=application and application.name,
        session=request.session,
        is_together=is_together,
    )


# Overrides: what the operator or the request puts in the place of the threshold's set.


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
        if self._only_top and kind.is_pairwise and len(selected) > 1:
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
