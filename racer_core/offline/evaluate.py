"""Evaluation by random splits of scored rows.

The spread over splits is that of re-splitting one pool of rows, not an independent standard error.
With several divisions it includes the choice of the training rows and the training of the router.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from racer_core.calibration.augmentation import null_score
from racer_core.calibration.metrics import set_metrics
from racer_core.calibration.prediction_set import prediction_sets
from racer_core.calibration.split_risk import SplitRisk, split_risk
from racer_core.calibration.threshold import (
    allowed_misses,
    critical_scores,
    threshold_from_sorted,
)
from racer_core.offline.evaluation_result import (
    AVERAGE,
    INFEASIBLE,
    MERGED,
    BestSetting,
    Chosen,
    Evaluation,
    EvaluatorKey,
    Runs,
    Setting,
)
from racer_core.offline.evaluators import RatedAnswers
from racer_core.offline.protocol import (
    COMPARED_AT,
    CalibrationScope,
    Order,
    Rows,
    Split,
    split_benchmarks,
)
from racer_core.offline.reporting import Progress, silent
from racer_core.offline.row_errors import RowSums
from racer_core.offline.selection import (
    ALPHAS,
    MIN_ROWS,
    choose_tau,
    cost_that_keeps,
    cross_fitted,
)
from racer_core.offline.table import EvaluationTable
from racer_core.offline.votes import EVALUATED, Rule, Temperatures, VoteComparison
from racer_core.records.units import renumbered
from racer_core.renamed import renamed
from racer_core.types import BoolArray, FloatArray, RiskTarget, Score, any_column


def evaluate(
    *tables: EvaluationTable,
    encoder: str,
    router: str,
    dtype: str | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Split, calibrate and measure; repeated as the protocol demands.

    Args:
        tables: The table of each division of the protocol, in order; it has the division's splits.
        encoder: Its name, for the report.
        router: Its kind, for the report.
        dtype: The number format of the encoder, for the report; None without an encoder.
        progress: Called after each split.
    """
    table = tables[0]
    protocol = replace(table.protocol, scores=table.orders)
    rng = np.random.default_rng(protocol.seed)
    cells: dict[Setting, Runs] = {}
    laws: dict[Setting, list[SplitRisk | None]] = {}
    controls: dict[str, Runs] = {}
    choices: list[BestSetting] = []
    evaluators: dict[EvaluatorKey, Runs] = {}
    rows: dict[str, tuple[int, int, int]] = {}
    sums = _row_sums(tables)
    for number, own in enumerate(_by_split(tables), 1):
        for scope, part in _scopes(own, rng):
            rows[scope] = len(part.calibration), len(part.validation), len(part.test)
            run = _SplitEvaluation(table=own, scope=scope, part=part, rng=rng, sums=sums[scope])
            for setting, measured, law in run.cells():
                laws.setdefault(setting, []).append(law)
                _append(cells.setdefault(setting, {}), measured)
            _append(controls.setdefault(scope, {}), run.controls())
            choices += run.choices()
            for key, measured in run.evaluators():
                _append(evaluators.setdefault(key, {}), measured)
        progress("splits", number, protocol.splits)
    if len(controls) > 1:
        cells |= _averaged_cells(cells)
        controls[AVERAGE] = _averaged(list(controls.values()))
    return Evaluation(
        pool=table.pool,
        encoder=encoder,
        router=router,
        dtype=dtype,
        protocol=protocol,
        rows=rows,
        n_train=table.n_train,
        copies=table.copies,
        kinds=table.kinds,
        guessed=table.guessed,
        learned=table.learned,
        answered=table.classes is not None,
        cells=cells,
        laws=laws,
        controls=controls,
        choices=tuple(choices),
        evaluators=evaluators,
        unrated={} if table.rated is None else table.rated.unrated,
        sums=sums,
    )


def _row_sums(tables: Sequence[EvaluationTable]) -> dict[str, RowSums]:
    """Empty sums for every scope, wide enough for the clusters of its rows in all divisions."""
    names = tables[0].benchmarks
    if tables[0].protocol.calibrated == CalibrationScope.MERGED and len(names) > 1:
        of_scope = {MERGED: [table.error_clusters for table in tables]}
    else:
        of_scope = {
            name: [table.error_clusters[table.benchmarks[name]] for table in tables]
            for name in names
        }
    return {
        scope: RowSums(min(int(x.min()) for x in own), max(int(x.max()) for x in own) + 1)
        for scope, own in of_scope.items()
    }


