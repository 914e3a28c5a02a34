"""Evaluation by random splits of scored rows.

The spread over splits is that of re-splitting one pool of rows, not an independent standard error.
With several divisions it includes the choice of the training rows and the training of the router.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from racer_core.calibration.decision import Sets
from racer_core.calibration.loss_curve import SCALE, RowLosses
from racer_core.calibration.metrics import set_metrics, shortfalls
from racer_core.calibration.split_risk import SplitRisk, split_risk
from racer_core.offline.evaluation_result import (
    AVERAGE,
    BEST,
    FULL_POOL,
    FULL_POOL_BEST,
    INFEASIBLE,
    MERGED,
    SHORTFALL,
    TO_CALIBRATE,
    BestSetting,
    Chosen,
    Evaluation,
    EvaluatorKey,
    Runs,
    Setting,
)
from racer_core.offline.protocol import (
    COMPARED_AT,
    CalibrationScope,
    Order,
    Rows,
    Split,
    split_benchmarks,
)
from racer_core.offline.reporting import Progress, silent
from racer_core.offline.same_answer import SAME_ANSWER_AT, SequenceKey, compared
from racer_core.offline.split_calibration import SplitCalibration
from racer_core.offline.standard_errors import ClusterSums
from racer_core.offline.table import EvaluationTable
from racer_core.offline.votes import EVALUATED, Rule, Temperatures, VoteComparison, Votes
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.types import BoolArray, FloatArray, RiskTarget, any_column


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
    sequences: dict[SequenceKey, Runs] = {}
    rows: dict[str, tuple[int, int, int]] = {}
    sums = _cluster_sums(tables)
    for number, own in enumerate(_by_split(tables), 1):
        for scope, part in _scopes(own, rng):
            rows[scope] = len(part.calibration), len(part.validation), len(part.test)
            run = SplitEvaluation(table=own, scope=scope, part=part, rng=rng, sums=sums[scope])
            for setting, measured, law in run.cells():
                laws.setdefault(setting, []).append(law)
                _append(cells.setdefault(setting, {}), measured)
            _append(controls.setdefault(scope, {}), run.controls())
            choices += run.choices()
            for key, measured in run.evaluators():
                _append(evaluators.setdefault(key, {}), measured)
            for sequence, measured in run.sequences():
                _append(sequences.setdefault(sequence, {}), measured)
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
        answered=table.answers is not None,
        cells=cells,
        laws=laws,
        controls=controls,
        choices=tuple(choices),
        evaluators=evaluators,
        sequences=sequences,
        equalities=table.equalities,
        unrated={} if table.rated is None else table.rated.unrated,
        resampled={scope: each.draws(rng, protocol.splits) for scope, each in sums.items()},
    )


def _cluster_sums(tables: Sequence[EvaluationTable]) -> dict[str, ClusterSums]:
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
        scope: ClusterSums(min(int(x.min()) for x in own), max(int(x.max()) for x in own) + 1)
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


# Evaluation of one split: the measures of every setting, and of the controls, on its test rows.


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
        protocol, part = self._table.protocol, self._part
        # An artifact has chosen its settings, on other rows.
        choosing = part.validation if self._table.null_threshold is not None else part.test[:0]
        for target in protocol.risk_targets:
            left = self._calibration.counted(target, choosing)
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
                        TO_CALIBRATE: float(len(losses.scores) + len(tested.scores) + left),
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
        if table.answers is None:
            return
        answers = AnswerClasses(
            pool=table.pool,
            classes=table.answers.classes,
            equal=table.answers.equal,
            fingerprints=table.rows.fingerprints,
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


# Votes of one split: over its test rows, tuned on its validation rows; the best alpha and vote.


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
