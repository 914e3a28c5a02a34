"""Evaluation results: the measures of every setting in every split, as the reports read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from racer_core.aggregation.vote import Weight
from racer_core.calibration.split_risk import SplitRisk
from racer_core.offline.equalities import EqualityTrial
from racer_core.offline.protocol import Order, Protocol, order_member
from racer_core.offline.same_answer import SequenceKey
from racer_core.offline.standard_errors import Draws, standard_error
from racer_core.offline.votes import Rule
from racer_core.types import FloatArray, RiskTarget, RowsKind, enum_member

MERGED = "merged"
AVERAGE = "average"
SHORTFALL = "shortfall"  # a measure of graded rows, which alpha bounds
FULL_POOL = "full pool "  # controls: with the name of a vote
BEST = "best single"  # a control: the best candidate over all benchmarks, in hindsight
FULL_POOL_BEST = "full pool best"  # a control of graded rows: the best answer of the pool
INFEASIBLE = "infeasible"  # a measure: whether the calibration rows were too few for alpha
_ROUNDING = 1e-12  # of a mean over equal figures
TO_CALIBRATE = "to_calibrate"  # a measure: the rows that count, but for those that train or choose
# What alpha bounds under each target.
RISK = {
    RiskTarget.PAPER: "risk",
    RiskTarget.ANSWERABLE: "miss_given_answerable",
    RiskTarget.QUALITY: SHORTFALL,
}


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Setting:
    """One row of a report."""

    scope: str  # a benchmark, `merged` or `average`
    risk_target: RiskTarget
    score: Order
    alpha: float

    def __post_init__(self) -> None:
        """Turn the names of enum members into members; refuse other names."""
        target = enum_member(RiskTarget, self.risk_target, "risk_target")
        object.__setattr__(self, "risk_target", target)
        object.__setattr__(self, "score", order_member(self.score))


Runs = dict[str, list[float]]  # a measure in every split


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSetting:
    """The alpha and the vote with the best accuracy on a split's validation rows."""

    scope: str
    risk_target: RiskTarget
    score: Order
    alpha: float
    rule: Rule
    accuracy: float  # on the test rows, as are the next two
    size: float
    risk: float


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class EvaluatorKey:
    """An evaluator of answers in one scope."""

    scope: str
    weight: Weight
    evaluator: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """What validation rows choose under a target and score."""

    risk_target: RiskTarget
    score: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All measures, in every split."""

    pool: tuple[str, ...]
    encoder: str
    router: str
    protocol: Protocol  # its scores are those that could be measured
    rows: Mapping[str, tuple[int, int, int]]  # by scope: calibration, validation, test
    n_train: int
    copies: int  # rows that repeat an earlier query but for case or space
    answered: bool  # whether the rows have answers, which votes need
    cells: Mapping[Setting, Runs]
    laws: Mapping[Setting, list[SplitRisk | None]]  # of the risk of each split; not of averages
    controls: Mapping[str, Runs]  # by scope
    choices: tuple[BestSetting, ...]
    kinds: Mapping[str, RowsKind] = field(default_factory=dict[str, RowsKind])  # by benchmark
    guessed: frozenset[str] = frozenset()  # the benchmarks whose kind was not said
    dtype: str | None = None  # of the encoder's weights
    # Resampled figures by scope, not of averages; arrays, which do not compare.
    resampled: Mapping[str, Draws] = field(default_factory=dict[str, Draws], compare=False)
    learned: int = 0  # rows that were left out because the artifact was trained or tuned on them
    # `auc`, `accuracy` and `failed` on the validation rows, and `chosen`: 1 where it was chosen.
    evaluators: Mapping[EvaluatorKey, Runs] = field(default_factory=dict[EvaluatorKey, Runs])
    # `calls`, `rounds`, `price`, `differs`, `accuracy` of sequential calls and of their rivals.
    sequences: Mapping[SequenceKey, Runs] = field(default_factory=dict[SequenceKey, Runs])
    # Rows without a kind of confidence, of the kinds that some rows lack.
    unrated: Mapping[Weight, int] = field(default_factory=dict[Weight, int])
    # The majority of all candidates by equality, of all rows but training ones; the protocol's one
    # is the first.
    equalities: tuple[EqualityTrial, ...] = ()

    def mean(self, setting: Setting, measure: str) -> float:
        """The mean over splits; NaN if a measure does not exist."""
        return float(np.mean(self.cells[setting].get(measure, [math.nan])))

    def sd(self, setting: Setting, measure: str) -> float:
        """The standard deviation over splits."""
        return float(np.std(self.cells[setting].get(measure, [math.nan])))

    def parts(self, scope: str) -> tuple[str, ...]:
        """The benchmarks of an average; else the scope itself."""
        return tuple(self.resampled) if scope == AVERAGE else (scope,)

    def draws(
        self, scope: str, key: Setting | EvaluatorKey | Chosen | str, measure: str
    ) -> FloatArray:
        """A figure of a setting, an evaluator, a choice or a control in resamples of the rows.

        Shape (resamples,). A control has the measure ``accuracy``. Raises KeyError if the figure
        is no sum over rows.
        """
        parts = [self.resampled[each][_in_scope(key, each), measure] for each in self.parts(scope)]
        return np.mean(parts, axis=0)

    def se_rows(self, key: Setting | EvaluatorKey, measure: str) -> float:
        """The standard error over rows of a setting's or evaluator's figure; NaN if none.

        It is 0 only where every split calls the whole pool, since no threshold was estimated.
        """
        try:
            drawn = self.draws(key.scope, key, measure)
        except KeyError:
            return math.nan
        if isinstance(key, Setting) and self.infeasible_share(key) == 1.0:
            return standard_error(drawn)
        return self.error(key.scope, measure, drawn)

    def error(self, scope: str, measure: str, drawn: FloatArray) -> float:
        """The standard deviation of a figure over resamples; above 0.

        Rows that are all alike give the same figure in every resample. A share of 0 in n rows still
        leaves 1 - 0.05^(1/n), about 3/n, with confidence 0.95. That part of the measure's range is
        the error's 95 % then.
        """
        error = standard_error(drawn)
        if error > _ROUNDING:
            return error
        count = sum(self.rows[part][2] for part in self.parts(scope))
        ranges = {"size": float(len(self.pool)), "cost": sum(self.protocol.prices or ())}
        return ranges.get(measure, 1.0) * (1.0 - 0.05 ** (1.0 / max(count, 1))) / 1.96

    def se_control(self, scope: str, control: str) -> float:
        """The standard error over rows of a control's accuracy."""
        return standard_error(self.draws(scope, control, "accuracy"))

    def infeasible(self, setting: Setting) -> int:
        """In how many splits the rows were too few for alpha, so that the whole pool was called."""
        return sum(each > 0.0 for each in self.cells[setting][INFEASIBLE])

    def infeasible_share(self, setting: Setting) -> float:
        """The share of splits, and of benchmarks of an average, that call the whole pool."""
        return self.mean(setting, INFEASIBLE)

    @property
    def scopes(self) -> tuple[str, ...]:
        """Benchmarks in order, then `average` or `merged` if there are several."""
        return tuple(self.controls)

    def as_json(self) -> dict[str, Any]:
        """Plain values: means, standard deviations and every split."""
        return {
            "pool": self.pool,
            "encoder": self.encoder,
            "router": self.router,
            "dtype": self.dtype,
            "learned": self.learned,
            "protocol": asdict(self.protocol),
            "rows": self.rows,
            "n_train": self.n_train,
            "copies": self.copies,
            "kinds": {
                name: {"kind": kind, "guessed": name in self.guessed}
                for name, kind in self.kinds.items()
            },
            "answered": self.answered,
            "cells": [
                asdict(setting)
                | {
                    "mean": {name: _number(np.mean(runs)) for name, runs in cell.items()},
                    "sd": {name: _number(np.std(runs)) for name, runs in cell.items()},
                    "se_rows": {
                        name: se
                        for name in cell
                        if (se := _number(self.se_rows(setting, name))) is not None
                    },
                    "splits": {name: [_number(x) for x in runs] for name, runs in cell.items()},
                }
                for setting, cell in self.cells.items()
            ],
            "controls": {
                scope: {
                    "mean": {name: _number(np.mean(values)) for name, values in runs.items()},
                    "se_rows": {name: _number(self.se_control(scope, name)) for name in runs},
                    "splits": {name: [_number(x) for x in xs] for name, xs in runs.items()},
                }
                for scope, runs in self.controls.items()
            },
            "choices": [asdict(choice) for choice in self.choices],
            "evaluators": [
                asdict(key)
                | {
                    "mean": {name: _number(np.mean(values)) for name, values in runs.items()},
                    "se_rows": {
                        name: _number(self.se_rows(key, name)) for name in ("auc", "accuracy")
                    },
                    "splits": {name: [_number(x) for x in xs] for name, xs in runs.items()},
                }
                for key, runs in self.evaluators.items()
            ],
            "same_answer": [
                asdict(key)
                | {
                    "mean": {name: _number(np.mean(values)) for name, values in runs.items()},
                    "splits": {name: [_number(x) for x in xs] for name, xs in runs.items()},
                }
                for key, runs in self.sequences.items()
            ],
            "unrated": dict(self.unrated),
            "equalities": [asdict(each) for each in self.equalities],
        }


def _in_scope(
    key: Setting | EvaluatorKey | Chosen | str, scope: str
) -> Setting | EvaluatorKey | Chosen | str:
    return key if isinstance(key, str | Chosen) else replace(key, scope=scope)


def _number(value: float | np.floating[Any]) -> float | None:
    """NaN, a share of no rows, is null in JSON."""
    return None if math.isnan(value) else float(value)
