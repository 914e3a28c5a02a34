"""From a query to a certified set: the half of a request that costs no tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.access.api_keys import Caller
from app.errors import Forbidden, NotFound, Overloaded
from app.routing.active_calibration import ActiveCalibration
from app.routing.certificate import Certificate
from app.routing.decision import CertifiedDecision, ChosenBy
from app.routing.decision_cache import CacheKey, DecisionCache
from app.routing.groups import Grouping, GroupThreshold
from app.routing.query import Query
from app.routing.reasons import Reason
from app.routing.risk_levels import RiskLevels, alphas_for
from app.routing.scorer import RouterBackend, ScoredQuery
from app.settings import Settings
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from app.wire.schemas import DecisionOptions
from racer_core.calibration.calibration import Calibration
from racer_core.errors import InfeasibleAlphaError, InputError
from racer_core.racer import Trained
from racer_core.types import RoutingDecision

log = logging.getLogger(__name__)

SUB_POOL_WAIT_S: Final = 0.25  # for a threshold of a smaller pool; then its whole pool is called


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRequest:
    """What is to be decided, and for whom."""

    query: Query
    options: DecisionOptions
    caller: Caller
    pool: str | None = None  # a named part of the pool


class RoutingService:
    """Chooses the set for one query with the calibration that is active at that moment."""

    def __init__(
        self,
        settings: Settings,
        trained: Trained,
        scoring: RouterBackend,
        active: ActiveCalibration,
        grouping: Grouping,
        down: Callable[[], Collection[str]],
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._trained = trained
        self._scoring = scoring
        self._active = active
        self._grouping = grouping
        self._down = down
        self._metrics = metrics
        self._kept = DecisionCache[CertifiedDecision](settings.limits.decisions_kept)

    async def route(self, ask: RoutingRequest, deadline: float) -> CertifiedDecision:
        """Score the query and apply the threshold.

        Args:
            ask: What is to be decided.
            deadline: Of the request, a ``time.monotonic()``; routing has its own limit, too.

        Raises:
            NotReady: No calibration is active.
            Overloaded: The router's queue is full, or too slow.
            InputError: Alpha outside (0, 1), or no candidate can be asked this.
            Forbidden: An alpha or a candidate that the key may not ask for.
            NotFound: A candidate that is not in the pool.
            InfeasibleAlphaError: Too few rows for alpha, and the operator chose to reject.
        """
        routed = await self._routed(ask, deadline)
        self._count(routed)
        return routed

    async def levels(self, ask: RoutingRequest, deadline: float) -> RiskLevels:
        """The decision, and what it would be at every other alpha. It is counted nowhere.

        Only for one question without turns before it. Raises as :meth:`route`.
        """
        routed = await self._routed(ask, deadline)
        record, pool, scored = routed.record, routed.certificate.pool, routed.scored
        threshold = await self._threshold(record, pool, routed.group, later=False)
        if threshold is None or scored is None or routed.chosen_by is ChosenBy.EVERYONE:
            return RiskLevels(routed=routed)
        found = await asyncio.to_thread(
            threshold.calibration.levels,
            routed.fingerprint,
            [scored.scores[self._trained.pool.index(name)] for name in pool],
            alphas_for(ask.caller.max_alpha, routed.decision.alpha),
            neighbours=scored.neighbours,
            score=routed.decision.score,
        )
        found = replace(found, decisions=self._served(found.decisions))
        return RiskLevels(routed=routed, found=found, prices=threshold.calibration.prices)

    def _served(self, decisions: Sequence[RoutingDecision]) -> tuple[RoutingDecision, ...]:
        """Those that would not be refused, each with no more candidates than may be called."""
        most = self._settings.limits.fan_out
        refused = self._settings.routing.on_infeasible == "reject"
        return tuple(
            replace(each, selected=each.selected[:most], scores=each.scores[:most])
            for each in decisions
            if not (refused and each.trivial)
        )

    async def _routed(self, ask: RoutingRequest, deadline: float) -> CertifiedDecision:
        record = self._active.record()  # read once: one record decides and certifies
        query, options = ask.query, self._with_defaults(ask)
        reasons = list(query.reasons)
        names = self._allowed(ask, reasons)
        able = set(query.able(self._settings.candidates))
        if not able.issuperset(names):  # a cause inside the query: needs rows of that kind
            names = self._only(names, able)
            reasons.append(Reason.UNLABELLED_KIND)
            query = replace(query, whole_pool=True)
        down = self._down()
        up = [name for name in names if name not in down]
        if up and len(up) < len(names):  # a cause outside the query
            reasons += [Reason.CANDIDATE_DOWN.of(name) for name in names if name not in up]
            names = tuple(up)
        conditions = CacheKey(
            query=query,
            names=names,
            reasons=tuple(reasons),
            alpha=options.alpha,
            score=options.score,
            group=options.group,
            asked_alpha=ask.options.alpha,
            caller=ask.caller,
        )
        routed = self._kept.find(record.id, conditions)
        if routed is None:
            scored = await self._score(query.text, deadline)
            routed = await self._decided(record, names, query, options, ask, scored, reasons)
            if routed.is_lasting:
                self._kept.keep(record.id, conditions, routed)
        return routed

    async def without(
        self, routed: CertifiedDecision, ask: RoutingRequest, failed: Collection[str]
    ) -> tuple[str, ...]:
        """What the threshold of the surviving pool selects; empty when nobody survives.

        For a candidate that failed in mid-request. Its failure may depend on the query, so this
        certifies nothing.
        """
        names = tuple(name for name in routed.certificate.pool if name not in failed)
        if not names:
            return ()
        options = self._with_defaults(ask)
        try:
            survived = await self._decided(
                routed.record, names, ask.query, options, ask, routed.scored, []
            )
        except InfeasibleAlphaError:  # too late to refuse: the others were called
            return names
        return survived.decision.selected

    async def _decided(
        self,
        record: CalibrationRecord,
        names: tuple[str, ...],
        query: Query,
        options: DecisionOptions,
        ask: RoutingRequest,
        scored: ScoredQuery | None,
        reasons: list[str],
    ) -> CertifiedDecision:
        plain = query.later and Reason.MULTI_TURN not in query.reasons
        later = plain and self._covers_later_turns(record)
        if query.later:
            reasons.append(Reason.LATER_TURN if later else Reason.MULTI_TURN)
        group = self._grouping.of_request(query.text, options.group, ask.caller.group)
        threshold = await self._threshold(record, names, group, later=later)
        if threshold is None:
            calibration = await asyncio.to_thread(record.rows(later=later).restrict, names)
            threshold = GroupThreshold(calibration=calibration, group=None)
            query = replace(query, whole_pool=True)
            reasons.append(Reason.SUB_POOL_PENDING)
        calibration = threshold.calibration
        if calibration.n == 0:
            reasons.append(Reason.NO_CALIBRATION_FOR_POOL)
        if ask.options.alpha is not None and ask.options.alpha != calibration.options.alpha:
            reasons.append(Reason.ALPHA_ASSUMED)
        if options.score not in (None, calibration.options.score):
            reasons.append(Reason.SCORE_ASSUMED)
        asked = options.group is not None and self._settings.routing.group_by == "request"
        if asked and record.rows(later=later).groups is not None:
            reasons.append(Reason.GROUP_ASSUMED)
        fingerprint = self._trained.fingerprint(query.text)
        decision = self._decide(calibration, query, scored, options, fingerprint)
        if decision.trivial and not query.whole_pool:
            reasons.append(_why_everyone(calibration, decision, scored))
        everyone = scored is None or query.whole_pool
        routed = CertifiedDecision(
            decision=decision,
            certificate=Certificate.of(
                record, calibration, decision, tuple(reasons), threshold.group
            ),
            pool_scores=self._best_first(calibration.pool, scored),
            fingerprint=fingerprint,
            scored=scored,
            record=record,
            group=group,
            chosen=decision.selected,
            chosen_by=ChosenBy.EVERYONE if everyone else ChosenBy.THRESHOLD,
        )
        limit = self._settings.limits.fan_out
        if len(decision.selected) > limit:
            routed = routed.calling(decision.selected[:limit], Reason.FAN_OUT_LIMITED)
        return routed

    def _with_defaults(self, ask: RoutingRequest) -> DecisionOptions:
        """The request's options; a named pool's alpha where it gives none; the key's bounds."""
        alpha, most = ask.options.alpha, ask.caller.max_alpha
        if alpha is not None and most is not None and alpha > most:
            raise Forbidden(f"this key may ask for an alpha of at most {most:g}")
        if alpha is None and ask.pool is not None:
            alpha = self._settings.pools[ask.pool].alpha
        if most is not None:
            usual = self._active.record().calibration.options.alpha
            alpha = min(usual if alpha is None else alpha, most)
        if alpha == ask.options.alpha:
            return ask.options
        return ask.options.model_copy(update={"alpha": alpha})

    def _allowed(self, ask: RoutingRequest, reasons: list[str]) -> tuple[str, ...]:
        """The candidates that the request, its pool and its key leave."""
        names = self._trained.pool
        if ask.pool is not None:
            names = self._only(names, self._settings.pools[ask.pool].candidates)
        if ask.caller.candidates is not None:
            names = self._only(names, ask.caller.candidates)
        if ask.options.candidates is not None:
            names = self._only(names, self._known(ask.options.candidates))
            reasons.append(Reason.POOL_ASSUMED)
        return names

    def _only(self, names: Sequence[str], wanted: Collection[str]) -> tuple[str, ...]:
        left = tuple(name for name in names if name in wanted)
        if not left:
            raise InputError(
                "no candidate is left that this key, pool and kind of request may be sent to",
                param="candidates",
            )
        return left

    def _covers_later_turns(self, record: CalibrationRecord) -> bool:
        """Whether it has rows enough of later turns, of which the router read what it reads now."""
        later = record.later
        if later is None or later.text != self._settings.routing.text:
            return False
        return later.calibration.misses(later.calibration.options.alpha) >= 0

    async def _threshold(
        self, record: CalibrationRecord, names: tuple[str, ...], group: str | None, *, later: bool
    ) -> GroupThreshold | None:
        """The rows of the group for these candidates; None while they are still being computed."""
        try:
            async with asyncio.timeout(SUB_POOL_WAIT_S):
                return await self._active.calibration(record, names, group, later=later)
        except (TimeoutError, Overloaded):
            return None

    async def _score(self, text: str, deadline: float) -> ScoredQuery | None:
        """Router scores; None when the router failed, so that everyone is called instead."""
        limit_s = min(self._settings.limits.route_timeout_s, deadline - time.monotonic())
        try:
            async with asyncio.timeout(limit_s):
                scored = await self._scoring.score(text)
        except Overloaded:
            raise
        except Exception:
            log.exception("the router failed; the whole pool is called")
            return None
        return scored if scored.usable else None

    def _decide(
        self,
        calibration: Calibration,
        query: Query,
        scored: ScoredQuery | None,
        options: DecisionOptions,
        fingerprint: bytes,
    ) -> RoutingDecision:
        if scored is None:
            unknown = [0.0] * len(calibration.pool)
            return calibration.whole_pool(unknown, alpha=options.alpha, score=options.score)
        scores = [scored.scores[self._trained.pool.index(name)] for name in calibration.pool]
        if query.whole_pool:
            return calibration.whole_pool(
                scores, alpha=options.alpha, score=options.score, truncated=scored.truncated
            )
        decision = calibration.decide(
            fingerprint,
            scores,
            neighbours=scored.neighbours,
            alpha=options.alpha,
            score=options.score,
            truncated=scored.truncated,
        )
        if decision.trivial and self._settings.routing.on_infeasible == "reject":
            raise InfeasibleAlphaError(
                f"no finite threshold keeps alpha {decision.alpha:g}: there are {calibration.n} "
                "calibration rows, and abstaining costs some of the risk too; use a larger alpha "
                "or calibrate on more rows"
            )
        return decision

    def _known(self, names: Sequence[str]) -> Sequence[str]:
        for name in names:
            if name not in self._trained.pool:
                raise NotFound(
                    f"no candidate {name[:128]!r}; the pool is {list(self._trained.pool)}",
                    code="model_not_found",
                    param="candidates",
                )
        return names

    def _best_first(self, names: Sequence[str], scored: ScoredQuery | None) -> dict[str, float]:
        """Router scores of these candidates, best first."""
        if scored is None:
            return {}
        scores = dict(zip(self._trained.pool, scored.scores, strict=True))
        return {name: scores[name] for name in sorted(names, key=lambda name: -scores[name])}

    def _count(self, routed: CertifiedDecision) -> None:
        self._metrics.set_size.observe(len(routed.decision.selected))
        if routed.decision.abstained:
            self._metrics.abstained.inc()
        if not routed.certificate.holds:
            self._metrics.void.inc()


def _why_everyone(
    calibration: Calibration, decision: RoutingDecision, scored: ScoredQuery | None
) -> Reason:
    if scored is None:
        return Reason.ROUTER_FAILED
    feasible = calibration.misses(decision.alpha) >= 0
    return Reason.ABSTENTION_EXCEEDS_ALPHA if feasible else Reason.ALPHA_INFEASIBLE
