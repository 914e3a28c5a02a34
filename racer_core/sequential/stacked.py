"""Calls one by one with labels: the stacked vote is the reference, router scores give the order.

What a vote counts depends on the request (:mod:`racer_core.aggregation.stacked`). Candidates are
called by descending counts. Counts are log odds, so they give q as in the one-coin model: 1 - the
posterior of the leading answer, and 0 where no vote that is left can change it. A logistic score
on how the votes stand replaces it where held-out fitting rows say that this saves calls. With equal
counts the reference is the majority vote; then reliabilities may stand in the place of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from racer_core.aggregation.batch import ClassArray, winners
from racer_core.aggregation.leaders import UNREADABLE
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import OPTIONS
from racer_core.calibration.threshold import calibrate_threshold
from racer_core.errors import InputError
from racer_core.sequential.answer_classes import AnswerClasses, same_answers
from racer_core.sequential.critical import critical_scores, round_nonconformity, rounds_called
from racer_core.sequential.policy import Columns, Outcomes
from racer_core.types import BoolArray, FloatArray

_TIE = 1e-9  # leads that are smaller may be rounding
_FOLDS = 5
MIN_ROWS = 50  # below that no logistic score is fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Votes:
    """How the votes of rows stand after some calls.

    Attributes:
        winner: The column that wins, shape (n,).
        doubt: 1 - posterior of its answer, or 0 where it is decided, shape (n,).
        features: For a logistic score, shape (n, F).
    """

    winner: Columns
    doubt: FloatArray
    features: FloatArray


@dataclass(frozen=True, kw_only=True)
class StackedPolicy:
    """The calls of requests with router scores.

    Attributes:
        vote: What each candidate's vote counts, given its router score.
        options: C, the number of possible answers.
        score: The logistic stopping score; None: q is 1 - the posterior.
    """

    vote: StackedVote
    options: int = OPTIONS
    score: LogisticScore | None = None

    def order(self, scores: FloatArray) -> Columns:
        """The columns in the order of calls, equal counts by score; scores (n, K) to (n, K)."""
        return np.lexsort((-scores, -self.vote.counts(scores)), axis=1)

    def outcomes(self, answers: AnswerClasses, scores: FloatArray) -> Outcomes:
        """What it returns after each call, for rows with the answers of all candidates.

        Args:
            answers: The rows.
            scores: Router scores of a router that was not trained on these rows, shape (n, K).

        Raises:
            InputError: Answers of another pool.
        """
        standings = self.standings(answers, scores)
        winner = np.stack([each.winner for each in standings], axis=1)
        doubt = np.stack([each.doubt for each in standings], axis=1)
        if self.score is not None:
            chance = self.score.chance(np.stack([each.features for each in standings], axis=1))
            doubt = np.where(doubt == 0.0, 0.0, chance)
        return Outcomes(winner, doubt, _differs(answers, winner))

    def standings(self, answers: AnswerClasses, scores: FloatArray) -> list[Votes]:
        """How the votes stand after each call; arguments as of :meth:`outcomes`."""
        if answers.pool != self.vote.pool:
            raise InputError("the answers are those of another pool than the stacked vote's")
        counts = self.vote.counts(scores)
        order = self.order(scores)
        classes, place = answers.along_columns(order), np.argsort(order, axis=1)
        by_name = sorted(range(len(answers.pool)), key=answers.pool.__getitem__)
        return [
            votes_after(classes, place < called, counts, scores, by_name, self.options)
            for called in range(1, len(answers.pool) + 1)
        ]


def fit_stacked_policy(
    vote: StackedVote,
    answers: AnswerClasses,
    scores: FloatArray,
    *,
    alpha: float = 0.05,
    options: int = OPTIONS,
) -> StackedPolicy:
    """The policy of a stacked vote, with a logistic score if it saves calls on held-out rows.

    Each fifth of the rows is scored by a model of the others, and has the threshold of its own
    rows. The score is taken if all five take fewer calls at alpha by it: without a difference that
    has a chance of 1/32.

    Args:
        vote: Fitted on rows that will calibrate nothing.
        answers: Rows that will calibrate nothing.
        scores: Their router scores, of a router that was not trained on them, shape (n, K).
        alpha: The share of differences at which calls are compared.
        options: C, the number of possible answers, never below the pool's size.
    """
    policy = StackedPolicy(vote=vote, options=max(options, len(answers.pool)))
    plain = policy.outcomes(answers, scores)
    standings = policy.standings(answers, scores)[:-1]
    features = np.stack([each.features for each in standings], axis=1)
    is_open = plain.doubt[:, :-1] > 0.0  # decided votes teach nothing
    differs = plain.differs[:, :-1]
    if len(answers) < MIN_ROWS:
        return policy

    def fitted(rows: BoolArray) -> LogisticScore:
        part = is_open & rows[:, None]
        return LogisticScore.fit(features[part], differs[part])

    fold = np.arange(len(answers)) % _FOLDS
    for each in range(_FOLDS):
        own = fold == each
        doubt = plain.doubt[own]
        chance = fitted(~own).chance(features[own])
        doubt[:, :-1] = np.where(is_open[own], chance, 0.0)
        before, after = (_calls(q, plain.differs[own], alpha) for q in (plain.doubt[own], doubt))
        if after >= before:
            return policy
    score = fitted(np.ones(len(answers), dtype=bool))
    return StackedPolicy(vote=vote, options=policy.options, score=score)


def votes_after(
    classes: ClassArray,
    called: BoolArray,
    counts: FloatArray,
    scores: FloatArray,
    by_name: Sequence[int],
    options: int,
) -> Votes:
    """How votes stand when some candidates have been called.

    Args:
        classes: Answers, shape (n, K); those of candidates that are not called have no effect.
        called: Shape (n, K).
        counts: What each vote counts, shape (n, K).
        scores: Router scores, for ties, shape (n, K).
        by_name: The columns in the order of names, for the last ties.
        options: C, the number of possible answers.
    """
    given = np.where(called, classes, UNREADABLE).astype(classes.dtype)
    readable, same = given != UNREADABLE, same_answers(given).astype(np.float64)
    winner = winners(same, called, counts, scores, by_name)
    votes: FloatArray = (same @ np.where(readable, counts, 0.0)[:, :, None])[:, :, 0]
    rows = np.arange(len(given))
    leads, lead = same[rows, winner] > 0.0, votes[rows, winner]
    margin = lead - np.where(readable & ~leads, votes, 0.0).max(axis=1, initial=0.0)
    # Each distinct answer once, and those that no candidate gave.
    share = np.where(readable, 1.0 / np.maximum(same.sum(axis=2), 1.0), 0.0)
    unused = np.maximum(options - share.sum(axis=1), 0.0)
    total = (np.exp(votes - lead[:, None]) * share).sum(axis=1) + unused * np.exp(-lead)
    doubt: FloatArray = np.clip(1.0 - 1.0 / np.maximum(total, 1.0), 1e-12, 1.0 - 1e-12)
    left = np.where(called, 0.0, np.abs(counts))
    reach, spread = left.sum(axis=1), np.sqrt((left**2).sum(axis=1))
    numbers = (
        np.log(doubt) - np.log1p(-doubt),
        margin,
        margin / np.maximum(spread, 0.1),
        margin / np.maximum(reach, 0.1),
        scores.max(axis=1),
        np.where(called, 0.0, scores).max(axis=1),
    )
    doubt = np.where(margin > reach + _TIE, 0.0, doubt)
    return Votes(winner=winner, doubt=doubt, features=np.stack(numbers, axis=1))


def _differs(answers: AnswerClasses, winner: Columns) -> BoolArray:
    reference, rows = winner[:, -1:], np.arange(len(answers))[:, None]
    return ~(answers.same[rows, winner, reference] | (winner == reference))


def _calls(doubt: FloatArray, differs: BoolArray, alpha: float) -> float:
    """Mean number of calls at the threshold of the rows themselves."""
    s = round_nonconformity(doubt)
    threshold = calibrate_threshold(critical_scores(s, differs), alpha)
    return float(rounds_called(s, threshold).mean())


# A logistic stopping score: the chance of a difference from what the votes look like so far.
#
# It knows no candidate, only how votes stand (:class:`racer_core.sequential.stacked.Votes`), so
# any smaller pool has its score without fitting anew.

_RIDGE = 5.0
_STEPS = 30
_DONE = 1e-8
_FAR = 30.0  # log odds beyond which a chance is certain


@dataclass(frozen=True, slots=True, kw_only=True)
class LogisticScore:
    """Chance = sigmoid(intercept + weights (features - mean) / scale).

    Attributes:
        mean: Of each feature on the rows that fitted the score, shape (F,).
        scale: Their standard deviation, shape (F,).
        weights: Of the intercept and the features, shape (1 + F,).
    """

    mean: FloatArray
    scale: FloatArray
    weights: FloatArray

    @classmethod
    def fit(cls, features: FloatArray, differs: BoolArray) -> Self:
        """Maximise the likelihood with a ridge, by Newton's method; deterministic.

        Args:
            features: Of prefixes of fitting rows, shape (m, F).
            differs: Whether the answer after each prefix differs from the reference's, (m,).
        """
        mean: FloatArray = features.mean(axis=0)
        scale: FloatArray = features.std(axis=0) + 1e-9
        weights: FloatArray = np.zeros(len(mean) + 1)
        design = cls(mean=mean, scale=scale, weights=weights)._design(features)
        ridge: FloatArray = np.diag([1e-6, *[_RIDGE] * len(mean)])
        for _ in range(_STEPS):
            chance = _sigmoid(design @ weights)
            gradient = design.T @ (chance - differs) + ridge @ weights
            curvature = (design * (chance * (1.0 - chance))[:, None]).T @ design + ridge
            step: FloatArray = np.linalg.solve(curvature, gradient).astype(np.float64)
            weights = weights - step
            if float(np.abs(step).max()) < _DONE:
                break
        return cls(mean=mean, scale=scale, weights=weights)

    def chance(self, features: FloatArray) -> FloatArray:
        """The estimated chance of a difference, (..., F) to (...)."""
        return _sigmoid(self._design(features) @ self.weights)

    def _design(self, features: FloatArray) -> FloatArray:
        scaled = (features - self.mean) / self.scale
        return np.concatenate([np.ones((*scaled.shape[:-1], 1)), scaled], axis=-1)


def _sigmoid(odds: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-np.clip(odds, -_FAR, _FAR)))
