"""Votes of one split: over its test rows, tuned on its validation rows; the best alpha and vote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from racer_core.offline.evaluation_result import (
    FULL_POOL,
    BestSetting,
    Chosen,
    EvaluatorKey,
    Setting,
)
from racer_core.offline.protocol import COMPARED_AT, Order, Rows, Split
from racer_core.offline.split_calibration import SplitCalibration
from racer_core.offline.standard_errors import ClusterSums
from racer_core.offline.table import EvaluationTable
from racer_core.offline.votes import EVALUATED, Rule, Temperatures, VoteComparison, Votes
from racer_core.types import BoolArray, FloatArray, RiskTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedSetting:
    """What the rows of a split showed under a setting.

    Attributes:
        setting: The setting.
        nonconformity: s of all rows of the table.
        size: Candidates called for each test row.
        mean_size: Their mean.
        risk: The rate that alpha bounds, over the test rows.
        right: Whether the vote of each rule is right, for each test row; 0 or 1.
        clusters: The clusters of the calibration rows that count.
        lost: The loss of each at the threshold: 1 for a miss.
    """

    setting: Setting
    nonconformity: FloatArray
    size: FloatArray
    mean_size: float
    risk: float
    right: Mapping[Rule, FloatArray]
    clusters: Rows
    lost: FloatArray


@dataclass(frozen=True, slots=True)
class _ValidationScore:
    """A tested setting and a rule, with their measures on the validation rows."""

    accuracy: float
    size: float
    rule: Rule
    tested: TestedSetting

    @property
    def rank(self) -> tuple[float, float]:
        """Accuracy first; among equals the smaller set."""
        return self.accuracy, -self.size

    @property
    def choice(self) -> BestSetting:
        """The setting with its measures on the test rows."""
        setting = self.tested.setting
        return BestSetting(
            scope=setting.scope,
            risk_target=setting.risk_target,
            score=setting.score,
            alpha=setting.alpha,
            rule=self.rule,
            accuracy=float(self.tested.right[self.rule].mean()),
            size=self.tested.mean_size,
            risk=self.tested.risk,
        )


class SplitVotes:
    """The votes of one split, for tables with recorded answers."""

    def __init__(
        self,
        *,
        table: EvaluationTable,
        votes: Votes,
        part: Split,
        calibration: SplitCalibration,
    ) -> None:
        self._calibration = calibration
        # The alpha nearest to 0.1 first.
        self._alphas = sorted(table.protocol.alphas, key=lambda each: abs(each - COMPARED_AT))
        self._rated = None if table.rated is None else table.rated.at(part.validation)
        chosen = {
            rule: self._rated.choose(weight)
            for rule, weight in EVALUATED.items()
            if self._rated is not None and weight in self._rated.values
        }

        def over(rows: Rows) -> VoteComparison:
            rated = table.rated and table.rated.at(rows)
            return VoteComparison(
                votes=votes.at(rows),
                ratings={
                    rule: rated.ratings(EVALUATED[rule], choice)
                    for rule, choice in chosen.items()
                    if rated is not None
                },
            )

        self._test, self._validation = over(part.test), over(part.validation)
        self._temperatures: dict[tuple[RiskTarget, Order], Temperatures] = {}
        self._best: dict[tuple[RiskTarget, Order], _ValidationScore] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the votes."""
        return self._test.rules

    def right(
        self, target: RiskTarget, score: Order, fit: FloatArray, selected: BoolArray
    ) -> dict[Rule, BoolArray]:
        """Whether the vote of each rule over the test rows' sets (n, K) is right, shape (n,)."""
        temperatures = self._tuned(target, score, fit)
        return {rule: self._test.right(rule, selected, temperatures) for rule in self.rules}

    def majority_right(self, selected: BoolArray) -> BoolArray:
        """Whether the plain majority vote over sets of the test rows is right, shape (n,)."""
        return self._test.right(Rule.MAJORITY, selected, {})

    def full_pool(self) -> Iterator[tuple[str, BoolArray]]:
        """Whether each rule's vote of the whole pool is right on each test row."""
        validation = np.ones_like(self._validation.votes.labels)
        whole_pool = np.ones_like(self._test.votes.labels)
        temperatures = self._validation.best_temperatures(validation)
        best = self._validation.best_rule(validation, temperatures)
        for rule in self.rules:
            yield f"{FULL_POOL}{rule}", self._test.right(rule, whole_pool, temperatures)
        yield f"{FULL_POOL}tuned", self._test.right(best, whole_pool, temperatures)

    def add(self, tested: TestedSetting) -> None:
        """Compare a setting with the best so far on the validation rows, if they suffice for it."""
        target, score = key = tested.setting.risk_target, tested.setting.score
        fit = tested.nonconformity
        held_out = self._calibration.cross_fitted(target, tested.setting.alpha, fit)
        if held_out is None:
            return
        temperatures = self._tuned(target, score, fit)
        size = float(held_out.sum(axis=1).mean())
        for rule in tested.right:
            accuracy = self._validation.accuracy(rule, held_out, temperatures)
            each = _ValidationScore(accuracy, size, rule, tested)
            if key not in self._best or each.rank > self._best[key].rank:
                self._best[key] = each

    def choices(self, sums: ClusterSums, clusters: Rows) -> list[BestSetting]:
        """The best of all alphas and votes on the validation rows, per target and score.

        Among equally accurate ones the smallest set; none where the rows are too few for every
        alpha.

        Args:
            sums: Sums over rows, which take what the choices showed.
            clusters: The clusters of the test rows.
        """
        for key, each in self._best.items():
            tested, chosen = each.tested, Chosen(*key)
            sums.add(chosen, "accuracy", clusters, tested.right[each.rule])
            sums.add(chosen, "size", clusters, tested.size)
            sums.add_losses(
                chosen, tested.clusters, tested.lost, tested.setting, f"accuracy_{each.rule}"
            )
        return [each.choice for each in self._best.values()]

    def evaluators(
        self, scope: str, sums: ClusterSums, clusters: Rows
    ) -> Iterator[tuple[EvaluatorKey, dict[str, float]]]:
        """The quality of each evaluator on the validation rows, and whether it was chosen.

        Args:
            scope: The scope of the split.
            sums: Sums over rows, which take the qualities.
            clusters: The clusters of the validation rows.
        """
        if self._rated is None:
            return
        for each in self._rated.qualities():
            if each.group is None:
                chosen = self._rated.choose(each.weight).common == each.evaluator
                key = EvaluatorKey(scope=scope, weight=each.weight, evaluator=each.evaluator)
                for name, of_rows in self._rated.sums(each.weight, each.evaluator).items():
                    sums.add_ratio(key, name, clusters, *of_rows)
                yield (
                    key,
                    {
                        "auc": each.auc,
                        "accuracy": each.accuracy,
                        "failed": each.failed,
                        "chosen": float(chosen),
                    },
                )

    def _tuned(self, target: RiskTarget, score: Order, fit: FloatArray) -> Temperatures:
        """T of the weighted votes, tuned once per score and target on validation rows.

        At the alpha nearest to 0.1 for which the validation rows are enough, else on whole pools.
        """
        key = target, score
        if key not in self._temperatures:
            found = (self._calibration.cross_fitted(target, each, fit) for each in self._alphas)
            whole_pool = np.ones_like(self._validation.votes.labels)
            held_out = next((sets for sets in found if sets is not None), whole_pool)
            self._temperatures[key] = self._validation.best_temperatures(held_out)
        return self._temperatures[key]
