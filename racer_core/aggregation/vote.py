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
    The weights normalise over answers that can be read; the paper's sum also contains the null
    model, which has none. Ties go to the higher mean router score, then to the higher best score,
    then to the first name. Without any readable answer, the answer of the candidate with the
    highest router score is returned, without votes.

    Raises:
        InputError: No answers at all.
    """
    if not answers:
        raise InputError("nothing to aggregate: no candidate answered")
    classes: dict[str, list[CandidateAnswer]] = {}
    for answer in answers:
        form = normalise(equality, answer.text)
        if form is not None:
            classes.setdefault(form, []).append(answer)
    weights = _weights([each for group in classes.values() for each in group], method, temperature)
    votes = {
        form: math.fsum(weights[each.candidate] for each in group)
        for form, group in classes.items()
    }

    def strength(form: str) -> tuple[float, float, float]:
        scores = [each.score for each in classes[form]]
        return votes[form], math.fsum(scores) / len(scores), max(scores)

    ranked = sorted(classes, key=lambda form: _first(classes[form]).candidate)
    winner = _first(classes[max(ranked, key=strength)] if classes else answers)
    return Aggregate(winner=winner.candidate, text=winner.text, votes=votes)


def _weights(
    answers: Sequence[CandidateAnswer], method: Method, temperature: float
) -> dict[str, float]:
    """The vote of each candidate whose answer could be read."""
    if method is Method.MAJORITY or not answers:
        return {answer.candidate: 1.0 for answer in answers}
    shares = softmax([answer.score for answer in answers], temperature)
    return {answer.candidate: share for answer, share in zip(answers, shares, strict=True)}


def _first(answers: Sequence[CandidateAnswer]) -> CandidateAnswer:
    """The highest router score; among equals the first name, whatever order answers arrived in."""
    return min(answers, key=lambda answer: (-answer.score, answer.candidate))


def softmax(scores: Sequence[float], temperature: float) -> list[float]:
    """exp(w/T) normalised; shifted by the largest so that a small T cannot overflow."""
    if not temperature > 0.0:
        raise InputError("temperature must be above 0", param="temperature")
    top = max(scores)
    powers = [math.exp((score - top) / temperature) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]
