"""One scope of an evaluation under one risk target: its numbers, split by split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from racer_core.calibration.split_risk import SplitRisk
from racer_core.offline.evaluation_result import AVERAGE, SHORTFALL, Evaluation, Setting
from racer_core.offline.protocol import Order
from racer_core.offline.row_errors import Influence, standard_error
from racer_core.offline.votes import Rule
from racer_core.types import FloatArray, RiskTarget

FULL_POOL = "full pool "
BEST = "best single"
BEST_HERE = "best single here"
ANSWERABLE = "answerable"
# What alpha bounds under each target.
RISK = {
    RiskTarget.PAPER: "risk",
    RiskTarget.ANSWERABLE: "miss_given_answerable",
    RiskTarget.QUALITY: SHORTFALL,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of every split, with both errors of its mean.

    Attributes:
        runs: One number per split, shape (splits,).
        influence: What every cluster of rows adds to the mean; None where no sums tell it.
    """

    runs: FloatArray
    influence: Influence | None = None

    def __sub__(self, other: Figure) -> Figure:
        """The paired difference."""
        if self.influence is None or other.influence is None:
            return Figure(self.runs - other.runs)
        return Figure(self.runs - other.runs, self.influence - other.influence)

    def __str__(self) -> str:
        """The mean, its error over rows if there are sums, and its spread over splits."""
        if self.influence is None:
            return spread(self.runs)
        return spread(self.runs, standard_error(self.influence))


@dataclass(frozen=True, slots=True)
class View:
    """Reads an evaluation; every array has one number per split, shape (splits,)."""

    evaluation: Evaluation
    scope: str
    target: RiskTarget

    @property
    def alphas(self) -> list[float]:
        """Ascending."""
        return sorted(set(self.evaluation.protocol.alphas))

    @property
    def scores(self) -> tuple[Order, ...]:
        """As the protocol names them."""
        return tuple(dict.fromkeys(self.evaluation.protocol.scores))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The votes that could be measured; none without recorded answers."""
        known = self.evaluation.controls[self.scope]
        return tuple(rule for rule in Rule if f"{FULL_POOL}{rule}" in known)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Controls that do not depend on alpha: candidates, the best of them, full pools."""
        return tuple(name for name in self.evaluation.controls[self.scope] if name != ANSWERABLE)

    @property
    def parts(self) -> tuple[View, ...]:
        """The benchmarks of an average; itself otherwise."""
        if self.scope != AVERAGE:
            return (self,)
        names = [scope for scope in self.evaluation.scopes if scope != AVERAGE]
        return tuple(replace(self, scope=name) for name in names)

    @property
    def measured_on(self) -> str:
        """Encoder, router, rows and splits, as every table says."""
        return f"{described(self.evaluation)}; {self.scope}: {self._rows}"

    @property
    def _rows(self) -> str:
        if self.scope == AVERAGE:
            return f"mean over {len(self.parts)} benchmarks"
        n, validation, test = self.evaluation.rows[self.scope]
        return f"{n} calibration, {validation} validation, {test} test rows"

    def setting(self, score: Order, alpha: float) -> Setting:
        """The setting of a score and an alpha in this scope."""
        return Setting(scope=self.scope, risk_target=self.target, score=score, alpha=alpha)

    def runs(self, score: Order, alpha: float, measure: str) -> FloatArray:
        """A measure of the sets."""
        return np.array(self.evaluation.cells[self.setting(score, alpha)][measure])

    def infeasible(self, alpha: float) -> int:
        """In how many splits the calibration rows are too few for alpha, under any score."""
        setting = Setting(
            scope=self.scope, risk_target=self.target, score=self.scores[0], alpha=alpha
        )
        return self.evaluation.infeasible(setting)

    def laws(self, score: Order, alpha: float) -> list[SplitRisk | None]:
        """The exact law of the risk in each split; None in one without test rows that count."""
        setting = Setting(scope=self.scope, risk_target=self.target, score=score, alpha=alpha)
        return self.evaluation.laws[setting]

    def risk(self, score: Order, alpha: float) -> FloatArray:
        """The risk that alpha bounds under this target."""
        return self.runs(score, alpha, RISK[self.target])

    def accuracy(self, control: str) -> FloatArray:
        """Share of test rows that a fixed control answers right; its mean quality where graded."""
        return np.array(self.evaluation.controls[self.scope][control])

    def figure(self, score: Order, alpha: float, measure: str) -> Figure:
        """A measure of the sets, with its errors."""
        runs, setting = self.runs(score, alpha, measure), self.setting(score, alpha)
        if measure == "calls_saved":  # 1 - size / K
            of_size = _known(lambda: self.evaluation.influence(self.scope, setting, "size"))
            return Figure(runs, None if of_size is None else -of_size / len(self.evaluation.pool))
        return Figure(runs, _known(lambda: self.evaluation.influence(self.scope, setting, measure)))

    def control(self, name: str) -> Figure:
        """The accuracy of a fixed control, with its errors."""
        influence = _known(lambda: self.evaluation.influence(self.scope, name, "accuracy"))
        return Figure(self.accuracy(name), influence)

    def chosen(self, score: Order, measure: str) -> Figure:
        """A measure of the alpha and vote that the validation rows of each split choose."""
        scopes = {part.scope for part in self.parts}
        runs = [
            getattr(each, measure)
            for each in self.evaluation.choices
            if (each.risk_target, each.score) == (self.target, score) and each.scope in scopes
        ]
        influence = _known(
            lambda: self.evaluation.chosen_influence(self.scope, self.target, score, measure)
        )
        return Figure(np.array(runs if runs else [np.nan]), influence)

    def fixed_size(self, control: str) -> FloatArray:
        """Candidates that a fixed control calls."""
        size = len(self.evaluation.pool) if control.startswith(FULL_POOL) else 1
        return np.full(self.evaluation.protocol.splits, float(size))

    def fixed_risk(self, control: str) -> Figure:
        """The risk of a fixed control's set, which never holds the null model."""
        parts = [part._own_fixed_risk(control) for part in self.parts]
        known = [part.influence / len(parts) for part in parts if part.influence is not None]
        return Figure(
            np.mean([part.runs for part in parts], axis=0),
            np.concatenate(known) if len(known) == len(parts) else None,
        )

    def _own_fixed_risk(self, control: str) -> Figure:
        """The same for a scope that has test rows of its own; NaN where none is answerable."""
        answerable = self.control(ANSWERABLE)
        hit = answerable if control.startswith(FULL_POOL) else self.control(control)
        if self.target == RiskTarget.QUALITY:
            return answerable - hit
        if self.target == RiskTarget.PAPER:
            return Figure(1.0 - hit.runs, None if hit.influence is None else -hit.influence)
        some = answerable.runs > 0.0
        share = hit.runs / np.where(some, answerable.runs, 1.0)
        runs = np.where(some, 1.0 - share, np.nan)
        if hit.influence is None or answerable.influence is None or not some.all():
            return Figure(runs)
        mean, ratio = answerable.runs.mean(), hit.runs.mean() / answerable.runs.mean()
        return Figure(runs, (ratio * answerable.influence - hit.influence) / mean)


