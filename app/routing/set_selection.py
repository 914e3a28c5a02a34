"""Set selection: by the threshold, or where rows do not cover a request by ``on_uncovered``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.routing.decision import ChosenBy
from app.routing.fallback import fallback_decision
from app.routing.premises import Premises
from app.routing.scorer import ScoredQuery
from app.settings import SET, WHOLE_POOL, Settings
from app.wire.schemas import DecisionOptions
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.decision import whole_pool_decision
from racer_core.calibration.kept_order import Continuation
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import InfeasibleAlphaError
from racer_core.types import RoutingDecision, checked_alpha


class SetSelector:
    """Selects the set of one query.

    Args:
        settings: The rules for requests that are not covered, and for an infeasible alpha.
        pool: The router's candidates, in the order of its scores.
    """

    def __init__(self, settings: Settings, pool: tuple[str, ...]) -> None:
        self._settings = settings
        self._pool = pool

    def select(
        self,
        names: tuple[str, ...],
        premises: Premises,
        calibration: Calibration | None,
        usual: CalibrationOptions,
        options: DecisionOptions,
        scored: ScoredQuery | None,
        fingerprint: bytes,
        on_uncovered: str | None = None,
        continuation: Continuation | None = None,
    ) -> tuple[RoutingDecision, ChosenBy]:
        """The set, and the rule that selected it.

        Outside the guarantee ``routing.on_uncovered`` decides. Inside it the whole pool is called
        where no threshold can be applied: such a set never misses.

        Args:
            names: The candidates among which the set is chosen.
            premises: Whether rows cover the request.
            calibration: The rows whose threshold applies; None: they are not ready.
            usual: The terms of the record.
            options: The request's alpha and score.
            scored: Router scores; None if the router failed.
            fingerprint: Keyed hash of the query.
            on_uncovered: The rule of the request's application; None: ``routing.on_uncovered``.
            continuation: The order of the conversation; None: the request is of none.
        """
        rule = SET
        if not premises.is_covered:
            rule = on_uncovered or self._settings.routing.on_uncovered
            has_rows = calibration is not None and calibration.n > 0
            if rule == SET and (scored is None or not has_rows):
                rule = self._settings.fallback
        if rule == SET and calibration is not None and scored is not None:
            found = self._decide(calibration, scored, options, fingerprint, continuation)
            return found, ChosenBy.OVERRIDDEN if found.is_kept else ChosenBy.THRESHOLD
        terms = replace(
            usual,
            alpha=usual.alpha if options.alpha is None else checked_alpha(options.alpha),
            score=options.score or usual.score,
        )
        if rule not in (SET, WHOLE_POOL):
            return fallback_decision(rule, names, terms), ChosenBy.FALLBACK
        everyone = whole_pool_decision(
            names,
            [0.0] * len(names) if scored is None else self.scores_of(names, scored),
            risk_target=terms.risk_target,
            alpha=terms.alpha,
            score=terms.score,
            truncated=scored is not None and scored.truncated,
        )
        return everyone, ChosenBy.EVERYONE

    def _decide(
        self,
        calibration: Calibration,
        scored: ScoredQuery,
        options: DecisionOptions,
        fingerprint: bytes,
        continuation: Continuation | None,
    ) -> RoutingDecision:
        decision = calibration.decide(
            fingerprint,
            self.scores_of(calibration.pool, scored),
            neighbours=scored.neighbours,
            alpha=options.alpha,
            score=options.score,
            truncated=scored.truncated,
            continuation=continuation,
        )
        if decision.trivial and self._settings.routing.on_infeasible == "reject":
            raise InfeasibleAlphaError(
                f"no finite threshold keeps alpha {decision.alpha:g}: there are {calibration.n} "
                "calibration rows, and abstentions use part of alpha; use a larger alpha "
                "or calibrate on more rows"
            )
        return decision

    def scores_of(self, names: Sequence[str], scored: ScoredQuery) -> list[float]:
        """The router scores of these candidates."""
        return [scored.scores[self._pool.index(name)] for name in names]
