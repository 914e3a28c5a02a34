"""Simulated judges: a finite population of scored queries, and verdicts that are often wrong.

Rows are drawn with replacement, so that the true risk of every threshold is a mean over the
population.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from racer_core.calibration.judge_correction import (
    CorrectedThresholds,
    Losses,
    Parts,
    corrected_thresholds,
)
from racer_core.types import BoolArray, FloatArray, any_column

CANDIDATES: Final = 5

# Chance that the judge says "right" of a wrong answer, and "wrong" of a right one.
Errors = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Population:
    """Queries with what the router, people and the judge say of them.

    ``difficulty`` (n,) is unknown to the router; ``nonconformity`` and ``labels`` are (n, K).
    """

    difficulty: FloatArray
    nonconformity: FloatArray
    labels: BoolArray

    @property
    def losses(self) -> Losses:
        """The rows' losses by people's labels."""
        return losses(self.nonconformity, self.labels)

    @cached_property
    def _critical(self) -> FloatArray:
        found = self.losses
        return np.sort(found.critical[found.counted])

    @cached_property
    def _scores(self) -> FloatArray:
        return np.sort(self.nonconformity, axis=None)

    def risk(self, threshold: float) -> float:
        """P(missed | some candidate is right)."""
        covered = int(np.searchsorted(self._critical, threshold, side="right"))
        return 1.0 - covered / len(self._critical)

    def size(self, threshold: float) -> float:
        """Mean number of candidates called."""
        return int(np.searchsorted(self._scores, threshold, side="right")) / len(self.labels)


def losses(nonconformity: FloatArray, labels: BoolArray) -> Losses:
    """Losses for the target ``answerable``: the smallest score of a right candidate."""
    critical = np.where(labels, nonconformity, np.inf).min(axis=1)
    return Losses(critical=critical, counted=any_column(labels))


def population(count: int, seed: int = 0) -> Population:
    """Candidates of different strength, each better at some topic; some queries beat them all."""
    rng = np.random.default_rng(seed)
    difficulty, topic = rng.normal(0.0, 1.6, count), rng.integers(0, 4, count)
    strength = np.array([1.2, 0.8, 0.6, 0.3, 0.0])
    special = np.zeros((4, CANDIDATES))
    special[[0, 1, 2, 3], [0, 1, 2, 4]] = 1.5, 1.5, 1.5, 2.0
    chance = _logistic(strength - difficulty[:, None] + special[topic])
    seen = 0.7 * difficulty * rng.uniform(0.6, 1.2, count)
    noise = rng.normal(0.0, 0.5, (count, CANDIDATES))
    scores = _logistic(strength - seen[:, None] + 0.8 * special[topic] + noise)
    return Population(difficulty, covered(scores), rng.random(chance.shape) < chance)


def covered(scores: FloatArray) -> FloatArray:
    """Nonconformity: the chance that a candidate rated higher is right, were they independent."""
    order = np.argsort(-scores, axis=1, kind="stable")
    failing = np.cumprod(1.0 - np.take_along_axis(scores, order, axis=1), axis=1)
    before = np.concatenate([np.zeros((len(scores), 1)), 1.0 - failing[:, :-1]], axis=1)
    nonconformity = np.empty_like(scores)
    np.put_along_axis(nonconformity, order, before, axis=1)
    return nonconformity


def _logistic(x: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-x))


def errors(kind: str, world: Population) -> Errors:
    """The errors of a kind of judge: a share in its name is its mean share of wrong verdicts."""
    shape = world.labels.shape
    name, _, share = kind.partition(" ")
    e = float(share)
    right = float(world.labels.mean())
    none, half = np.zeros(shape), np.full(shape, e)
    match name:
        case "symmetric":
            return half, half
        case "lenient":  # it never takes a right answer for wrong
            return np.full(shape, e / (1.0 - right)), none
        case "strict":
            return none, np.full(shape, e / right)
        case "hard":  # wrong on hard queries
            often = _logistic(2.0 * world.difficulty)
            wrong = np.repeat((e * often / often.mean())[:, None], shape[1], axis=1)
            return np.minimum(wrong, 0.9), np.minimum(wrong, 0.9)
        case "partial":  # it favours one candidate, and is right of all others
            favoured = np.zeros(shape)
            favoured[:, 0] = min(1.0, e * shape[1] / (1.0 - float(world.labels[:, 0].mean())))
            return favoured, none
        case _:
            raise ValueError(kind)


def verdicts(labels: BoolArray, wrong: Errors, rng: np.random.Generator) -> BoolArray:
    """The judge's verdicts on answers with these labels."""
    on_wrong, on_right = wrong
    return labels ^ (rng.random(labels.shape) < np.where(labels, on_right, on_wrong))


@dataclass(frozen=True)
class Draw:
    """Rows of a population, the first m of them labelled by people."""

    people: Losses
    judge: Losses
    m: int
    nonconformity: FloatArray

    @classmethod
    def of(
        cls, world: Population, wrong: Errors, rows: int, m: int, rng: np.random.Generator
    ) -> Draw:
        """Draw rows with replacement, and ask the judge about all of them."""
        places = rng.integers(0, len(world.labels), rows)
        labels, scores = world.labels[places], world.nonconformity[places]
        judged = verdicts(labels, (wrong[0][places], wrong[1][places]), rng)
        return cls(losses(scores, labels), losses(scores, judged), m, scores)

    def thresholds(self, alphas: Sequence[float], delta: float) -> FloatArray:
        """The corrected thresholds."""
        return self.corrected(alphas, delta).thresholds

    def corrected(self, alphas: Sequence[float], delta: float) -> CorrectedThresholds:
        """The corrected thresholds, and the judge's weights."""
        return corrected_thresholds(
            self.people,
            self.judge,
            self.parts(),
            np.array(alphas),
            delta,
            nonconformity=self.nonconformity,
        )

    def parts(self) -> Parts:
        """The parts of the rows, of which every row is judged."""
        rows = len(self.judge.critical)
        prints = tuple(place.to_bytes(4) for place in range(rows))
        return Parts.of(prints, np.arange(rows) < self.m, np.ones(rows, bool))