def _known(influence: Callable[[], Influence]) -> Influence | None:
    """None where no sums over rows were taken."""
    try:
        return influence()
    except KeyError:
        return None


def views(evaluation: Evaluation, target: RiskTarget) -> Iterator[View]:
    """Every scope."""
    for scope in evaluation.scopes:
        yield View(evaluation, scope, target)


def repeats(evaluation: Evaluation) -> str:
    """How many rows repeat a query, and what kind of rows each benchmark was taken for."""
    verb = "row repeats" if evaluation.copies == 1 else "rows repeat"
    kinds = [
        f"{name}: {kind}{' (guessed)' if name in evaluation.guessed else ''}"
        for name, kind in evaluation.kinds.items()
    ]
    if evaluation.learned:
        kinds.append(f"{evaluation.learned} rows of the artifact's training left out")
    return "; ".join([f"{evaluation.copies} {verb} a query", *kinds])


def described(evaluation: Evaluation) -> str:
    """Encoder, router, splits, number format and seed."""
    protocol = evaluation.protocol
    return (
        f"encoder {evaluation.encoder}, router {evaluation.router} "
        f"({evaluation.n_train} training rows), {protocol.splits} splits"
        + (f" in {protocol.divisions} divisions" if protocol.divisions > 1 else "")
        + (f", {evaluation.dtype}" if evaluation.dtype else "")
        + f", seed {protocol.seed}"
    )


# A table of a report: words only, so that terminal, Markdown and HTML show the same.


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells, and what they were measured on."""

    title: str
    measured_on: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number(value: float) -> str:
    """Three decimals; a share of no rows is "-"."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def spread(runs: FloatArray | Sequence[float], se_rows: float = math.nan) -> str:
    """The mean, ± 1.96 standard errors over rows, and the standard deviation over splits."""
    mean = float(np.mean(runs))
    over_rows = "" if math.isnan(se_rows) else f" ±{1.96 * se_rows:.3f}"
    return "-" if math.isnan(mean) else f"{mean:.3f}{over_rows} ({float(np.std(runs)):.3f})"
