"""Evaluation of one split: the measures of every setting, and of the controls, on its test rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from racer_core.calibration.decision import Sets
from racer_core.calibration.loss_curve import SCALE, RowLosses
from racer_core.calibration.metrics import set_metrics, shortfalls
from racer_core.calibration.split_risk import SplitRisk, split_risk
from racer_core.offline.evaluation_result import (
    BEST,
    FULL_POOL_BEST,
    INFEASIBLE,
    SHORTFALL,
    BestSetting,
    EvaluatorKey,
    Setting,
)
from racer_core.offline.protocol import COMPARED_AT, Rows, Split
from racer_core.offline.same_answer import SAME_ANSWER_AT, SequenceKey, compared
from racer_core.offline.split_calibration import SplitCalibration
from racer_core.offline.split_votes import SplitVotes, TestedSetting
from racer_core.offline.standard_errors import ClusterSums
from racer_core.offline.table import EvaluationTable
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.types import BoolArray, FloatArray, RiskTarget, any_column


class SplitEvaluation:
    """One split of one scope."""

    def __init__(
        self,
        *,
        table: EvaluationTable,
        scope: str,
        part: Split,
        rng: np.random.Generator,
        sums: ClusterSums,
    ) -> None:
        self._table = table
        self._sums = sums
        self._scope = scope
        self._part = part
        self._test_labels = table.rows.labels[part.test]
        self._test_merits = table.merits[part.test]
        self._test_clusters = table.error_clusters[part.test]
        self._calibration = SplitCalibration(table, part)
        # A random order of the candidates for every row: the control of the same sizes.
        self._luck = rng.random((len(part.test), len(table.pool))).argsort(axis=1).argsort(axis=1)
        self._votes = None
        if table.votes is not None:
            self._votes = SplitVotes(
                table=table, votes=table.votes, part=part, calibration=self._calibration
            )

    def cells(self) -> Iterator[tuple[Setting, dict[str, float], SplitRisk | None]]:
        """Every setting's measures on the test rows, and the exact law of its risk."""
        protocol = self._table.protocol
        for target in protocol.risk_targets:
            design_effect = self._calibration.design_effect(target)
            for score in self._table.orders:
                fit = self._calibration.nonconformity(target, score)
                calibrating, losses = self._calibration.losses(target, fit, self._part.calibration)
                clusters = self._table.error_clusters[calibrating]
                tested = self._calibration.losses(target, fit, self._part.test)[1]
                own, other = (np.sort(each.scores[:, 0]) for each in (losses, tested))
                for alpha in sorted(protocol.alphas, key=lambda each: abs(each - COMPARED_AT)):
                    allowed = losses.curve.allowed(alpha)
                    setting = Setting(
                        scope=self._scope, risk_target=target, score=score, alpha=alpha
                    )
                    counts = {
                        "calibration_rows": float(len(losses.scores)),
                        "test_rows": float(len(tested.scores)),
                        INFEASIBLE: float(allowed < 0),
                    }
                    law = None
                    if target is not RiskTarget.QUALITY and len(tested.scores):
                        law = split_risk(own, other, allowed // SCALE)
                        law = law.of_units(design_effect) if design_effect > 1.0 else law
                    self._add_slopes(setting, fit, losses, allowed)
                    measured = self._measure(setting, fit, losses, allowed, clusters)
                    yield setting, measured | counts, law

    def choices(self) -> list[BestSetting]:
        """The alpha and the vote that validation rows choose, per target and score."""
        return [] if self._votes is None else self._votes.choices(self._sums, self._test_clusters)

    def evaluators(self) -> Iterator[tuple[EvaluatorKey, dict[str, float]]]:
        """The quality of each evaluator on the validation rows, and whether it was chosen."""
        if self._votes is None:
            return iter(())
        clusters = self._table.error_clusters[self._part.validation]
        return self._votes.evaluators(self._scope, self._sums, clusters)

    def sequences(self) -> Iterator[tuple[SequenceKey, dict[str, float]]]:
        """Sequential calls and their rivals; the validation rows fit their policy, unlabelled."""
        table, part = self._table, self._part
        if table.classes is None:
            return
        answers = AnswerClasses(
            pool=table.pool, classes=table.classes, fingerprints=table.rows.fingerprints
        )
        for calling, alpha, measured in compared(
            answers,
            table.rows.labels,
            (part.validation, part.calibration, part.test),
            [alpha for alpha in SAME_ANSWER_AT if alpha in table.protocol.alphas],
            table.rows.scores,
            table.protocol.prices,
            table.stacked,
        ):
            yield SequenceKey(scope=self._scope, calling=calling, alpha=alpha), measured

    def controls(self) -> dict[str, float]:
        """The controls that the sets are compared with, on the same test rows."""
        measured: dict[str, float] = {}
        for name, merits in self._control_rows():
            self._sums.add(name, "accuracy", self._test_clusters, merits.astype(np.float64))
            measured[name] = float(merits.mean())
        return measured

    def _control_rows(self) -> Iterator[tuple[str, BoolArray | FloatArray]]:
        """Whether each control is right on each test row; its quality on graded rows."""
        merits = self._test_merits
        for column, name in enumerate(self._table.pool):
            yield f"candidate {name}", merits[:, column]
        yield BEST, merits[:, self._table.best_overall]
        yield "best single here", merits[:, self._table.best_on(self._scope)]
        top = self._table.rows.scores[self._part.test].argmax(axis=1)
        yield "router top-1", merits[np.arange(len(top)), top]
        yield "answerable", merits.max(axis=1)
        if self._table.is_graded:
            yield FULL_POOL_BEST, merits.max(axis=1)
        if self._votes is not None:
            yield from self._votes.full_pool()

    def _row_values(
        self, setting: Setting, fit: FloatArray, sets: Sets
    ) -> Iterator[tuple[str, Rows, FloatArray]]:
        """What the test rows show with these sets: measure, the rows that count, their values."""
        test, selected, labels = self._part.test, sets.selected, self._test_labels
        answerable, hit = any_column(labels), any_column(selected & labels)
        called = any_column(selected)
        some = test[answerable]
        size = selected.sum(axis=1).astype(np.float64)
        yield "size", test, size
        yield "calls_saved", test, 1.0 - size / len(self._table.pool)
        if self._table.is_graded:
            yield SHORTFALL, test, shortfalls(selected, self._test_merits)
        yield "risk", test, np.where(answerable, ~hit, ~sets.null_selected).astype(np.float64)
        yield "miss_given_answerable", some, (~hit[answerable]).astype(np.float64)
        yield "served_error", test, (called & ~hit).astype(np.float64)
        yield "false_abstain", some, (~called[answerable]).astype(np.float64)
        if self._table.protocol.prices is not None:
            prices = np.array(self._table.protocol.prices, dtype=np.float64)
            yield "cost", test, np.asarray(selected @ prices, dtype=np.float64)
        if self._votes is not None:
            by_rule = self._votes.right(setting.risk_target, setting.score, fit, selected)
            for rule, right in by_rule.items():
                yield f"accuracy_{rule}", test, right.astype(np.float64)
        random = self._luck < size[:, None]
        if self._table.is_graded:
            yield "random_miss", test, shortfalls(random, self._test_merits)
        else:
            missed = ~any_column(random & labels)[answerable]
            yield "random_miss", some, missed.astype(np.float64)
        if self._votes is not None:
            yield "random_majority", test, self._votes.majority_right(random).astype(np.float64)

    def _add_slopes(
        self, setting: Setting, fit: FloatArray, losses: RowLosses, allowed: int
    ) -> None:
        """The change of every figure with the risk, between fewer and more misses.

        Graded losses are counted in misses, too: whole losses of 1.
        """
        if allowed < 0 or not self._sums.wants_slope(setting, "size"):
            return
        count, misses = len(losses.scores), allowed // SCALE
        fewer, more = misses // 2, min(max(misses + 1, misses + (misses + 1) // 2), count - 1)
        if more <= fewer:
            return

        def means(misses: int) -> dict[str, float]:
            lambda_hat = losses.curve.leaving(misses * SCALE)
            sets = self._calibration.sets(setting.risk_target, fit, lambda_hat, self._part.test)
            return {
                name: float(values.mean()) if len(values) else math.nan
                for name, _, values in self._row_values(setting, fit, sets)
            }

        low, high = means(fewer), means(more)
        for name, value in high.items():
            slope = (value - low[name]) * (count + 1) / (more - fewer)
            self._sums.add_slope(setting, name, slope)

    def _measure(
        self,
        setting: Setting,
        fit: FloatArray,
        losses: RowLosses,
        allowed: int,
        clusters: Rows,
    ) -> dict[str, float]:
        """All measures of a setting.

        Args:
            setting: The setting.
            fit: s of all rows of the table.
            losses: The losses of the calibration rows that count.
            allowed: The total loss that the threshold leaves at most.
            clusters: The clusters of these rows.
        """
        target, lambda_hat = setting.risk_target, losses.curve.leaving(allowed)
        lost = losses.at(lambda_hat)
        self._sums.add_losses(setting, clusters, lost, setting)
        sets = self._calibration.sets(target, fit, lambda_hat, self._part.test)
        metrics = set_metrics(sets.selected, sets.null_selected, self._test_labels)
        measured = {field.name: getattr(metrics, field.name) for field in fields(metrics)}
        measured["null"] = float(sets.null_selected.mean())
        measured["calls_saved"] = 1.0 - metrics.size / len(self._table.pool)
        if self._table.protocol.prices is not None:
            measured["cost"] = float((sets.selected @ np.array(self._table.protocol.prices)).mean())
        shown: dict[str, FloatArray] = {}
        for name, rows, values in self._row_values(setting, fit, sets):
            self._sums.add(setting, name, self._table.error_clusters[rows], values)
            shown[name] = values
        for name in ("random_miss", "random_majority"):
            if (values := shown.get(name)) is not None:
                measured[name] = float(values.mean()) if len(values) else math.nan
        if self._table.is_graded:
            measured[SHORTFALL] = float(shown[SHORTFALL].mean())
        if self._votes is not None:
            right = {rule: shown[f"accuracy_{rule}"] for rule in self._votes.rules}
            measured |= {f"accuracy_{rule}": float(each.mean()) for rule, each in right.items()}
            is_paper = target == RiskTarget.PAPER
            self._votes.add(
                TestedSetting(
                    setting=setting,
                    nonconformity=fit,
                    size=shown["size"],
                    mean_size=metrics.size,
                    risk=metrics.risk if is_paper else metrics.miss_given_answerable,
                    right=right,
                    clusters=clusters,
                    lost=lost,
                )
            )
        return measured
