"""Calibration of one split: its settings from validation rows, thresholds and sets of any rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from racer_core.calibration.decision import Sets
from racer_core.calibration.loss_curve import RowLosses
from racer_core.calibration.risk_rules import RiskRules
from racer_core.offline.protocol import Order, Rows, Split
from racer_core.offline.selection import (
    ALPHAS,
    MIN_ROWS,
    choose_tau,
    cost_that_keeps,
    cross_fitted,
)
from racer_core.offline.table import EvaluationTable
from racer_core.records.units import renumbered
from racer_core.types import BoolArray, FloatArray, RiskTarget, Score, any_column


class SplitCalibration:
    """The rows of one split under the rules of `Calibration`; scores are shared by all splits."""

    def __init__(self, table: EvaluationTable, part: Split) -> None:
        self._table = table
        self._part = part
        self._patterns = self._choose_patterns()
        self._tau = self._choose_tau()

    def nonconformity(self, target: RiskTarget, score: Order) -> FloatArray:
        """S of all rows of the table."""
        return self._table.nonconformity(target, score, self._patterns)

    def losses(self, target: RiskTarget, fit: FloatArray, rows: Rows) -> tuple[Rows, RowLosses]:
        """Those of the rows that count, and their losses."""
        rules, known = self._rules(target), self._table.rows
        rows = rows[rules.counted(known.labels[rows])]
        scores = known.scores[rows]
        if target is RiskTarget.QUALITY:
            assert known.quality is not None
            losses = RowLosses.of_shortfalls(fit[rows], known.quality[rows])
            undone = rules.undone(scores)[:, None]
            return rows, replace(losses, scores=np.maximum(losses.scores, undone))
        critical = rules.critical_scores(fit[rows], scores, known.labels[rows])
        return rows, RowLosses.of_misses(critical)

    def sets(self, target: RiskTarget, fit: FloatArray, lambda_hat: float, rows: Rows) -> Sets:
        """The prediction sets of the rows at a threshold."""
        return self._rules(target).sets(fit[rows], self._table.rows.scores[rows], lambda_hat)

    def cross_fitted(self, target: RiskTarget, alpha: float, fit: FloatArray) -> BoolArray | None:
        """The validation rows' sets, each half at the threshold of the other, shape (n, K).

        None if they are too few for alpha. Calibration rows take no part, so that choices made on
        these sets do not depend on them.
        """
        rows = self._part.validation

        def sets_by(own: Rows, other: Rows) -> BoolArray | None:
            curve = self.losses(target, fit, rows[other])[1].curve
            allowed = curve.allowed(alpha)
            if allowed < 0:
                return None
            return self.sets(target, fit, curve.leaving(allowed), rows[own]).selected

        return cross_fitted(renumbered(self._table.rows.split_units[rows]), sets_by)

    def counted(self, target: RiskTarget, rows: Rows) -> int:
        """How many of the rows count."""
        return int(np.count_nonzero(self._rules(target).counted(self._table.rows.labels[rows])))

    def design_effect(self, target: RiskTarget) -> float:
        """The mean size of the unit of a row that counts; 1 where rows are split one by one."""
        rows = np.concatenate([self._part.calibration, self._part.test])
        rows = rows[self._rules(target).counted(self._table.rows.labels[rows])]
        sizes = np.bincount(self._table.rows.split_units[rows])
        return float((sizes**2).sum() / max(len(rows), 1))

    def _rules(self, target: RiskTarget) -> RiskRules:
        return RiskRules(risk_target=target, null_threshold=self._tau)

    def _choose_patterns(self) -> int:
        """The setting of the patterns with the smallest cover sets on the validation rows."""
        rows = self._part.validation
        truth = self._table.truths[RiskTarget.ANSWERABLE][rows]
        if np.count_nonzero(any_column(truth)) < MIN_ROWS:
            return self._table.default_patterns
        per_call = np.ones(len(self._table.pool))

        def size(setting: int) -> float:
            fit = self._table.nonconformity(RiskTarget.ANSWERABLE, Score.COVER, setting)
            return sum(cost_that_keeps(fit[rows], truth, alpha, per_call) for alpha in ALPHAS)

        return min(range(len(self._table.patterns)), key=size)

    def _choose_tau(self) -> float | None:
        rows = self._part.validation
        budget = self._table.protocol.false_abstain_budget
        if budget is not None and self._table.null_threshold is not None:
            return self._table.null_threshold
        return choose_tau(self._table.rows.scores[rows], self._table.rows.labels[rows], budget)
