"""The greedy cover by brute force in rational numbers: slow, and with nothing of the package in it.

Patterns are sets of names; a weight is a ``Fraction``. Ties go to the name that comes first, the
null model's last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

NULL = "the null model"
GRID = Fraction(1, 10**9)


@dataclass(frozen=True)
class Taken:
    """A name when it was taken, and the mass that the names before it cover."""

    name: str
    before: Fraction


def counted_weights(
    counts: Sequence[int], prior: Fraction, nearest: Sequence[int]
) -> list[Fraction]:
    """Votes of the nearest rows and of the prior, which stands for the training rows' ``counts``.

    Args:
        counts: Training rows of each pattern.
        prior: Votes of the training rows together.
        nearest: Pattern ids of the neighbours that count.
    """
    votes = Counter(nearest)
    total = len(nearest) + prior
    rows = sum(counts)
    return [(votes[i] + prior * Fraction(count, rows)) / total for i, count in enumerate(counts)]


def columns_of(
    patterns: Sequence[Sequence[bool]], pool: Sequence[str], *, with_null: bool
) -> dict[str, frozenset[int]]:
    """Which patterns each name covers, in the order in which ties go."""
    covers = {
        name: frozenset(i for i, pattern in enumerate(patterns) if pattern[column])
        for column, name in sorted(enumerate(pool), key=lambda pair: pair[1])
    }
    if with_null:
        covers[NULL] = frozenset(i for i, pattern in enumerate(patterns) if not any(pattern))
    return covers


def mass(weights: Sequence[Fraction], ids: frozenset[int]) -> Fraction:
    """The weight of some patterns."""
    return sum((weights[i] for i in ids), start=Fraction(0))


def without_empty(
    weights: Sequence[Fraction], patterns: Sequence[Sequence[bool]]
) -> list[Fraction]:
    """Weights given that some candidate is right; zeros if none ever was."""
    answerable = [i for i, pattern in enumerate(patterns) if any(pattern)]
    total = mass(weights, frozenset(answerable))
    nonempty = frozenset(answerable) if total else frozenset[int]()
    return [weights[i] / total if i in nonempty else Fraction(0) for i in range(len(weights))]


def greedy(
    weights: Sequence[Fraction],
    covers: Mapping[str, frozenset[int]],
    prices: Mapping[str, Fraction] | None = None,
    *,
    on_grid: bool = False,
) -> list[Taken]:
    """Take names one by one, each time the one that adds most mass (per price).

    Args:
        weights: Of each pattern.
        covers: Patterns of each name; ties go to the name that stands first.
        prices: Of each name; None: mass alone.
        on_grid: Compare masses rounded to 1e-9. Needed where weights, or masses per price, are only
            equal up to rounding.
    """
    order: list[Taken] = []
    left = list(covers)
    covered: frozenset[int] = frozenset()
    while left:
        gains = {name: mass(weights, covers[name] - covered) for name in left}
        if on_grid:
            gains = {name: round(gain / GRID) * GRID for name, gain in gains.items()}
        values = gains if prices is None else {m: gain / prices[m] for m, gain in gains.items()}
        best = max(left, key=values.__getitem__)  # the first of equals
        order.append(Taken(best, mass(weights, covered)))
        covered |= covers[best]
        left.remove(best)
    return order
