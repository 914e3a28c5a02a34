"""Vectorised evaluation of all voting rules on recorded answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from racer_core.aggregation.batch import RowAnswers, winners
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import OPTIONS, SURE, Method, Weight
from racer_core.offline.protocol import Rows
from racer_core.types import BoolArray, FloatArray

TEMPERATURES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Votes:
    """Votes over rows with recorded answers.

    Attributes:
        pool: The candidates, in the order of the columns.
        labels: Correctness, shape (n, K).
        scores: Router scores, shape (n, K).
        answers: Which candidates gave the same answer.
        stacked: The fitted vote; None if there were too few training rows.
        ratings: Weights of ``weighted`` instead of the router scores: an evaluator's ratings in
            [0, 1], NaN for missing ones, shape (n, K).
    """

    pool: tuple[str, ...]
    labels: BoolArray
    scores: FloatArray
    answers: RowAnswers
    stacked: StackedVote | None
    ratings: FloatArray | None = None

    @property
    def rules(self) -> tuple[Method, ...]:
        """All methods; ``stacked`` only if it was fitted."""
        return tuple(rule for rule in Method if rule != Method.STACKED or self.stacked is not None)

    def at(self, rows: Rows) -> Votes:
        """Some of the rows."""
        return replace(
            self,
            labels=self.labels[rows],
            scores=self.scores[rows],
            answers=self.answers.at(rows),
            ratings=None if self.ratings is None else self.ratings[rows],
        )

    def accuracy(self, rule: Method, selected: BoolArray, temperature: float) -> float:
        """Share of rows whose voted answer is right; abstentions count as not right."""
        return float(self.right(rule, selected, temperature).mean())

    def right(self, rule: Method, selected: BoolArray, temperature: float) -> BoolArray:
        """Whether the voted answer of each row is right, shape (n,).

        Right means that the winner was labelled right, so no grader is needed here.
        """
        by_name = sorted(range(len(self.pool)), key=self.pool.__getitem__)
        same = self.answers.same(selected, self.scores, by_name)
        counts = self._counts(rule, selected, temperature, same)
        chosen = winners(same, selected, counts, self.scores, by_name)
        rows = np.arange(len(chosen))
        readable = same[rows, chosen, chosen] > 0.0
        return self.labels[rows, chosen] & selected.any(axis=1) & readable

    def best_rule(self, selected: BoolArray, temperature: float) -> Method:
        """The rule with the best accuracy on these rows; the first among equals."""
        return max(self.rules, key=lambda rule: self.accuracy(rule, selected, temperature))

    def best_temperature(self, selected: BoolArray) -> float:
        """T of ``weighted`` with the best accuracy on these rows; the largest among equals."""
        return max(
            TEMPERATURES,
            key=lambda each: (self.accuracy(Method.WEIGHTED, selected, each), each),
        )

    def _counts(
        self, rule: Method, selected: BoolArray, temperature: float, same: FloatArray
    ) -> FloatArray:
        match rule:
            case Method.MAJORITY:
                return np.ones_like(self.scores)
            case Method.WEIGHTED:
                # Over readable answers only, as in serving: otherwise rounding may lose the counts.
                readable = selected & (np.einsum("naa->na", same) > 0.0)
                called = np.where(readable, self._weights(readable), -np.inf)
                top = called.max(axis=1, keepdims=True, initial=0.0)
                return np.exp((called - top) / temperature)
            case Method.LOG_ODDS:
                possible = np.maximum(_distinct(same, selected), OPTIONS)[:, None]
                sure = np.clip(self.scores, 1.0 - SURE, SURE)
                return np.log(sure * (possible - 1.0) / (1.0 - sure))
            case Method.STACKED:
                assert self.stacked is not None
                return self.stacked.counts(self.scores)

    def _weights(self, readable: BoolArray) -> FloatArray:
        """The w of ``weighted``, shape (n, K); a missing rating is the mean of its set's others.

        The mean is over the set, not over the row: in serving only the set is rated.
        """
        if self.ratings is None:
            return self.scores
        missing = np.isnan(self.ratings)
        rated = readable & ~missing
        total = np.where(rated, self.ratings, 0.0).sum(axis=1, keepdims=True)
        mean = total / np.maximum(rated.sum(axis=1, keepdims=True), 1)
        return np.where(missing, mean, self.ratings)


def _distinct(same: FloatArray, selected: BoolArray) -> FloatArray:
    """The number of distinct answers of each set, shape (n,)."""
    size = (same * selected[:, None, :]).sum(axis=2)
    return np.where(selected & (size > 0.0), 1.0 / np.maximum(size, 1.0), 0.0).sum(axis=1)


class Rule(StrEnum):
    """Every vote that is compared, those that need no call after the answers first."""

    MAJORITY = "majority"
    WEIGHTED = "weighted"  # by the router score
    LOG_ODDS = "log_odds"
    STACKED = "stacked"
    VERBAL = "verbal"  # weighted by an evaluator's verdict
    P_TRUE = "p_true"  # weighted by an evaluator's P(True)

    @property
    def method(self) -> Method:
        """How it counts."""
        return Method.WEIGHTED if self in EVALUATED else Method(self.value)


EVALUATED = {Rule.VERBAL: Weight.VERBAL, Rule.P_TRUE: Weight.P_TRUE}
Temperatures = Mapping[Rule, float]  # T of the weighted rules


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteComparison:
    """All rules over the same rows.

    Attributes:
        votes: Those of router scores.
        ratings: Evaluators' confidences, shape (n, K) with NaN for missing ones; a rule without
            them is not compared.
    """

    votes: Votes
    ratings: Mapping[Rule, FloatArray] = field(default_factory=dict[Rule, FloatArray])

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that can be compared on these rows."""
        own = {rule.value for rule in self.votes.rules}
        return tuple(rule for rule in Rule if rule in self.ratings or rule.value in own)

    def accuracy(self, rule: Rule, selected: BoolArray, temperatures: Temperatures) -> float:
        """Share of rows whose voted answer is right; abstentions count as not right."""
        return float(self.right(rule, selected, temperatures).mean())

    def right(self, rule: Rule, selected: BoolArray, temperatures: Temperatures) -> BoolArray:
        """Whether the voted answer of each row is right, shape (n,)."""
        return self._of(rule).right(rule.method, selected, temperatures.get(rule, 1.0))

    def best_rule(self, selected: BoolArray, temperatures: Temperatures) -> Rule:
        """The rule with the best accuracy on these rows; the first among equals."""
        return max(self.rules, key=lambda rule: self.accuracy(rule, selected, temperatures))

    def best_temperatures(self, selected: BoolArray) -> dict[Rule, float]:
        """T of each weighted rule with the best accuracy on these rows."""
        return {
            rule: self._of(rule).best_temperature(selected)
            for rule in self.rules
            if rule.method is Method.WEIGHTED
        }

    def _of(self, rule: Rule) -> Votes:
        if rule not in self.ratings:
            return self.votes
        return replace(self.votes, ratings=self.ratings[rule])
