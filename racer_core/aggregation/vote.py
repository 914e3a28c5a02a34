"""Votes over the answers of the selected candidates. Paper, Sec. 3.3.

Both rules return one candidate's own text: the highest router score in the winning class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from racer_core.aggregation.answers import Equality, normalise
from racer_core.errors import InputError
from racer_core.types import Aggregate, CandidateAnswer


class Method(StrEnum):
    """How votes are counted."""

    MAJORITY = "majority"
    WEIGHTED = "weighted"


def aggregate(
    answers: Sequence[CandidateAnswer],
    *,
    method: Method = Method.MAJORITY,
    equality: Equality = Equality.EXACT,
    temperature: float = 1.0,
) -> Aggregate:
    """Merge the answers that arrived.

    ``majority`` counts one vote each; ``weighted`` counts softmax(router score / temperature).
    The weights normalise over ``selected``; the paper's sum also contains the null model, which
    has no answer. Ties go to the higher mean router score, then to the higher best score, then to
    the class whose best candidate comes first. Without any readable answer, the answer of the
    candidate with the highest router score is returned, without votes.

    Raises:
        InputError: No answers at all.
    """
    if not answers:
        raise InputError("nothing to aggregate: no candidate answered")
    weights = (
        [1.0] * len(answers)
        if method is Method.MAJORITY
        else softmax([answer.score for answer in answers], temperature)
    )
    classes: dict[str, list[int]] = {}
    for index, answer in enumerate(answers):
        form = normalise(equality, answer.text)
        if form is not None:
            classes.setdefault(form, []).append(index)
    votes = {form: math.fsum(weights[i] for i in members) for form, members in classes.items()}

    def strength(members: list[int]) -> tuple[float, float, float, int]:
        scores = [answers[i].score for i in members]
        total = math.fsum(weights[i] for i in members)
        best = max(scores)
        return total, math.fsum(scores) / len(scores), best, -members[scores.index(best)]

    pool = max(classes.values(), key=strength) if classes else list(range(len(answers)))
    winner = answers[max(pool, key=lambda i: (answers[i].score, -i))]
    return Aggregate(winner=winner.candidate, text=winner.text, votes=votes)


def softmax(scores: Sequence[float], temperature: float) -> list[float]:
    """exp(w/T) normalised; shifted by the largest so that a small T cannot overflow."""
    if not temperature > 0.0:
        raise InputError("temperature must be above 0", param="temperature")
    top = max(scores)
    powers = [math.exp((score - top) / temperature) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]
