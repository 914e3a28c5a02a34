"""Equality of open answers by meaning: two by two, and as clusters with medoids. Pure.

The caller computes the embeddings. Clustering, by complete linkage, needs all answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from racer_core.aggregation.answers import Equality, normalise
from racer_core.errors import InputError
from racer_core.types import FloatArray

_DECIMALS: Final = 6  # precision of similarities of float32 embeddings
_ROUNDING: Final = 1e-3  # tolerance of a unit vector's length


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """What an answer is compared by.

    Attributes:
        form: Its normal form; answers of the same form are equal.
        embedding: Unit vector of its text, shape (d,); None: it is equal to its form alone.
    """

    form: str
    embedding: FloatArray | None = None

    def equals(self, other: Meaning, threshold: float) -> bool:
        """Whether two answers are equal: by form, or at this cosine similarity. Symmetric."""
        if self.form == other.form:
            return True
        if self.embedding is None or other.embedding is None:
            return False
        return round(float(self.embedding @ other.embedding), _DECIMALS) >= threshold


def cluster(
    embeddings: FloatArray,
    names: Sequence[str],
    texts: Mapping[str, str],
    scores: Mapping[str, float],
    threshold: float,
) -> tuple[dict[str, str], frozenset[str]]:
    """Group answers into classes whose members are all similar to each other.

    Complete linkage: the two most similar classes are joined while their least similar members
    reach the threshold, so a chain of small steps joins nothing. Texts that differ only in case
    and space share a class, whatever their embeddings. The order of the answers does not matter.

    Args:
        embeddings: Unit vectors, shape (n, d), one for each name. A text without features may have
            a vector of zeros, which is similar to no other.
        names: The candidates that answered, n of them.
        texts: Each one's answer.
        scores: Each one's router score.
        threshold: The least cosine similarity within a class.

    Returns:
        The form of each readable answer, which is the name of its class's medoid, and the medoids.
        A medoid is the answer most similar to all of its class; ties go to the higher router
        score, then to the first name. Its text is the one to return (``preferred`` of
        :func:`~racer_core.aggregation.vote.aggregate`).

    Raises:
        InputError: Embeddings of another shape or longer than 1, or a threshold outside (0, 1].
    """
    _check(embeddings, names, threshold)
    equal: dict[str, list[int]] = {}
    order = sorted(range(len(names)), key=names.__getitem__)
    for row, index in enumerate(order):
        form = normalise(Equality.EXACT, texts[names[index]])
        if form is not None:
            equal.setdefault(form, []).append(row)
    ordered = embeddings[order].astype(np.float64)
    similarity = np.round(ordered @ ordered.T, _DECIMALS)
    by_name = [names[index] for index in order]
    forms: dict[str, str] = {}
    for members in _linked(list(equal.values()), similarity, threshold):
        medoid = _medoid(members, similarity, by_name, scores)
        forms |= {by_name[row]: medoid for row in members}
    return forms, frozenset(forms.values())


def _linked(clusters: list[list[int]], similarity: FloatArray, threshold: float) -> list[list[int]]:
    """Join the two most similar clusters, of equals the first, until none are similar enough."""
    linkage = np.array(
        [[similarity[np.ix_(one, other)].min() for other in clusters] for one in clusters]
    ).reshape(len(clusters), len(clusters))
    np.fill_diagonal(linkage, -np.inf)
    while linkage.size and linkage.max() >= threshold:
        target, source = divmod(int(linkage.argmax()), len(clusters))
        clusters[target] += clusters[source]
        clusters[source] = []
        linkage[target] = linkage[:, target] = np.minimum(linkage[target], linkage[source])
        linkage[source] = linkage[:, source] = -np.inf
    return [members for members in clusters if members]


def _medoid(
    members: list[int], similarity: FloatArray, names: Sequence[str], scores: Mapping[str, float]
) -> str:
    def rank(row: int) -> tuple[float, float, str]:
        mean = round(float(similarity[row, members].mean()), _DECIMALS)
        return -mean, -scores[names[row]], names[row]

    return names[min(members, key=rank)]


def _check(embeddings: FloatArray, names: Sequence[str], threshold: float) -> None:
    if not 0.0 < threshold <= 1.0:
        raise InputError("the similarity of one class must be above 0 and at most 1")
    if embeddings.ndim != 2 or len(embeddings) != len(names):
        raise InputError(f"embeddings {embeddings.shape} for {len(names)} answers")
    lengths = np.linalg.norm(embeddings, axis=1)
    if not np.all(lengths <= 1.0 + _ROUNDING):  # also false for NaN
        raise InputError("embeddings must be vectors of length 1")
