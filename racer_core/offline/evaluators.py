"""Recorded confidences of evaluators: their quality, and the choice of one evaluator a group.

Paper, Sec. 3.3: votes are weighted by one evaluator per task, the best on validation rows. A vote
compares the answers to one question, so the quality is an area under the ROC curve within
questions. This module calls no model: `racer label` records the confidences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.vote import Weight
from racer_core.offline.protocol import Rows
from racer_core.types import BoolArray, FloatArray, LabelledRow

WEIGHTS = (Weight.VERBAL, Weight.P_TRUE)
MIN_ROWS = 50  # contested questions of a group that has an evaluator of its own
_NO_GROUP = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorQuality:
    """How well an evaluator's confidences tell right answers from wrong ones.

    Attributes:
        evaluator: Its name in the rows.
        weight: The kind of confidence.
        group: The group of the rows; None for all rows.
        contested: Questions with a right and a wrong answer, which alone an AUC can use.
        auc: Chance that of a right and a wrong answer to the same question the right one has the
            larger confidence; ties and failed ratings count one half. NaN without such questions.
        accuracy: Share of rated answers that are right where the confidence is at least 0.5, and
            wrong where it is less. NaN without rated answers.
        failed: Share of answers without a rating.
    """

    evaluator: str
    weight: Weight
    group: str | None
    contested: int
    auc: float
    accuracy: float
    failed: float

    def as_json(self) -> dict[str, Any]:
        """The fields; NaN is null."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in values.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorChoice:
    """The chosen evaluators of one kind of confidence, as `aggregation` names them."""

    common: str
    of_groups: Mapping[str, str]  # only groups whose evaluator is not the common one


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedAnswers:
    """The recorded confidences of some rows.

    Attributes:
        values: Kind -> evaluator -> confidences, shape (n, K); NaN where there is none. Only kinds
            that every row with an answer has.
        unrated: Kind -> number of rows without it, of the other kinds.
        labels: Correctness, shape (n, K).
        given: Whether there is an answer, shape (n, K).
        groups: The group of each row, shape (n,); "" for none.
    """

    values: Mapping[Weight, Mapping[str, FloatArray]]
    unrated: Mapping[Weight, int]
    labels: BoolArray
    given: BoolArray
    groups: NDArray[np.str_]

    @classmethod
    def of(cls, rows: Sequence[LabelledRow], pool: Sequence[str]) -> RatedAnswers:
        """The confidences of rows, with columns in the order of the pool."""
        answered = [row for row in rows if any(text is not None for text in row.answers.values())]
        unrated = {
            weight: sum(not any(weight in e for e in row.confidences.values()) for row in answered)
            for weight in WEIGHTS
        }
        names = dict.fromkeys(name for row in rows for name in row.confidences)
        return cls(
            values={
                weight: {
                    name: _matrix(rows, name, weight, pool)
                    for name in names
                    if any(weight in row.confidences.get(name, {}) for row in rows)
                }
                for weight in WEIGHTS
                if answered and not unrated[weight]
            },
            unrated={weight: count for weight, count in unrated.items() if count},
            labels=np.array([[name in row.correct for name in pool] for row in rows], dtype=bool),
            given=np.array(
                [[row.answers.get(name) is not None for name in pool] for row in rows], dtype=bool
            ),
            groups=np.array([row.group or _NO_GROUP for row in rows], dtype=np.str_),
        )

    def at(self, rows: Rows) -> RatedAnswers:
        """Some of the rows."""
        return replace(
            self,
            values={
                weight: {name: of[rows] for name, of in by_name.items()}
                for weight, by_name in self.values.items()
            },
            labels=self.labels[rows],
            given=self.given[rows],
            groups=self.groups[rows],
        )

    def qualities(self) -> list[EvaluatorQuality]:
        """Every evaluator on all rows, then on each group of at least two."""
        groups = [str(each) for each in np.unique(self.groups)]
        parts = [(None, np.arange(len(self.groups)))]
        if len(groups) > 1:
            parts += [(each, np.flatnonzero(self.groups == each)) for each in groups if each]
        return [
            self._quality(weight, name, group, rows)
            for weight, by_name in self.values.items()
            for group, rows in parts
            for name in by_name
        ]

    def choose(self, weight: Weight) -> EvaluatorChoice:
        """The evaluator with the largest AUC, for all rows and for each group.

        A group with fewer than 50 contested questions takes the common evaluator, or, where that
        one did not rate it, the best of those that did over all rows. Among equals the first.
        """
        everywhere = np.arange(len(self.groups))
        common = {
            name: self._quality(weight, name, None, everywhere).auc for name in self.values[weight]
        }
        best = _best(common)
        of_groups: dict[str, str] = {}
        for group in np.unique(self.groups):
            rows = np.flatnonzero(self.groups == group)
            own = {
                name: self._quality(weight, name, str(group), rows)
                for name, of in self.values[weight].items()
                if not np.isnan(of[rows]).all()
            }
            if group == _NO_GROUP or not own:
                continue
            enough = next(iter(own.values())).contested >= MIN_ROWS
            chosen = _best({name: own[name].auc if enough else common[name] for name in own})
            if chosen != best:
                of_groups[str(group)] = chosen
        return EvaluatorChoice(common=best, of_groups=of_groups)

    def ratings(self, weight: Weight, choice: EvaluatorChoice) -> FloatArray:
        """The confidences of the chosen evaluators, shape (n, K)."""
        of = self.values[weight]
        ratings = of[choice.common].copy()
        for group, name in choice.of_groups.items():
            rows = self.groups == group
            ratings[rows] = of[name][rows]
        return ratings

    def sums(
        self, weight: Weight, name: str, rows: Rows | slice = slice(None)
    ) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Each figure as a ratio of two sums over rows: what every row adds to both, (n,) each."""
        confidences, given = self.values[weight][name][rows], self.given[rows]
        labels = self.labels[rows]
        rated = given & ~np.isnan(confidences)
        agrees = rated & ((confidences >= 0.5) == labels)
        return {
            "auc": _pairs_within_rows(confidences, labels & given, ~labels & given),
            "accuracy": (_count(agrees), _count(rated)),
        }

    def _quality(
        self, weight: Weight, name: str, group: str | None, rows: Rows
    ) -> EvaluatorQuality:
        confidences, given = self.values[weight][name][rows], self.given[rows]
        rated = given & ~np.isnan(confidences)
        sums = self.sums(weight, name, rows)
        return EvaluatorQuality(
            evaluator=name,
            weight=weight,
            group=group,
            contested=int((sums["auc"][1] > 0.0).sum()),
            auc=_ratio(*sums["auc"]),
            accuracy=_ratio(*sums["accuracy"]),
            failed=1.0 - float(rated.sum() / given.sum()) if given.any() else math.nan,
        )


def _pairs_within_rows(
    confidences: FloatArray, right: BoolArray, wrong: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Pairs of a right and a wrong answer of each row: those that are ordered so, and all."""
    ahead, pairs = np.zeros(len(right)), np.zeros(len(right))
    for column in range(confidences.shape[1]):
        paired = right[:, column, None] & wrong
        lead = np.sign(confidences[:, column, None] - confidences)
        won = np.where(np.isnan(lead), 0.5, 0.5 + 0.5 * lead)
        pairs += _count(paired)
        ahead += np.where(paired, won, 0.0).sum(axis=1)
    return ahead, pairs


def _count(cells: BoolArray) -> FloatArray:
    return cells.sum(axis=1).astype(np.float64)


def _ratio(parts: FloatArray, wholes: FloatArray) -> float:
    """NaN without anything in the denominator."""
    return float(parts.sum() / wholes.sum()) if wholes.any() else math.nan


def _best(aucs: Mapping[str, float]) -> str:
    """The first name with the largest AUC; NaN is no better than chance."""
    return max(aucs, key=lambda name: 0.5 if math.isnan(aucs[name]) else aucs[name])


def _matrix(
    rows: Sequence[LabelledRow], evaluator: str, weight: Weight, pool: Sequence[str]
) -> FloatArray:
    values = [row.confidences.get(evaluator, {}).get(weight, {}) for row in rows]
    return np.array([[each.get(name) for name in pool] for each in values], dtype=np.float64)
