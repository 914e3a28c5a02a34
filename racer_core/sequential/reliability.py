"""Reliabilities of candidates from agreement alone: Dawid and Skene's model with one coin each.

One of C possible answers to a request is right, each with the same prior probability. Candidate k
gives it with probability p_k and each wrong one with (1 - p_k)/(C - 1), independently of the others
given the right answer. The p_k that make the recorded answers most probable are found by
expectation maximisation, without labels; so are the rates of a checker's verdicts, if there is
one. They rank candidates and weigh votes. They are no
accuracies: answers that are wrong together count as right (.48 to .61 on MMLU-Pro, where the truth
is .31 to .44).

References:
    Dawid & Skene 1979.
"""

from __future__ import annotations

import numpy as np

from racer_core.aggregation.batch import ClassArray
from racer_core.aggregation.leaders import UNREADABLE
from racer_core.aggregation.vote import SURE
from racer_core.errors import CalibrationError
from racer_core.sequential.answer_classes import same_answers
from racer_core.sequential.verdicts import VERDICTS, VerdictArray, VerdictRates
from racer_core.types import BoolArray, FloatArray

_STEPS = 200
_DONE = 1e-7
# One right and one wrong answer more than recorded, so that few rows give no certainty.
_PRIOR = 1.0


def one_coin_reliabilities(
    classes: ClassArray, options: int, verdicts: VerdictArray | None = None
) -> tuple[FloatArray, VerdictRates | None]:
    """p_k of each candidate, shape (K,), in [.01, .99], and the checker's rates; deterministic.

    Args:
        classes: Answers of all candidates, shape (n, K); unreadable ones say nothing.
        options: C, the number of possible answers, at least K.
        verdicts: The checker's, shape (n, K); None: there is none.

    Raises:
        CalibrationError: No rows, or fewer options than candidates.
    """
    if not len(classes):
        raise CalibrationError("no rows to estimate reliabilities from")
    if options < max(classes.shape[1], 2):
        raise CalibrationError(f"options must be at least {max(classes.shape[1], 2)}, the pool's")
    same = same_answers(classes).astype(np.float64)
    readable = classes != UNREADABLE
    size = same.sum(axis=2)  # candidates with the same answer
    share = np.where(readable, 1.0 / np.maximum(size, 1.0), 0.0)
    unused = options - share.sum(axis=1)  # answers that no candidate gave
    chances = size / np.maximum(readable.sum(axis=1, keepdims=True), 1)  # as in a majority vote
    reliabilities, checker = _rates(chances, readable), None
    for _ in range(_STEPS):
        if verdicts is None:
            votes = same @ log_odds(reliabilities, options)
        else:
            checker = VerdictRates.of(verdicts, chances, readable)
            of_answers = checked(reliabilities, checker)[np.arange(len(share[0])), verdicts]
            votes = (same @ log_odds(of_answers, options)[:, :, None])[:, :, 0]
        top = np.maximum(votes.max(axis=1, keepdims=True), 0.0)  # votes of many overflow
        strength = np.exp(votes - top)
        total = (strength * share).sum(axis=1) + unused * np.exp(-top[:, 0])
        chances = strength / total[:, None]
        before, reliabilities = reliabilities, _rates(chances, readable)
        if np.abs(reliabilities - before).max() < _DONE:
            break
    return reliabilities, checker


def agreement_rates(
    classes: ClassArray, reference: int, verdicts: VerdictArray | None = None
) -> tuple[FloatArray, VerdictRates | None]:
    """How often each candidate gives the reference's answer, (K,), in [.01, .99].

    The checker's rates are those of answers that are the reference's, and of those that are not.

    Args:
        classes: Answers of all candidates, shape (n, K).
        reference: The column of the reference.
        verdicts: The checker's, shape (n, K); None: there is none.
    """
    same = same_answers(classes)[:, :, reference].astype(np.float64)
    reliabilities = _rates(same, np.ones_like(same, dtype=bool))
    if verdicts is None:
        return reliabilities, None
    others = classes != UNREADABLE
    others[:, reference] = False  # whatever its verdict, its answer is its own
    return reliabilities, VerdictRates.of(verdicts, same, others)


def label_rates(
    classes: ClassArray, labels: BoolArray, verdicts: VerdictArray | None = None
) -> tuple[FloatArray, VerdictRates | None]:
    """How often each candidate is right, (K,), in [.01, .99], and the checker's rates.

    Args:
        classes: Answers of all candidates, shape (n, K).
        labels: Whether each is right, shape (n, K).
        verdicts: The checker's, shape (n, K); None: there is none.
    """
    right = labels.astype(np.float64)
    reliabilities = _rates(right, np.ones_like(labels))
    if verdicts is None:
        return reliabilities, None
    return reliabilities, VerdictRates.of(verdicts, right, classes != UNREADABLE)


def checked(reliabilities: FloatArray, checker: VerdictRates | None) -> FloatArray:
    """P(right | verdict) of each candidate and verdict, the last one none: (K,) to (K, 7).

    Without a checker they are the reliabilities, whatever the verdict.
    """
    if checker is None:
        return np.repeat(reliabilities[:, None], VERDICTS + 1, axis=1)
    return checker.reliabilities(reliabilities)


def log_odds(reliabilities: FloatArray, options: int) -> FloatArray:
    """Log p (C - 1)/(1 - p): what one vote adds to the log posterior odds of its answer.

    As :func:`racer_core.aggregation.vote.log_odds`, for many candidates.
    """
    sure = np.clip(reliabilities, 1.0 - SURE, SURE)
    return np.log(sure * (options - 1) / (1.0 - sure))


def _rates(chances: FloatArray, counted: BoolArray) -> FloatArray:
    right = np.where(counted, chances, 0.0).sum(axis=0) + _PRIOR
    return np.clip(right / (counted.sum(axis=0) + 2.0 * _PRIOR), 1.0 - SURE, SURE)