def _by_split(tables: Sequence[EvaluationTable]) -> Iterator[EvaluationTable]:
    """The table of each split: those of the first division, then those of the next."""
    for division, table in enumerate(tables):
        for _ in range(table.protocol.splits_of(division)):
            yield table


def _scopes(table: EvaluationTable, rng: np.random.Generator) -> Iterator[tuple[str, Split]]:
    """The scopes of one repetition: each benchmark, or all of them merged."""
    parts = split_benchmarks(table.benchmarks, table.rows.split_units, table.protocol, rng)
    if table.protocol.calibrated == CalibrationScope.EACH or len(parts) == 1:
        yield from parts.items()
        return
    yield (
        MERGED,
        Split(
            calibration=np.concatenate([part.calibration for part in parts.values()]),
            validation=np.concatenate([part.validation for part in parts.values()]),
            test=np.concatenate([part.test for part in parts.values()]),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChosenRows:
    """What the test rows showed under a setting, and which calibration rows were missed."""

    right: FloatArray
    size: FloatArray
    clusters: Rows
    missed: BoolArray


@dataclass(frozen=True, slots=True)
class _ValidationScore:
    """A setting with its measures on the validation rows."""

    accuracy: float
    size: float
    choice: BestSetting
    rows: _ChosenRows

    @property
    def rank(self) -> tuple[float, float]:
        """Accuracy first; among equals the smaller set."""
        return self.accuracy, -self.size


class _SplitEvaluation:
    """One split of one scope."""

    def __init__(
        self,
        *,
        table: EvaluationTable,
        scope: str,
        part: Split,
        rng: np.random.Generator,
        sums: RowSums,
    ) -> None:
        self._table = table
        self._sums = sums
        self._scope = scope
        self._part = part
        self._labels = table.rows.labels
        self._setting = self._choose_patterns()
        self._tau = self._choose_tau()
        # A random order of the candidates for every row: the control of the same sizes.
        self._luck = rng.random((len(part.test), len(table.pool))).argsort(axis=1).argsort(axis=1)
        self._test_votes, self._validation_votes = self._compared()
        self._temperatures: dict[tuple[RiskTarget, Order], Temperatures] = {}
        self._validated: list[_ValidationScore] = []

    def cells(self) -> Iterator[tuple[Setting, dict[str, float], SplitRisk | None]]:
        """Every setting's measures on the test rows, and the exact law of its risk."""
        protocol = self._table.protocol
        for target in protocol.risk_targets:
            design_effect = self._design_effect(target)
            for score in self._table.orders:
                fit = self._table.nonconformity(target, score, self._setting)
                calibrating, critical = self._critical(target, fit, self._part.calibration)
                ascending = np.sort(critical)
                tested = np.sort(self._critical(target, fit, self._part.test)[1])
                for alpha in self._alphas:
                    misses = allowed_misses(len(ascending), alpha)
                    lambda_hat = threshold_from_sorted(ascending, misses)
                    setting = Setting(
                        scope=self._scope, risk_target=target, score=score, alpha=alpha
                    )
                    counts = {
                        "calibration_rows": float(len(ascending)),
                        "test_rows": float(len(tested)),
                        INFEASIBLE: float(misses < 0),
                    }
                    law = split_risk(ascending, tested, misses) if len(tested) else None
                    if law is not None and design_effect > 1.0:
                        law = law.of_units(design_effect)
                    clusters = self._table.error_clusters[calibrating]
                    missed = critical > lambda_hat
                    self._sums.add_misses(setting, clusters, missed)
                    self._add_slopes(setting, fit, ascending, misses)
                    measured = self._measure(setting, fit, lambda_hat, (clusters, missed))
                    yield setting, measured | counts, law

    def choices(self) -> list[BestSetting]:
        """The best of all alphas and votes on the validation rows, per target and score.

        Among equally accurate ones the smallest set; none where the rows are too few for every
        alpha.
        """
        best: dict[tuple[RiskTarget, Order], _ValidationScore] = {}
        for each in self._validated:
            key = each.choice.risk_target, each.choice.score
            if key not in best or each.rank > best[key].rank:
                best[key] = each
        clusters = self._table.error_clusters[self._part.test]
        for key, each in best.items():
            used = Chosen(*key, each.choice.alpha, each.choice.rule)
            self._sums.add(Chosen(*key), "accuracy", clusters, each.rows.right)
            self._sums.add(Chosen(*key), "size", clusters, each.rows.size)
            self._sums.add_misses(used, each.rows.clusters, each.rows.missed)
        return [each.choice for each in best.values()]

    def controls(self) -> dict[str, float]:
        """The controls that the sets are compared with, on the same test rows."""
        clusters = self._table.error_clusters[self._part.test]
        measured: dict[str, float] = {}
        for name, right in self._control_rows():
            self._sums.add(name, "accuracy", clusters, right.astype(np.float64))
            measured[name] = float(right.mean())
        return measured

    def _control_rows(self) -> Iterator[tuple[str, BoolArray]]:
        """Whether each control is right on each test row."""
        test, labels = self._part.test, self._labels[self._part.test]
        whole_pool = np.ones_like(labels)
        for column, name in enumerate(self._table.pool):
            yield f"candidate {name}", labels[:, column]
        yield "best single", labels[:, self._table.best_overall]
        yield "best single here", labels[:, self._table.best_on(self._scope)]
        top = self._table.rows.scores[test].argmax(axis=1)
        yield "router top-1", labels[np.arange(len(top)), top]
        yield "answerable", any_column(labels)
        if self._test_votes is not None and self._validation_votes is not None:
            validation = np.ones_like(self._labels[self._part.validation])
            temperatures = self._validation_votes.best_temperatures(validation)
            best = self._validation_votes.best_rule(validation, temperatures)
            for rule in self._test_votes.rules:
                yield (
                    f"full pool {rule}",
                    self._test_votes.right(rule, whole_pool, temperatures),
                )
            yield "full pool tuned", self._test_votes.right(best, whole_pool, temperatures)

    def _design_effect(self, target: RiskTarget) -> float:
        """The mean size of the unit of a row that counts; 1 where rows are split one by one."""
        rows = np.concatenate([self._part.calibration, self._part.test])
        if target == RiskTarget.ANSWERABLE:
            rows = rows[any_column(self._labels[rows])]
        sizes = np.bincount(self._table.rows.split_units[rows])
        return float((sizes**2).sum() / max(len(rows), 1))

    def evaluators(self) -> Iterator[tuple[EvaluatorKey, dict[str, float]]]:
        """The quality of each evaluator on the validation rows, and whether it was chosen."""
        if self._rated is None:
            return
        for each in self._rated.qualities():
            if each.group is None:
                chosen = self._rated.choose(each.weight).common == each.evaluator
                yield (
                    EvaluatorKey(scope=self._scope, weight=each.weight, evaluator=each.evaluator),
                    {
                        "auc": each.auc,
                        "accuracy": each.accuracy,
                        "failed": each.failed,
                        "chosen": float(chosen),
                    },
                )

    @cached_property
    def _rated(self) -> RatedAnswers | None:
        """The recorded confidences of the validation rows, which choose the evaluators."""
        rated = self._table.rated
        return None if rated is None else rated.at(self._part.validation)

    def _compared(self) -> tuple[VoteComparison | None, VoteComparison | None]:
        """The votes over the test rows, and over the validation rows."""
        if self._table.votes is None:
            return None, None
        chosen = {
            rule: self._rated.choose(weight)
            for rule, weight in EVALUATED.items()
            if self._rated is not None and weight in self._rated.values
        }

        def over(rows: Rows) -> VoteComparison:
            assert self._table.votes is not None
            rated = self._table.rated and self._table.rated.at(rows)
            return VoteComparison(
                votes=self._table.votes.at(rows),
                ratings={
                    rule: rated.ratings(EVALUATED[rule], choice)
                    for rule, choice in chosen.items()
                    if rated is not None
                },
            )

        return over(self._part.test), over(self._part.validation)

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
        return choose_tau(self._table.rows.scores[rows], self._labels[rows], budget)

    def _abstains(self, target: RiskTarget, rows: Rows) -> BoolArray:
        if target == RiskTarget.PAPER or self._tau is None:
            return np.zeros(len(rows), dtype=bool)
        return null_score(self._table.rows.scores[rows]) >= self._tau

    def _critical(self, target: RiskTarget, fit: FloatArray, rows: Rows) -> tuple[Rows, FloatArray]:
        """Those of the rows that count, with critical scores as `Calibration` computes them."""
        abstains = self._abstains(target, rows)
        if target == RiskTarget.ANSWERABLE:
            counted = any_column(self._labels[rows])
            rows, abstains = rows[counted], abstains[counted]
        critical = critical_scores(fit[rows], self._table.truths[target][rows])
        critical[abstains] = np.inf
        return rows, critical

    def _sets(
        self, target: RiskTarget, fit: FloatArray, lambda_hat: float, rows: Rows
    ) -> tuple[BoolArray, BoolArray]:
        """The sets without the null model (n, K), and whether it is selected (n,)."""
        inside = prediction_sets(fit[rows], lambda_hat)
        abstains = self._abstains(target, rows) & math.isfinite(lambda_hat)
        count = len(self._table.pool)
        null = inside[:, count] if inside.shape[1] > count else np.zeros(len(rows), dtype=bool)
        return inside[:, :count] & ~abstains[:, None], null | abstains

    @property
    def _alphas(self) -> list[float]:
        """The one nearest to 0.1 first."""
        return sorted(self._table.protocol.alphas, key=lambda each: abs(each - COMPARED_AT))

    def _cross_fitted(self, target: RiskTarget, alpha: float, fit: FloatArray) -> BoolArray | None:
        """The validation rows' sets, each half at the threshold of the other, shape (n, K).

        None if they are too few for alpha. Calibration rows take no part, so that choices made on
        these sets do not depend on them.
        """
        rows = self._part.validation

        def sets_by(own: Rows, other: Rows) -> BoolArray | None:
            ascending = np.sort(self._critical(target, fit, rows[other])[1])
            misses = allowed_misses(len(ascending), alpha)
            if misses < 0:
                return None
            lambda_hat = threshold_from_sorted(ascending, misses)
            return self._sets(target, fit, lambda_hat, rows[own])[0]

        return cross_fitted(renumbered(self._table.rows.split_units[rows]), sets_by)

    def _row_values(
        self, setting: Setting, fit: FloatArray, lambda_hat: float
    ) -> Iterator[tuple[str, Rows, FloatArray]]:
        """What the test rows show at a threshold: measure, the rows that count, their values."""
        test = self._part.test
        selected, null = self._sets(setting.risk_target, fit, lambda_hat, test)
        labels = self._labels[test]
        answerable, hit = any_column(labels), any_column(selected & labels)
        called = any_column(selected)
        some = test[answerable]
        yield "size", test, selected.sum(axis=1).astype(np.float64)
        yield "risk", test, np.where(answerable, ~hit, ~null).astype(np.float64)
        yield "miss_given_answerable", some, (~hit[answerable]).astype(np.float64)
        yield "served_error", test, (called & ~hit).astype(np.float64)
        yield "false_abstain", some, (~called[answerable]).astype(np.float64)
        if self._table.protocol.prices is not None:
            prices = np.array(self._table.protocol.prices, dtype=np.float64)
            yield "cost", test, np.asarray(selected @ prices, dtype=np.float64)
        if self._test_votes is not None and self._validation_votes is not None:
            temperatures = self._tuned(setting, self._validation_votes, fit)
            for rule in self._test_votes.rules:
                right = self._test_votes.right(rule, selected, temperatures)
                yield f"accuracy_{rule}", test, right.astype(np.float64)

    def _add_slopes(
        self, setting: Setting, fit: FloatArray, ascending: FloatArray, misses: int
    ) -> None:
        """The change of every figure with the risk, between fewer and more misses."""
        if misses < 0 or not self._sums.wants_slope(setting, "size"):
            return
        count = len(ascending)
        fewer, more = misses // 2, min(max(misses + 1, misses + (misses + 1) // 2), count - 1)
        if more <= fewer:
            return
        low, high = (
            {
                name: float(values.mean()) if len(values) else math.nan
                for name, _, values in self._row_values(
                    setting, fit, threshold_from_sorted(ascending, allowed)
                )
            }
            for allowed in (fewer, more)
        )
        for name, value in high.items():
            slope = (value - low[name]) * (count + 1) / (more - fewer)
            self._sums.add_slope(setting, name, slope)

    def _measure(
        self,
        setting: Setting,
        fit: FloatArray,
        lambda_hat: float,
        calibration: tuple[Rows, BoolArray],
    ) -> dict[str, float]:
        """All measures of a setting; ``calibration``: clusters of its rows, which were missed."""
        target, test = setting.risk_target, self._part.test
        selected, null = self._sets(target, fit, lambda_hat, test)
        metrics = set_metrics(selected, null, self._labels[test])
        measured = {field.name: getattr(metrics, field.name) for field in fields(metrics)}
        measured["null"] = float(null.mean())
        measured["calls_saved"] = 1.0 - metrics.size / len(self._table.pool)
        if self._table.protocol.prices is not None:
            measured["cost"] = float((selected @ np.array(self._table.protocol.prices)).mean())
        random = self._luck < selected.sum(axis=1, keepdims=True)
        random_metrics = set_metrics(random, null, self._labels[test])
        measured["random_miss"] = random_metrics.miss_given_answerable
        shown: dict[str, FloatArray] = {}
        for name, rows, values in self._row_values(setting, fit, lambda_hat):
            self._sums.add(setting, name, self._table.error_clusters[rows], values)
            shown[name] = values
        if self._test_votes is not None and self._validation_votes is not None:
            held_out = self._cross_fitted(target, setting.alpha, fit)
            temperatures = self._tuned(setting, self._validation_votes, fit)
            measured["random_majority"] = self._test_votes.accuracy(Rule.MAJORITY, random, {})
            for rule in self._test_votes.rules:
                accuracy = float(shown[f"accuracy_{rule}"].mean())
                measured[f"accuracy_{rule}"] = accuracy
                if held_out is None:
                    continue
                self._validated.append(
                    _ValidationScore(
                        self._validation_votes.accuracy(rule, held_out, temperatures),
                        float(held_out.sum(axis=1).mean()),
                        BestSetting(
                            scope=setting.scope,
                            risk_target=target,
                            score=setting.score,
                            alpha=setting.alpha,
                            rule=rule,
                            accuracy=accuracy,
                            size=metrics.size,
                            risk=metrics.risk
                            if target == RiskTarget.PAPER
                            else metrics.miss_given_answerable,
                        ),
                        _ChosenRows(
                            right=shown[f"accuracy_{rule}"],
                            size=shown["size"],
                            clusters=calibration[0],
                            missed=calibration[1],
                        ),
                    )
                )
        return measured

    def _tuned(self, setting: Setting, votes: VoteComparison, fit: FloatArray) -> Temperatures:
        """T of the weighted votes, tuned once per score and target on validation rows.

        At the alpha nearest to 0.1 for which the validation rows are enough, else on whole pools.
        """
        key = setting.risk_target, setting.score
        if key not in self._temperatures:
            found = (self._cross_fitted(setting.risk_target, each, fit) for each in self._alphas)
            whole_pool = np.ones_like(votes.votes.labels)
            held_out = next((sets for sets in found if sets is not None), whole_pool)
            self._temperatures[key] = votes.best_temperatures(held_out)
        return self._temperatures[key]


def _append(runs: Runs, measured: Mapping[str, float]) -> None:
    for name, value in measured.items():
        runs.setdefault(name, []).append(value)


def _averaged_cells(cells: Mapping[Setting, Runs]) -> dict[Setting, Runs]:
    """The mean over benchmarks in every split."""
    groups: dict[Setting, list[Runs]] = {}
    for setting, runs in cells.items():
        key = Setting(
            scope=AVERAGE, risk_target=setting.risk_target, score=setting.score, alpha=setting.alpha
        )
        groups.setdefault(key, []).append(runs)
    return {key: _averaged(parts) for key, parts in groups.items()}


def _averaged(parts: list[Runs]) -> Runs:
    return {name: np.mean([part[name] for part in parts], axis=0).tolist() for name in parts[0]}


__getattr__ = renamed(__name__, {"Choice": "racer_core.offline.evaluation_result.BestSetting"})
