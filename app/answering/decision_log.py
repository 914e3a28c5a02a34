"""The decision log, the last stage: tokens charged, the decision recorded, traced and counted."""

from __future__ import annotations

import time

from app.answering.cost_meter import Costs
from app.answering.fan_out import FanOutResult
from app.answering.outcome import Outcome
from app.answering.request import InferenceRequest, RequestState
from app.answering.shadow_calls import ShadowCall, ShadowCalls
from app.answering.token_usage import answer_tokens, prompt_tokens
from app.monitoring.coverage import Coverage
from app.monitoring.decisions.record import DecisionRecord, RequestEnd
from app.monitoring.monitor import Monitor
from app.routing.decision import CertifiedDecision, ServedCertificate
from app.routing.request import RoutingRequest
from app.settings import GroupBy
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.utc import UtcTimes


class DecisionLog:
    """Records each decision once, however its request ends."""

    def __init__(
        self,
        *,
        monitor: Monitor | None,
        metrics: Metrics,
        tracer: Tracer | None,
        store_queries: bool,
        group_by: GroupBy,
        shadow_calls: ShadowCalls,
        costs: Costs | None,
        coverage: Coverage,
    ) -> None:
        self._monitor = monitor
        self._coverage = coverage
        self._costs = costs
        self._shadow_calls = shadow_calls
        self._metrics = metrics
        self._tracer = tracer
        self._store_queries = store_queries
        self._group_by: GroupBy = group_by
        self._times = UtcTimes()

    def record(
        self,
        state: RequestState,
        results: FanOutResult,
        outcome: Outcome,
        passed: FanOutResult | None = None,
    ) -> Outcome:
        """Charge the tokens of an answered request and record its decision.

        Args:
            state: The request.
            results: Its answers.
            outcome: What was made of them.
            passed: The answer that was passed through, and charged, as the sample keeps it.
        """
        _charge(state, results, outcome)
        self.record_decision(outcome, state.request)
        self.sample(state, results if passed is None else results.joined(passed))
        promised = outcome.certificate.same_answer
        if promised is not None and promised.made is not None:
            made = len(promised.made.names)
            spared = len(outcome.certificate.pool) - made
            self._metrics.same_answer_calls.labels("made").inc(made)
            self._metrics.same_answer_calls.labels("spared").inc(spared)
        return outcome

    def record_unanswered(
        self, state: RequestState, results: FanOutResult, ended: RequestEnd
    ) -> None:
        """Record a decision without an answer, and charge the answers that arrived."""
        outcome = Outcome.of(state, results, ended=ended)
        _charge(state, results, outcome)
        self._store(outcome, state.request)
        self.sample(state, results)

    def record_cancelled(self, state: RequestState, results: FanOutResult) -> None:
        """The same for a request whose client left: cancelled calls cost their prompts."""
        state.request.spend(len(results.cancelled) * prompt_tokens(state.request.fields))
        self.record_unanswered(state, results, RequestEnd.CANCELLED)

    def record_abstained(self, state: RequestState) -> None:
        """Record a decision that is answered with an error because its set is empty."""
        outcome = Outcome(
            decision_id=state.decision_id,
            routed=state.routed,
            certificate=state.routed.certificate,
            sampling_rate=state.sampling_rate,
            shadow_rate=state.shadow_rate,
            turn=state.turn,
            ended=RequestEnd.FAILED,
        )
        self._store(outcome, state.request)
        self.sample(state, FanOutResult())

    def sample(self, state: RequestState, results: FanOutResult) -> None:
        """Have the other candidates of a decision in the shadow sample called, in the background.

        Args:
            state: The request.
            results: The answers that it has.
        """
        if state.shadow_rate is not None:
            self._shadow_calls.add(
                ShadowCall(
                    decision_id=state.decision_id,
                    request=state.request,
                    pool=state.routed.certificate.pool,
                    kind=state.vote.kind,
                    reader=state.vote.reader,
                    conversation=state.turn and state.turn.conversation,
                    replies=dict(results.replies),
                    failures={
                        name: exc for name, exc in results.failures.items() if exc.is_of_request
                    },
                    verdicts={
                        name: verdict
                        for name, verdict in (state.rounds.verdicts if state.rounds else {}).items()
                        if name in results.replies
                    },
                    costs=self._costs,
                )
            )

    def record_decision(self, outcome: Outcome, request: RoutingRequest) -> Outcome:
        """Record a decision whose tokens are charged already, or that used none."""
        self._store(outcome, request)
        self._metrics.overhead_seconds.observe(outcome.overhead_ms / 1e3)
        self.trace(outcome.decision_id, outcome.routed, outcome.certificate)
        return outcome

    def trace(
        self, decision_id: str, routed: CertifiedDecision, certificate: ServedCertificate
    ) -> None:
        """Put a decision on the request's span; a later call replaces it."""
        if self._tracer is not None:
            self._tracer.record_decision(
                decision_id=decision_id,
                alpha=certificate.alpha,
                selected=routed.decision.selected,
                holds=certificate.holds,
                reasons=certificate.reasons,
            )

    def _cover(self, outcome: Outcome, request: InferenceRequest) -> None:
        """Tell the access log and the coverage whether the answer is certified."""
        certificate, application = outcome.certificate, outcome.routed.application
        if request.certified is not None:
            request.certified(certificate.header)
        if certificate.holds:
            self._coverage.add_certified(application)
        else:
            self._coverage.add_void(
                application,
                request.query,
                request.fields,
                request.api_format.path,
                certificate.void_reasons,
            )

    def _store(self, outcome: Outcome, request: RoutingRequest) -> None:
        if isinstance(request, InferenceRequest) and outcome.ended is RequestEnd.ANSWERED:
            self._cover(outcome, request)
        if (calls := outcome.routed.calls_in_rounds) is not None:
            self._metrics.count_decision(calls, holds=outcome.routed.certificate.holds)
        if self._costs is not None and outcome.cost is not None:
            self._costs.book(outcome.cost, outcome.routed.application, request.pool)
        if self._monitor is None:  # no store is open
            return
        query = request.query.text if self._store_queries else None
        sampler = self._monitor.sampler
        is_sampled = outcome.shadow_rate is not None
        is_row = is_sampled and outcome.routed.is_promised and sampler.answer_setup
        self._monitor.record(
            _decision_record(
                outcome,
                request.caller.name,
                query,
                created_at=self._times.text(time.time_ns(), digits=6),
                group_by=self._group_by,
                sampled_under=sampler.sampled_under if is_sampled else None,
                answer_setup=sampler.answer_setup if is_row else None,
            )
        )


