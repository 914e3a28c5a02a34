"""From a query to a certified set: the half of a request that costs no tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.active import ActiveCalibration
from app.certificates import Certificate
from app.errors import NotFound, Overloaded
from app.reasons import Reason
from app.schemas import RacerOptions
from app.settings import Settings
from app.telemetry import Telemetry
from app.translate import Query
from app.worker import RoutingWorker, ScoredQuery
from racer_core.calibration.calibration import Calibration
from racer_core.errors import InfeasibleAlphaError
from racer_core.racer import Racer
from racer_core.types import RoutingDecision

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A decision, its certificate, and every candidate's router score."""

    decision: RoutingDecision
    certificate: Certificate
    pool_scores: dict[str, float]  # f of the whole pool, best first; empty when the router failed

    @property
    def strongest(self) -> str:
        """The candidate with the highest router score."""
        return next(iter(self.pool_scores), self.certificate.pool[0])

    def as_json(self) -> dict[str, Any]:
        """The wire form of the decision."""
        decision = self.decision
        return {
            "selected": list(decision.selected),
            "scores": dict(zip(decision.selected, decision.scores, strict=True)),
            "pool_scores": self.pool_scores,
            "null_in_set": decision.null_selected,
            "abstained": decision.abstained,
            "abstain_reason": decision.abstain_reason,
            "truncated": decision.truncated,
            "certificate": self.certificate.as_json(),
        }


class RoutingService:
    """Chooses the set for one query with the calibration that is active at that moment."""

    def __init__(
        self,
        settings: Settings,
        racer: Racer,
        worker: RoutingWorker,
        active: ActiveCalibration,
        telemetry: Telemetry,
    ) -> None:
        self._settings = settings
        self._racer = racer
        self._worker = worker
        self._active = active
        self._telemetry = telemetry

    async def route(self, query: Query, options: RacerOptions) -> Routed:
        """Score the query and apply the threshold.

        Raises:
            NotReady: No calibration is active.
            Overloaded: The router's queue is full.
            InputError: Alpha outside (0, 1).
            NotFound: A candidate that is not in the pool.
            InfeasibleAlphaError: Too few rows for alpha, and the operator chose to reject.
        """
        record = self._active.record()  # read once: one record decides and certifies
        calibration = record.calibration
        reasons = list(query.reasons)
        if options.candidates is not None:
            calibration = await self._active.sub_pool(record, self._known(options.candidates))
            reasons.append(Reason.POOL_ASSUMED)
        if calibration.n == 0:
            reasons.append(Reason.NO_CALIBRATION_FOR_POOL)
        if options.alpha is not None and options.alpha != calibration.options.alpha:
            reasons.append(Reason.ALPHA_ASSUMED)
        if options.score not in (None, calibration.options.score):
            reasons.append(Reason.SCORE_ASSUMED)
        scored = await self._score(query.text)
        decision = self._decide(calibration, query, scored, options)
        if decision.trivial and not query.whole_pool:
            reasons.append(_why_everyone(calibration, decision, scored))
        certificate = Certificate.of(record, calibration, decision, tuple(reasons))
        self._count(decision, certificate)
        return Routed(
            decision=decision,
            certificate=certificate,
            pool_scores=self._best_first(calibration.pool, scored),
        )

    async def _score(self, text: str) -> ScoredQuery | None:
        """Router scores; None when the router failed, so that everyone is called instead."""
        try:
            async with asyncio.timeout(self._settings.limits.route_timeout_s):
                scored = await self._worker.score(text)
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
        options: RacerOptions,
    ) -> RoutingDecision:
        if scored is None:
            unknown = [0.0] * len(calibration.pool)
            return calibration.whole_pool(unknown, alpha=options.alpha, score=options.score)
        scores = [scored.scores[self._racer.pool.index(name)] for name in calibration.pool]
        if query.whole_pool:
            return calibration.whole_pool(
                scores, alpha=options.alpha, score=options.score, truncated=scored.truncated
            )
        decision = calibration.decide(
            self._racer.fingerprint(query.text),
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

    def _known(self, names: Sequence[str]) -> tuple[str, ...]:
        for name in names:
            if name not in self._racer.pool:
                raise NotFound(
                    f"no candidate {name[:128]!r}; the pool is {list(self._racer.pool)}",
                    code="model_not_found",
                    param="candidates",
                )
        return tuple(name for name in self._racer.pool if name in names)

    def _best_first(self, names: Sequence[str], scored: ScoredQuery | None) -> dict[str, float]:
        """Router scores of these candidates, best first."""
        if scored is None:
            return {}
        scores = dict(zip(self._racer.pool, scored.scores, strict=True))
        return {name: scores[name] for name in sorted(names, key=lambda name: -scores[name])}

    def _count(self, decision: RoutingDecision, certificate: Certificate) -> None:
        self._telemetry.set_size.observe(len(decision.selected))
        if decision.abstained:
            self._telemetry.abstained.inc()
        if not certificate.holds:
            self._telemetry.void.inc()


def _why_everyone(
    calibration: Calibration, decision: RoutingDecision, scored: ScoredQuery | None
) -> Reason:
    if scored is None:
        return Reason.ROUTER_FAILED
    feasible = calibration.misses(decision.alpha) >= 0
    return Reason.ABSTENTION_EXCEEDS_ALPHA if feasible else Reason.ALPHA_INFEASIBLE
