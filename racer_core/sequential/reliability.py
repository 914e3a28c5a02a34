"""Reliabilities of candidates from agreement alone: Dawid and Skene's model with one coin each.

One of C possible answers to a request is right, each with the same prior probability. Candidate k
gives it with probability p_k and each wrong one with (1 - p_k)/(C - 1), independently of the others
given the right answer. The p_k that make the recorded answers most probable are found by
expectation maximisation, without labels. They rank candidates and weigh votes. They are no
accuracies: answers that are wrong together count as right (.48 to .61 on MMLU-Pro, where the truth
is .31 to .44).

References:
    Dawid & Skene 1979.
"""

from __future__ import annotations

import numpy as np

from racer_core.aggregation.batch import ClassArray
from racer_core.aggregation.vote import SURE
from racer_core.errors import CalibrationError
from racer_core.sequential.answer_classes import UNREADABLE, same_answers
from racer_core.types import BoolArray, FloatArray

_STEPS = 200
_DONE = 1e-7
# One right and one wrong answer more than recorded, so that few rows give no certainty.
_PRIOR = 1.0


def one_coin_reliabilities(classes: ClassArray, options: int) -> FloatArray:
    """p_k of each candidate, shape (K,), in [.01, .99]; deterministic.

    Args:
        classes: Answers of all candidates, shape (n, K); unreadable ones say nothing.
        options: C, the number of possible answers, at least K.

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
    reliabilities = _rates(chances, readable)
    for _ in range(_STEPS):
        strength = np.exp(same @ np.log(vote_odds(reliabilities, options)))
        total = (strength * share).sum(axis=1) + unused
        before, reliabilities = reliabilities, _rates(strength / total[:, None], readable)
        if np.abs(reliabilities - before).max() < _DONE:
            break
    return reliabilities


def agreement_rates(classes: ClassArray, reference: int) -> FloatArray:
    """How often each candidate gives the reference's answer, (K,), in [.01, .99].

    Args:
        classes: Answers of all candidates, shape (n, K).
        reference: The column of the reference.
    """
    same = same_answers(classes)[:, :, reference].astype(np.float64)
    return _rates(same, np.ones_like(same, dtype=bool))


def vote_odds(reliabilities: FloatArray, options: int) -> FloatArray:
    """P (C - 1)/(1 - p): the factor of one vote in the posterior of its answer.

    The exponential of :func:`racer_core.aggregation.vote.log_odds`.
    """
    sure = np.clip(reliabilities, 1.0 - SURE, SURE)
    return sure * (options - 1) / (1.0 - sure)


def _rates(chances: FloatArray, counted: BoolArray) -> FloatArray:
    right = np.where(counted, chances, 0.0).sum(axis=0) + _PRIOR
    return np.clip(right / (counted.sum(axis=0) + 2.0 * _PRIOR), 1.0 - SURE, SURE)