def _charge(state: RequestState, results: FanOutResult, outcome: Outcome) -> None:
    """Settle the cost, and charge the tokens of the answers that arrived, and of the evaluator."""
    if state.request.reservation is not None and outcome.cost is not None:
        state.request.reservation.settle(outcome.cost.total.amount)
    fields = state.request.fields
    answers = [answer_tokens(fields, reply) for reply in results.replies.values()]
    state.request.spend(sum(answers) + outcome.ratings.usage.get("total_tokens", 0))


def _decision_record(
    outcome: Outcome,
    key: str,
    query: str | None,
    *,
    created_at: str,
    group_by: GroupBy,
    sampled_under: str | None,
    answer_setup: str | None,
) -> DecisionRecord:
    """The stored form of an outcome.

    Args:
        outcome: The outcome.
        key: Name of the caller's key.
        query: The query, where the configuration stores queries.
        created_at: The present time.
        group_by: The configured origin of a request's group.
        sampled_under: The configuration by which it was drawn; None: it was not.
        answer_setup: That of the promise `same_answer`; None: it is no row of it.
    """
    routed, certificate = outcome.routed, outcome.certificate
    return DecisionRecord.of(
        routed.routing_record,
        decision_id=outcome.decision_id,
        created_at=created_at,
        key=key,
        holds=certificate.holds,
        reasons=certificate.reasons,
        served_by=outcome.merged.winner if outcome.merged else None,
        answered=tuple([answer.candidate for answer in outcome.answers]),
        sampling_rate=outcome.sampling_rate,
        shadow_rate=outcome.shadow_rate,
        sampled_under=sampled_under,
        answer_setup=answer_setup,
        conversation=outcome.turn and outcome.turn.conversation,
        turn=outcome.turn and outcome.turn.number,
        outcome=outcome.ended,
        query=query,
        group_by=group_by,
        sequence=certificate.same_answer,
        cost=None if outcome.cost is None else outcome.cost.as_json(),
    )
