"""Votes over the answers of the selected candidates. Paper, Sec. 3.3.

Every rule returns one candidate's own text: the highest router score in the winning class. An
evaluator's weight arrives with the answer (``CandidateAnswer.weight``); this module calls no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

from racer_core.aggregation.stacked import StackedVote
from racer_core.errors import InputError
from racer_core.types import Aggregate, CandidateAnswer, enum_member

# Larger scores carry no information: with the 40 neighbours of a KNN, scores have steps of 0.025.
SURE: Final = 0.99
_DECIMALS: Final = 12
# Default number of possible answers: the letters A to J. Open questions have more, which changes
# little. Counting the given answers instead would make agreement count for less.
OPTIONS: Final = 10


class Method(StrEnum):
    """How votes are counted."""

    MAJORITY = "majority"  # one each
    WEIGHTED = "weighted"  # softmax of a weight
    LOG_ODDS = "log_odds"  # log-odds of the router score
    STACKED = "stacked"  # weights fitted on training rows


class Weight(StrEnum):
    """The weight of a vote: the router score before the call, or an evaluator's rating after it."""

    ROUTER = "router"
    VERBAL = "verbal"
    P_TRUE = "p_true"


def aggregate(
    answers: Sequence[CandidateAnswer],
    *,
    method: Method = Method.MAJORITY,
    weight: Weight = Weight.ROUTER,
    temperature: float = 1.0,
    options: int = OPTIONS,
    stacked: StackedVote | None = None,
) -> Aggregate:
    """Merge the answers that arrived.

    ``majority`` counts one vote each; ``weighted`` counts softmax(w / temperature), ``log_odds``
    counts :func:`log_odds`. Weights normalise over answers that can be read; the paper's sum also
    contains the null model, which has none. Ties go to the higher mean router score, then to the
    higher best score, then to the first name. Without any readable answer, the answer of the
    candidate with the highest router score is returned, without votes. Answers agree where their
    forms are equal; the caller computes the forms (:class:`CandidateAnswer.form`).

    Args:
        answers: At most one of each candidate, in any order.
        method: How votes are counted.
        weight: The w of ``weighted``: the router score, or the evaluator's rating.
        temperature: T of ``weighted``, above 0; infinity is the majority.
        stacked: The fitted weights of ``stacked``.
        options: Number of possible answers, for ``log_odds``; at least the number of given ones.

    Raises:
        InputError: No answers at all, a temperature that is not above 0, fewer than 2 options,
            or a stacked vote without its weights.
    """
    if not answers:
        raise InputError("nothing to aggregate: no candidate answered")
    classes: dict[str, list[CandidateAnswer]] = {}
    for answer in answers:
        if answer.form is not None:
            classes.setdefault(answer.form, []).append(answer)
    readable = [each for group in classes.values() for each in group]
    counts = counted(
        readable,
        method=method,
        weight=weight,
        temperature=temperature,
        possible=max(options, len(classes)),
        stacked=stacked,
    )
    count = iter(counts)
    # Sums are exact, so that the order of arrival cannot change them.
    votes = {form: math.fsum(islice(count, len(group))) for form, group in classes.items()}
    return _elect(answers, classes, votes)


def counted(
    readable: Sequence[CandidateAnswer],
    *,
    method: Method,
    weight: Weight,
    temperature: float,
    possible: int,
    stacked: StackedVote | None,
) -> list[float]:
    """The count of each of these votes.

    Args:
        readable: The answers that can be read; weights normalise over them.
        method: How votes are counted.
        weight: Of ``weighted``.
        temperature: Of ``weighted``.
        possible: C of ``log_odds``, at least 2.
        stacked: Of ``stacked``.

    Raises:
        InputError: As :func:`aggregate`.
    """
    match enum_member(Method, method, "method"):
        case Method.MAJORITY:
            return [1.0] * len(readable)
        case Method.WEIGHTED:
            return softmax(_weights(readable, weight), temperature)
        case Method.LOG_ODDS:
            return [log_odds(each.score, possible) for each in readable]
        case Method.STACKED:
            if stacked is None:
                raise InputError("the stacked vote needs a model that was fitted on answers")
            return [stacked.count(each.candidate, each.score) for each in readable]


def _elect(
    answers: Sequence[CandidateAnswer],
    classes: Mapping[str, Sequence[CandidateAnswer]],
    votes: Mapping[str, float],
) -> Aggregate:
    """The strongest class and its best text, whatever the votes were counted in."""

    def strength(form: str) -> tuple[float, float, float]:
        scores = [each.score for each in classes[form]]
        # A difference by rounding alone is a tie, for example one vote of 0.8 and two of 0.4.
        mean = math.fsum(scores) / len(scores)
        return round(votes[form], _DECIMALS), round(mean, _DECIMALS), max(scores)

    if len(classes) > 1:
        ranked = sorted(classes, key=lambda form: _first(classes[form]).candidate)
        best = classes[max(ranked, key=strength)]
    else:
        best = next(iter(classes.values()), answers)
    winner = _first(best)
    return Aggregate(winner=winner.candidate, text=winner.text, votes=votes)


def _first(answers: Sequence[CandidateAnswer]) -> CandidateAnswer:
    """The answer with the highest router score; ties go to the first name."""
    return min(answers, key=lambda answer: (-answer.score, answer.candidate))


def _weights(answers: Sequence[CandidateAnswer], weight: Weight) -> list[float]:
    """The w of each answer; a missing rating is replaced by the mean of the others.

    A failed evaluation says nothing about the answer, so its vote counts as an average one; 0 would
    mean "surely wrong". Without any rating all weights are equal, which is the majority.
    """
    if enum_member(Weight, weight, "weight") == Weight.ROUTER:
        return [answer.score for answer in answers]
    ratings = [answer.weight for answer in answers if answer.weight is not None]
    mean = math.fsum(ratings) / len(ratings) if ratings else 0.0
    return [mean if answer.weight is None else answer.weight for answer in answers]


def softmax(weights: Sequence[float], temperature: float) -> list[float]:
    """exp(w/T) normalised; shifted by the largest so that a small T cannot overflow."""
    if not temperature > 0.0:
        raise InputError("temperature must be above 0", param="temperature")
    top = max(weights, default=0.0)
    powers = [math.exp((weight - top) / temperature) for weight in weights]
    total = math.fsum(powers)
    return [power / total for power in powers]


def log_odds(score: float, possible: int) -> float:
    """The log odds of one vote: log(f (C - 1) / (1 - f)), with f clipped to [.01, .99].

    Naive Bayes. One of C answers is right, each with the same prior probability. A candidate gives
    the right one with probability f and each wrong one with (1 - f) / (C - 1), independently of
    the others given the truth. The posterior of an answer is then proportional to the product of
    f (C - 1) / (1 - f) over the candidates that gave it. A vote counts against its own answer only
    below f = 1/C, where guessing is better; an answer that no candidate gave counts 0.

    Args:
        score: The router score f, a chance in [0, 1].
        possible: C, at least 2.

    Raises:
        InputError: Fewer than 2 possible answers: none would be wrong.
    """
    if possible < 2:
        raise InputError("options must be 2 or more", param="options")
    chance = min(max(score, 1.0 - SURE), SURE)
    return math.log(chance * (possible - 1) / (1.0 - chance))
