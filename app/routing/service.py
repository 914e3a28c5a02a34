"""The routing service: from a query to a certified set, before any candidate is called."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from app.errors import Overloaded
from app.routing.active_calibration import ActiveCalibration
from app.routing.candidate_choice import CandidateChooser
from app.routing.decision import CertifiedDecision, ChosenBy, ConversationTerms, ServedCertificate
from app.routing.decision_cache import CacheKey, DecisionCache
from app.routing.fallback import FallbackRouting
from app.routing.groups import Grouping, GroupThreshold
from app.routing.premises import CandidateChoice, Premises, is_whole_but_for_outages
from app.routing.reasons import Reason
from app.routing.request import RiskLevels, RoutingRequest, alphas_for
from app.routing.router_breaker import RouterBreaker, RouterOut
from app.routing.row_selection import RowSelection, RowSelector, TurnKind
from app.routing.scorer import ScoredQuery
from app.routing.scoring_inputs import ScoringInputs
from app.routing.set_selection import SetSelector
from app.settings import Settings
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from app.wire.schemas import DecisionOptions
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import InfeasibleAlphaError
from racer_core.trained_router import TrainedRouter
from racer_core.types import RoutingDecision

log = logging.getLogger(__name__)

SUB_POOL_WAIT_S: Final = 0.25  # for a smaller pool's threshold; then that pool is called whole
_NOT_BY_ALPHA: Final = (ChosenBy.EVERYONE, ChosenBy.FALLBACK)  # the same set at every alpha


class RoutingService:
    """Selects the set for one query with the active calibration."""

    def __init__(
        self,
        *,
        settings: Settings,
        trained: TrainedRouter,
        scoring: RouterBreaker,
        active: ActiveCalibration,
        grouping: Grouping,
        rows: RowSelector,
        candidates: CandidateChooser,
        fallback: FallbackRouting,
        inputs: ScoringInputs,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._trained = trained
        self._sets = SetSelector(settings, trained.pool)
        self._scoring = scoring
        self._active = active
        self._grouping = grouping
        self._rows = rows
        self._candidates = candidates
        self._fallback = fallback
        self._inputs = inputs
        self._metrics = metrics
        self._cache = DecisionCache[CertifiedDecision](settings.limits.decisions_kept)

    async def route(
        self, request: RoutingRequest, deadline: float, drawn_by: str = ""
    ) -> CertifiedDecision:
        """Score the query and apply the threshold; before a calibration is active, fall back.

        Args:
            request: The query, its options and its caller.
            deadline: A ``time.monotonic()``; routing has its own time limit, too.
            drawn_by: What draws it for a canary; empty: nothing does.

        Raises:
            Overloaded: The router's queue is full, or too slow.
            InputError: Alpha outside (0, 1), or no candidate can serve this request.
            Forbidden: The key may not request this alpha or candidate.
            NotFound: A candidate that is not in the pool.
            InfeasibleAlphaError: Too few rows for alpha, and the operator chose to reject.
        """
        if not self._active.ready:
            return await self._fallback.route(request, deadline)
        record = self._active.record_for(drawn_by)
        routed = await self._find_or_decide(record, request, deadline)
        self._metrics.count_decision(len(routed.decision.selected), holds=routed.certificate.holds)
        return routed

    async def levels(self, request: RoutingRequest, deadline: float) -> RiskLevels:
        """The decision, and the decision at every other alpha. No metric counts it.

        Only for one question without turns before it. Raises as :meth:`route`.
        """
        if not self._active.ready:
            return await self._fallback.levels(request, deadline)
        record = self._active.record()
        routed = await self._find_or_decide(record, request, deadline)
        pool, scored = routed.certificate.pool, routed.scored
        threshold = await self._threshold(record, pool, routed.group, routed.population)
        if threshold is None or scored is None or routed.chosen_by in _NOT_BY_ALPHA:
            return RiskLevels(routed=routed)
        found = await asyncio.to_thread(
            threshold.calibration.levels,
            routed.fingerprint,
            self._sets.scores_of(pool, scored),
            alphas_for(request.caller.max_alpha, routed.decision.alpha),
            neighbours=scored.neighbours,
            score=routed.decision.score,
        )
        found = replace(found, decisions=self._cap(found.decisions))
        return RiskLevels(routed=routed, found=found, prices=threshold.calibration.prices)

    def _cap(self, decisions: Sequence[RoutingDecision]) -> tuple[RoutingDecision, ...]:
        """The decisions that would not be refused, each with at most ``fan_out`` candidates."""
        limit = self._settings.limits.fan_out
        refused = self._settings.routing.on_infeasible == "reject"
        return tuple(
            replace(each, selected=each.selected[:limit], scores=each.scores[:limit])
            for each in decisions
            if not (refused and each.trivial)
        )

    async def _find_or_decide(
        self, record: CalibrationRecord, request: RoutingRequest, deadline: float
    ) -> CertifiedDecision:
        options = self._with_alpha(request)
        choice = self._candidates.choice(request)
        if request.turn is not None:  # of a conversation: no other request is decided so
            scored = await self._score(request.query.text, deadline)
            return await self._certify(record, choice, options, request, scored)
        key = CacheKey(
            query=request.query,
            choice=choice,
            alpha=options.alpha,
            score=options.score,
            group=options.group,
            application=request.application,
            requested_alpha=self._candidates.requested_alpha(request),
            caller=request.caller,
        )
        place = record.id, record.is_chosen, self._inputs.changes
        routed = self._cache.find(place, key)
        if routed is None:
            scored = await self._score(request.query.text, deadline)
            routed = await self._certify(record, choice, options, request, scored)
            # Decisions of one record are kept: a canary's would displace them.
            if routed.is_lasting and record is self._active.record():
                self._cache.keep(place, key, routed)
        return routed

    async def without(
        self, routed: CertifiedDecision, request: RoutingRequest, failed: Collection[str]
    ) -> tuple[str, ...]:
        """The set of the surviving pool's threshold; empty when no candidate survives.

        For candidates that failed in the middle of a request. Such a failure may depend on the
        query, so this certifies nothing.
        """
        record = routed.record
        if record is None:
            return await self._fallback.without(routed, request, failed)
        names = tuple(name for name in routed.certificate.pool if name not in failed)
        if not names:
            return ()
        options = self._with_alpha(request)
        choice = CandidateChoice(names=names, down=tuple(failed))
        try:
            survived = await self._certify(record, choice, options, request, routed.scored)
        except InfeasibleAlphaError:  # too late to refuse: the others were called
            return names
        return survived.decision.selected

    async def _certify(
        self,
        record: CalibrationRecord,
        choice: CandidateChoice,
        options: DecisionOptions,
        request: RoutingRequest,
        scored: ScoredQuery | None,
    ) -> CertifiedDecision:
        """Decide among the chosen candidates, and certify the decision with its premises."""
        query, application = request.query, request.application
        group = self._grouping.of_request(
            query.text, options.group, request.caller.group, application
        )
        premise = "alike" if application is None else application.terms.premise
        turn, terms = request.turn, None
        if turn is not None:
            terms = ConversationTerms(
                calibration_id=record.id,
                pool=choice.names,
                alpha=options.alpha,
                score=options.score,
                group=group,
                conditions=query.conditions.identity,
            )
        is_whole = turn is not None and turn.continues(terms)
        rows = self._rows.select(record, query, group, premise, is_whole=is_whole)
        threshold = await self._threshold(record, choice.names, group, rows.population)
        served = self._settings.alpha_of(application and application.name)
        usual = record.options(group, served, rows.population)
        premises = self._premises(record, usual, choice, options, request, rows, threshold)
        fingerprint = self._trained.fingerprint(query.text)
        decision, chosen_by = self._sets.select(
            choice.names,
            premises,
            threshold and threshold.calibration,
            usual,
            options,
            scored,
            fingerprint,
            application and application.terms.on_uncovered,
            turn and turn.continuation,
        )
        n, risk_band = 0, 0.0  # the whole pool is called
        answer_limit = None
        of_rows = record.populations[rows.population]
        reasons = [
            *record.void_reasons,
            *of_rows.void_reasons,
            *self._inputs.reasons(of_rows),
            *premises.reasons,
        ]
        if threshold is not None:
            calibration = threshold.calibration
            n = calibration.n
            if decision.score == usual.score:  # the scores share no units
                answer_limit = calibration.answer_limit
            if chosen_by is ChosenBy.FALLBACK:
                risk_band = 1.0  # nothing is known
            elif not decision.trivial:
                risk_band = calibration.picked_bound(decision.alpha, decision.score, usual.levels)
            elif chosen_by is ChosenBy.THRESHOLD:
                reasons.append(calibration.trivial_reason(decision.alpha))
        if scored is None and chosen_by is ChosenBy.EVERYONE:
            reasons.append(Reason.ROUTER_OUT if self._scoring.is_out else Reason.ROUTER_FAILED)
        is_conversation = rows.turn is TurnKind.CONVERSATION
        if decision.is_kept and not is_conversation:
            reasons.append(Reason.PINNED)
        routed = CertifiedDecision(
            decision=decision,
            certificate=ServedCertificate.of(
                usual,
                decision,
                pool=choice.names,
                n=n,
                risk_band=risk_band,
                answer_limit=answer_limit,
                vote=self._settings.aggregation.rule,
                group=threshold and threshold.group,
                calibration_id=record.id,
                reasons=reasons,
            ).under(rows.premise, rows.turns),
            pool_scores=self._best_first(choice.names, scored),
            fingerprint=fingerprint,
            scored=scored,
            record=record,
            population=rows.population,
            group=group,
            member=application,
            chosen=decision.selected,
            chosen_by=chosen_by,
            conversation=terms if is_conversation and decision.order else None,
        )
        if decision.abstained and premises.is_other_kind:
            # The router judged the text alone, which is not what the request asks for.
            routed = routed.choosing(
                (routed.strongest,), ChosenBy.STRONGEST, Reason.ABSTAINED_STRONGEST
            )
        limit = self._settings.limits.fan_out
        if len(decision.selected) > limit:
            routed = routed.calling(decision.selected[:limit], Reason.FAN_OUT_LIMITED)
        return routed

    def _premises(
        self,
        record: CalibrationRecord,
        usual: CalibrationOptions,
        choice: CandidateChoice,
        options: DecisionOptions,
        request: RoutingRequest,
        rows: RowSelection,
        threshold: GroupThreshold | None,
    ) -> Premises:
        """What the certificate of the request's decision rests on."""
        query, application = request.query, request.application
        if application is None:
            is_group_requested = options.group is not None and self._grouping.group_by == "request"
        else:
            is_group_requested = application.is_requested
        is_alpha_requested = self._candidates.requested_alpha(request) is not None
        return Premises(
            rows=rows,
            choice=choice,
            is_too_long=record.populations[rows.population].is_too_long(
                query.text_chars, self._settings.limits.query_chars
            ),
            is_too_large=query.is_too_large and rows.premise == "drawn",
            is_not_drawn=rows.premise == "drawn"
            and (
                (application is not None and application.lacks_session)
                or not is_whole_but_for_outages(choice.names, choice.down, self._settings.pool)
            ),
            is_other_kind=query.conditions.is_other_kind and bool(rows.differing),
            is_pending=threshold is None,
            has_rows=threshold is None or threshold.calibration.n > 0,
            is_alpha_requested=is_alpha_requested and options.alpha != usual.alpha,
            is_score_requested=options.score not in (None, usual.score),
            is_group_requested=is_group_requested and record.has_groups,
            is_group_calibrated=threshold is None or threshold.is_calibrated,
        )

    def _with_alpha(self, request: RoutingRequest) -> DecisionOptions:
        """The request's options, with the alpha in force."""
        alpha = self._candidates.alpha(request)
        if alpha == request.options.alpha:
            return request.options
        return request.options.model_copy(update={"alpha": alpha})

    async def _threshold(
        self,
        record: CalibrationRecord,
        names: tuple[str, ...],
        group: str | None,
        population: int,
    ) -> GroupThreshold | None:
        """The rows of the group for these candidates.

        None if they are not ready within ``SUB_POOL_WAIT_S``, or if too many others are being
        computed.
        """
        try:
            async with asyncio.timeout(SUB_POOL_WAIT_S):
                return await self._active.calibration(record, names, group, population=population)
        except (TimeoutError, Overloaded):
            return None

    async def _score(self, text: str, deadline: float) -> ScoredQuery | None:
        """Router scores; None if the router failed or is out: the whole pool must be called."""
        limit_s = min(self._settings.limits.route_timeout_s, deadline - time.monotonic())
        try:
            scored = await self._scoring.score(text, limit_s)
        except Overloaded:
            raise
        except RouterOut:
            return None
        except Exception:
            log.exception("the router failed; the whole pool is called")
            return None
        return scored if scored.usable else None

    def _best_first(self, names: Sequence[str], scored: ScoredQuery | None) -> dict[str, float]:
        """Router scores of these candidates, best first."""
        if scored is None:
            return {}
        scores = dict(zip(self._trained.pool, scored.scores, strict=True))
        return {name: scores[name] for name in sorted(names, key=lambda name: -scores[name])}
