"""Sequential calls on the rows of a split, beside rivals: calls, rounds, price, risk, accuracy.

Policies see no label but for the one of the stacked vote. Labels measure accuracy, and the chain,
a rival, is fitted on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from racer_core.aggregation.leaders import UNREADABLE
from racer_core.aggregation.stacked import StackedVote
from racer_core.calibration.threshold import calibrate_threshold
from racer_core.offline.protocol import Rows
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.critical import (
    critical_scores,
    round_nonconformity,
    rounds_called,
    tie_noise,
)
from racer_core.sequential.fit import default_borders, fit_policy
from racer_core.sequential.policy import Columns, Outcomes, Policy
from racer_core.sequential.reliability import log_odds
from racer_core.sequential.stacked import StackedPolicy, fit_stacked_policy
from racer_core.types import BoolArray, FloatArray

SAME_ANSWER_AT = (0.02, 0.05, 0.1)  # levels, of those that are evaluated
_SALT = b"evaluate"
_CHAIN_STEPS = 201


class Calling(StrEnum):
    """How candidates are called; the reference is the vote of the whole pool."""

    ONE_BY_ONE = "one by one"
    TWO_ROUNDS = "2 rounds"
    THREE_ROUNDS = "3 rounds"
    ONE_SHOT = "one shot"  # a number of calls that ignores the answers
    SHUFFLED = "another row's answers"  # the control: doubts of another row
    EXACT = "until decided"  # the winner can no longer change
    CHAIN = "chain"  # the last answer alone is judged, by its router score
    STACKED = "one by one, with labels"  # the stacked vote is the reference; where it was fitted


ROUNDS = {Calling.ONE_BY_ONE: None, Calling.TWO_ROUNDS: 2, Calling.THREE_ROUNDS: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceKey:
    """A way of calling at a level, in one scope."""

    scope: str
    calling: Calling
    alpha: float


@dataclass(frozen=True, kw_only=True)
class SequenceTrial:
    """A policy, calibrated and tested on rows that did not fit it.

    Attributes:
        policy: The policy.
        answers: All rows.
        labels: Their correctness, shape (n, K).
        calibration: The rows that calibrate.
        test: The rows that are served.
        prices: Price of a call of each candidate, in the order of the pool.
        salt: Of the noise that breaks ties.
    """

    policy: Policy
    answers: AnswerClasses
    labels: BoolArray
    calibration: Rows
    test: Rows
    prices: tuple[float, ...]
    salt: bytes = _SALT

    def sequential(self, alpha: float) -> dict[str, float]:
        """What the policy does."""
        noise = tie_noise(self.salt, self.answers.fingerprints)
        rounds = self._rounds(round_nonconformity(self._outcomes.doubt, noise), alpha)
        return self._measured(rounds, rounds)

    def ignoring_answers(self, alpha: float, *, shuffled: bool) -> dict[str, float]:
        """One shot, which calls a calibrated number of candidates, or doubts of another row."""
        rng = np.random.default_rng(len(self.answers))
        doubt = self._outcomes.doubt[rng.permutation(len(self.answers))]
        if not shuffled:
            doubt = np.broadcast_to(-np.arange(doubt.shape[1], dtype=np.float64), doubt.shape)
        noise: FloatArray = 1e-6 * rng.random(len(doubt))
        rounds = self._rounds(round_nonconformity(doubt, noise), alpha)
        return self._measured(rounds, rounds if shuffled else np.ones_like(rounds))

    def stacked(
        self, policy: StackedPolicy, scores: FloatArray, alphas: Sequence[float]
    ) -> dict[float, dict[str, float]]:
        """What a policy with labels does at some levels, given the router scores (n, K)."""
        outcomes = policy.outcomes(self.answers, scores)
        s = round_nonconformity(outcomes.doubt, tie_noise(self.salt, self.answers.fingerprints))
        own, test = self.calibration, self.test
        critical = critical_scores(s[own], outcomes.differs[own])
        spent = np.cumsum(np.array(self.prices)[policy.order(scores[test])], axis=1)
        rows, found = np.arange(len(test)), dict[float, dict[str, float]]()
        for alpha in alphas:
            calls = rounds_called(s[test], calibrate_threshold(critical, alpha))
            at = test, calls - 1
            found[alpha] = {
                "calls": float(calls.mean()),
                "rounds": float(calls.mean()),
                "price": float(spent[rows, calls - 1].mean()) / sum(self.prices),
                "differs": float(outcomes.differs[at].mean()),
                "accuracy": float(self.labels[test, outcomes.winner[at]].mean()),
            }
        return found

    def until_decided(self) -> dict[str, float]:
        """One by one until the other votes cannot change the winner: exact, without alpha."""
        policy, rows = self.policy, self.answers.at(self.test)
        weights = log_odds(np.array(policy.reliabilities), policy.options)
        columns = [policy.pool.index(name) for name in policy.order]
        calls: Columns = np.full(len(rows), len(columns))
        for called in range(len(columns) - 1, 0, -1):
            inside = np.zeros(len(columns))
            inside[columns[:called]] = 1.0
            given = (rows.classes != UNREADABLE) & (inside > 0.0)
            votes: FloatArray = np.where(given, (rows.same * inside) @ weights, 0.0)
            winner = self._outcomes.winner[self.test, called - 1]
            lead = np.take_along_axis(votes, winner[:, None], 1)[:, 0]
            is_winner = np.take_along_axis(rows.same, winner[:, None, None], 1)[:, 0]
            rival = np.where(is_winner, 0.0, votes).max(axis=1)
            calls[lead - rival > float(np.abs(weights) @ (1.0 - inside))] = called
        return self._measured(calls, calls)

    def chain(self, scores: FloatArray, price: float) -> dict[str, float]:
        """The most accurate of :meth:`chains` on the test rows, for at most this mean price.

        Where every chain is dearer, the one that accepts every readable answer.
        """
        return _most_accurate(self.chains(scores), price)

    def chains(self, scores: FloatArray) -> list[dict[str, float]]:
        """Chains in the order of the policy that differ in their calls, by their least scores.

        A chain accepts the first readable answer of a candidate whose router score (n, K) is high
        enough.
        """
        columns = np.array([self.policy.pool.index(name) for name in self.policy.order])
        classes = self.answers.classes[self.test][:, columns]
        score = np.where(classes != UNREADABLE, scores[self.test][:, columns], -1.0)
        score[:, -1] = np.inf
        reference = self._outcomes.winner[self.test, -1]
        found, before = list[dict[str, float]](), None
        for least in np.linspace(0.0, 1.0, _CHAIN_STEPS):
            calls: Columns = (score >= least).argmax(axis=1) + 1
            if before is not None and np.array_equal(calls, before):
                continue
            before = calls
            winner = columns[calls - 1]
            same = self.answers.same[self.test, winner, reference] | (winner == reference)
            found.append(self._shown(calls, calls, winner, ~same))
        return found

    @cached_property
    def _outcomes(self) -> Outcomes:
        return self.policy.outcomes(self.answers)

    def _rounds(self, s: FloatArray, alpha: float) -> Columns:
        """Rounds of the test rows at the threshold of the calibration rows, shape (n,)."""
        own = self.calibration
        critical = critical_scores(s[own], self._outcomes.differs[own])
        return rounds_called(s[self.test], calibrate_threshold(critical, alpha))

    def _measured(self, stops: Columns, rounds: Columns) -> dict[str, float]:
        """The measures of test rows that stop after these rounds of the policy."""
        at = self.test, stops - 1
        calls = np.array(self.policy.borders)[stops - 1]
        return self._shown(calls, rounds, self._outcomes.winner[at], self._outcomes.differs[at])

    def _shown(
        self, calls: Columns, rounds: Columns, winner: Columns, differs: BoolArray
    ) -> dict[str, float]:
        spent = np.cumsum([self.prices[self.policy.pool.index(x)] for x in self.policy.order])
        return {
            "calls": float(calls.mean()),
            "rounds": float(rounds.mean()),
            "price": float(spent[calls - 1].mean()) / sum(self.prices),
            "differs": float(differs.mean()),
            "accuracy": float(self.labels[self.test, winner].mean()),
        }


def compared(
    answers: AnswerClasses,
    labels: BoolArray,
    parts: tuple[Rows, Rows, Rows],
    alphas: Sequence[float],
    scores: FloatArray,
    prices: tuple[float, ...] | None = None,
    vote: StackedVote | None = None,
) -> Iterator[tuple[Calling, float, dict[str, float]]]:
    """Every way of calling at every level, with its measures.

    Args:
        answers: All rows.
        labels: Their correctness, shape (n, K).
        parts: The rows that fit, calibrate and test.
        alphas: Levels.
        scores: Router scores of all rows, for the chain and the stacked vote, shape (n, K).
        prices: Price of a call of each candidate; None: all are equal.
        vote: The stacked vote of rows that trained the router; None: none was fitted.
    """
    fit, calibration, test = parts
    single = SequenceTrial(
        policy=fit_policy(answers.at(fit), max_rounds=None),
        answers=answers,
        labels=labels,
        calibration=calibration,
        test=test,
        prices=prices or (1.0,) * len(answers.pool),
    )
    trials = {
        calling: replace(single, policy=replace(single.policy, borders=borders))
        for calling, borders in (
            (calling, default_borders(len(answers.pool), rounds))
            for calling, rounds in ROUNDS.items()
        )
    }
    decided, chains = single.until_decided(), single.chains(scores)
    labelled = dict[float, dict[str, float]]()
    if vote is not None:
        policy = fit_stacked_policy(vote, answers.at(fit), scores[fit])
        labelled = single.stacked(policy, scores, alphas)
    for alpha in alphas:
        found = {calling: trial.sequential(alpha) for calling, trial in trials.items()}
        found[Calling.ONE_SHOT] = single.ignoring_answers(alpha, shuffled=False)
        found[Calling.SHUFFLED] = single.ignoring_answers(alpha, shuffled=True)
        found[Calling.EXACT] = decided
        found[Calling.CHAIN] = _most_accurate(chains, found[Calling.ONE_BY_ONE]["price"])
        if alpha in labelled:
            found[Calling.STACKED] = labelled[alpha]
        for calling, measured in found.items():
            yield calling, alpha, measured


def _most_accurate(chains: Sequence[dict[str, float]], price: float) -> dict[str, float]:
    """The best on the test rows themselves, which favours the chain."""
    affordable = [each for each in chains if each["price"] <= price]
    return max(affordable or chains[:1], key=lambda each: each["accuracy"])
