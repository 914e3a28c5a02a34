"""Calibration: calibrated sets with their certificate, and weights for another population.

Three base classes do the rest: ``calibration_rows`` holds the rows, ``risk_control`` computes
thresholds from them, ``set_predictor`` applies these to queries.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from racer_core.calibration.certificate import Certificate, CoreReason
from racer_core.calibration.set_predictor import SetPredictor
from racer_core.errors import InputError
from racer_core.types import RoutingDecision, Score, enum_member


class Calibration(SetPredictor):
    """Calibrated thresholds: predicts sets of candidates, and certifies how often they miss.

    Another alpha, another score or a smaller pool needs no new rows.
    """

    def __repr__(self) -> str:
        """The pool, the number of rows that count and the settings; no rows."""
        options = self.options
        return (
            f"Calibration(pool={reprlib.repr(self.pool)}, n={self.n}, alpha={options.alpha:g}, "
            f"score={str(options.score)!r}, target={str(options.risk_target)!r})"
        )

    def certify(
        self,
        decision: RoutingDecision | None = None,
        *,
        alpha: float | None = None,
        score: Score | None = None,
        reasons: Iterable[str] = (),
    ) -> Certificate:
        """Certify a decision that this calibration made, or all sets of one :meth:`predict`.

        Args:
            decision: From :meth:`decide`, :meth:`levels` or ``Racer.route_batch``; None certifies
                the sets that ``predict`` gives for alpha and score.
            alpha: Without a decision, as for :meth:`predict`.
            score: Without a decision, as for :meth:`predict`.
            reasons: Further failed premises, which the calibration cannot see.

        Returns:
            The certificate. Its group is that of the rows, where all have the same.
        """
        if decision is not None and not decision.trivial:
            score = enum_member(Score, decision.score, "score")
            made_here = decision.lambda_hat == self.lambda_hat(decision.alpha, score)
            if not (made_here and set(decision.selected) <= set(self.pool)):
                raise InputError(
                    "another calibration made this decision: certify it with that one, such as "
                    "calibration.group(name) or calibration.restrict(names)"
                )
        if decision is None:
            decision = RoutingDecision(
                selected=(),
                scores=(),
                null_selected=False,
                alpha=self.options.alpha if alpha is None else alpha,
                score=enum_member(Score, score or self.options.score, "score"),
                lambda_hat=self.lambda_hat(alpha, score),
                truncated=False,
            )
        facts = (
            (decision.alpha != self.options.alpha, CoreReason.ALPHA_ASSUMED),
            (decision.score != self.options.score, CoreReason.SCORE_ASSUMED),
            (decision.trivial, self.trivial_reason(decision.alpha)),
        )
        groups = set(self.groups or ())
        return Certificate.of(
            self.options,
            decision,
            pool=self.pool,
            n=self.n,
            risk_band=0.0
            if decision.trivial
            else self.picked_bound(decision.alpha, decision.score, self.options.levels),
            answer_limit=self.answer_limit if decision.score == self.options.score else None,
            group=groups.pop() if len(groups) == 1 else None,
            reasons=(*reasons, *(reason for is_so, reason in facts if is_so)),
        )

    def trivial_reason(self, alpha: float) -> CoreReason:
        """Why no finite threshold is valid for ``alpha``, if none is."""
        if not self.is_enough(alpha):
            return CoreReason.ALPHA_INFEASIBLE
        return CoreReason.UNLABELLED_EXCEEDS_ALPHA
