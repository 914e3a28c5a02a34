"""Routing under the promise `same_answer`: order of calls, first round and threshold.

Needs neither scores nor an artifact: policy and threshold come from the answers that all candidates
gave to sampled requests of the same application. Until there are enough, the fallback answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from app.routing.candidate_choice import CandidateChooser
from app.routing.decision import AnswerGuarantee, CertifiedDecision, ChosenBy, ServedCertificate
from app.routing.fallback import FallbackRouting
from app.routing.groups import Grouping
from app.routing.premises import CandidateChoice, is_whole_but_for_outages
from app.routing.reasons import Reason
from app.routing.request import RoutingRequest
from app.routing.rounds_plan import RoundsPlan, RoundsTerms, terms_of
from app.same_answer.calibrations import AnswerCalibrations
from app.settings import ANSWERABLE, VOTE, SameAnswer, Settings
from app.store.answer_calibrations import AnswerCalibrationRecord
from app.telemetry.metrics import Metrics
from racer_core.errors import CalibrationError, InputError
from racer_core.sequential.policy import Policy
from racer_core.types import RoutingDecision, checked_alpha

RISK_TARGET: Final = "same_answer"
SCORE: Final = "stopping_score"
_USUAL: Final = SameAnswer()


@dataclass(frozen=True, slots=True)
class _Demand:
    """What a request demands of the promise.

    Attributes:
        section: What requests of its application usually demand.
        terms: Its own reference and number of rounds.
        alpha: Its own risk level.
    """

    section: SameAnswer
    terms: RoundsTerms
    alpha: float

    @property
    def is_usual(self) -> bool:
        """Whether it may be a row.

        Clients may choose other terms by difficulty: with those requests as rows, the usual ones
        would not be drawn like the rows.
        """
        return self.terms == terms_of(self.section) and self.alpha == self.section.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class SameAnswerRouting:
    """Decides requests under the promise.

    Attributes:
        settings: Which applications have the promise, and its terms.
        calibrations: The active calibrations.
        candidates: The candidates that a request may call.
        fallback: Decides while there is no calibration.
        grouping: Finds the request's group.
        fingerprint: Keyed hash of a query.
        metrics: Counts decisions.
    """

    settings: Settings
    calibrations: AnswerCalibrations
    candidates: CandidateChooser
    fallback: FallbackRouting
    grouping: Grouping
    fingerprint: Callable[[str], bytes]
    metrics: Metrics

    def section(self, request: RoutingRequest) -> SameAnswer | None:
        """The terms of a request with this promise; None for a request of another promise."""
        promise = request.options.promise
        application = request.application and request.application.name
        section = self.settings.same_answer_of(application)
        if promise is None:
            return section
        return (section or _USUAL) if promise == RISK_TARGET else None

    async def route(self, request: RoutingRequest, section: SameAnswer) -> CertifiedDecision:
        """The decision, counted unless its calls are counted. Raises as :meth:`decide`."""
        routed = await self.decide(request, section)
        if routed.certificate.same_answer is None:  # the fallback decided
            self.metrics.count_decision(len(routed.decision.selected), holds=False)
        return routed

    async def decide(self, request: RoutingRequest, section: SameAnswer) -> CertifiedDecision:
        """The decision: candidates in the order of calls, with the threshold that ends them.

        Raises:
            InputError: An unknown reference, alpha outside (0, 1), or no candidate is left.
            Forbidden: The key may not request this alpha or candidate.
            NotFound: A candidate that is not in the pool.
        """
        demand = self._demand(request, section)
        application = request.application and request.application.name
        record = self.calibrations.find(application)
        # Misses have the rows with a right candidate alone, which are no sample for another loss.
        if record is None or record.counts_misses != demand.terms.counts_misses:
            return await self._uncalibrated(request, demand)
        choice = self.candidates.choice(request)
        wanted = record, choice.names, demand.terms, demand.alpha
        plan = self.calibrations.cached_plan(*wanted)
        if plan is None:
            try:
                plan = await asyncio.to_thread(self.calibrations.plan, *wanted)
            except CalibrationError:  # on no row is one of these candidates right
                return await self._uncalibrated(request, demand)
        routed = self._certified(request, demand, record, choice, plan)
        limit = self.settings.limits.fan_out
        if len(routed.decision.selected) > limit:
            routed = routed.calling(routed.decision.selected[:limit], Reason.FAN_OUT_LIMITED)
        return routed

    async def _uncalibrated(self, request: RoutingRequest, demand: _Demand) -> CertifiedDecision:
        routed = (await self.fallback.levels(request, math.inf)).routed
        return replace(routed, is_promised=demand.is_usual)

    def _demand(self, request: RoutingRequest, section: SameAnswer) -> _Demand:
        options = request.options
        reference = options.reference or section.reference
        if reference not in (VOTE, section.reference, *self.settings.pool):
            raise InputError(
                f"no candidate {reference[:128]!r}; a reference is `{VOTE}` or one of "
                f"{list(self.settings.pool)}",
                param="reference",
            )
        terms = RoundsTerms(reference, options.max_rounds or section.max_rounds)
        alpha = checked_alpha(self.candidates.alpha_within(request, section.alpha))
        return _Demand(section, terms, alpha)

    def _certified(
        self,
        request: RoutingRequest,
        demand: _Demand,
        record: AnswerCalibrationRecord,
        choice: CandidateChoice,
        plan: RoundsPlan,
    ) -> CertifiedDecision:
        threshold, found = plan.threshold, plan.calibration
        policy, alpha = found.policy, demand.alpha
        reliabilities = dict(zip(policy.pool, policy.reliabilities, strict=True))
        # Behind a reference come those that are called only after it failed.
        names = tuple(dict.fromkeys((*policy.order, *policy.pool)))
        decision = RoutingDecision(
            selected=names,
            scores=tuple(map(reliabilities.__getitem__, names)),
            null_selected=False,
            alpha=alpha,
            score=self.settings.routing.score,
            lambda_hat=threshold,
            truncated=False,
        )
        text, application = request.query.text, request.application
        section = self.settings.same_answer_of(application and application.name)
        reasons = self._reasons(request, demand, record, choice)
        if threshold == math.inf:
            reasons = (*reasons, Reason.ALPHA_INFEASIBLE)
        is_alpha_fixed = Reason.ALPHA_ASSUMED not in reasons
        certificate = ServedCertificate(
            risk_target=ANSWERABLE if demand.terms.counts_misses else RISK_TARGET,
            alpha=alpha,
            delta=None,
            r=1,
            unit="request",
            law="beta",
            group=record.application or None,
            pool=policy.pool,
            weights=None,
            labels=None,
            trivial=threshold == math.inf,
            lambda_hat=threshold,
            score=SCORE,
            n=found.n,
            is_alpha_fixed=is_alpha_fixed,
            is_alpha_declared=False,
            risk_band=None if is_alpha_fixed else plan.risk_band,
            answer_limit=None,
            calibration_id=record.id,
            reasons=tuple(map(str, reasons)),
            premise="drawn",
            same_answer=AnswerGuarantee(
                reference=policy.reference or (ANSWERABLE if demand.terms.counts_misses else VOTE),
                equality=self.settings.aggregation.equality,
                max_rounds=demand.terms.max_rounds,
                evidence=_checker(section, policy),
                order=policy.order,
                borders=policy.borders,
                expected_calls=plan.expected_calls,
                trivial=threshold == math.inf,
            ),
        )
        return CertifiedDecision(
            decision=decision,
            certificate=certificate,
            pool_scores={},
            fingerprint=self.fingerprint(text),
            scored=None,
            record=None,
            population=0,
            group=self.grouping.of_request(
                text, request.options.group, request.caller.group, application
            ),
            member=application,
            chosen=names,
            chosen_by=ChosenBy.ROUNDS,
            rounds=plan if len(names) > 1 else None,
            is_promised=demand.is_usual,
        )

    def _reasons(
        self,
        request: RoutingRequest,
        demand: _Demand,
        record: AnswerCalibrationRecord,
        choice: CandidateChoice,
    ) -> tuple[str, ...]:
        """What the certificate rests on, in the order of a certificate."""
        application, section, terms = request.application, demand.section, demand.terms
        evidence = record.evidence  # its own terms are those that its alarm watches
        own = RoundsTerms(evidence["reference"], evidence["max_rounds"])
        is_same = own == terms == terms_of(section)
        is_same_alpha = record.alpha == demand.alpha == section.alpha
        is_whole = is_whole_but_for_outages(choice.names, choice.down, record.pool)
        has_reference = terms.reference in (VOTE, ANSWERABLE, *choice.names)
        is_stale = self.calibrations.stale(record) is not None
        facts = (
            (is_stale, Reason.STALE.of(RISK_TARGET)),
            (record.is_chosen, Reason.CHOSEN_BY_FIGURES),
            (not has_reference, Reason.REFERENCE_UNAVAILABLE),
            (not is_whole, Reason.NOT_DRAWN),
            (request.query.later, Reason.MULTI_TURN),
            (not is_same, Reason.TERMS_ASSUMED),
            (application is not None and application.is_requested, Reason.GROUP_ASSUMED),
            (not is_same_alpha, Reason.ALPHA_ASSUMED),
        )  # fmt: skip
        return (*choice.reasons, *(reason for is_so, reason in facts if is_so))


def _checker(section: SameAnswer | None, policy: Policy) -> str | None:
    """The kind of the checker whose verdicts a policy reads."""
    if policy.checker is None or section is None or section.evidence is None:
        return None
    return section.evidence.kind
