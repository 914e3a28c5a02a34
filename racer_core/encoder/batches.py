"""Batches of texts by their lengths in tokens: of similar length on a CPU, of few shapes on a GPU.

All texts of a batch are padded to its longest. On a CPU padded tokens cost what others do. On a GPU
a batch also costs the launches of its kernels, so that a few padded tokens cost less than one more
batch does; and batches are padded to the shapes for which graphs can be recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

Shape = tuple[int, int]  # texts, tokens

_SHORTEST = 16  # tokens; a multiple of 8, as the kernels want rows of the attention's bias aligned
_LARGEST = 16_384  # tokens in a batch; 256 texts of 64


def shapes(texts: int, tokens: int) -> list[Shape]:
    """Shapes of batches up to ``texts`` by ``tokens``: powers of two and the limits.

    Shapes of more than 16,384 tokens in total are left out.
    """
    every = product(_doubling(1, texts), _doubling(_SHORTEST, tokens))
    return [shape for shape in every if math.prod(shape) <= _LARGEST]


def _doubling(first: int, last: int) -> list[int]:
    return [first, *_doubling(2 * first, last)] if first < last else [last]


def fitting(batch: Shape, among: Iterable[Shape]) -> Shape | None:
    """The smallest shape that holds a batch; None if none does."""
    holding = (each for each in among if each[0] >= batch[0] and each[1] >= batch[1])
    return min(holding, key=math.prod, default=None)


def cheapest(lengths: Sequence[int], among: Iterable[Shape], launch: int) -> Iterator[list[int]]:
    """Rows in batches that together cost least, longest first; a batch is padded to a shape.

    Args:
        lengths: Of each text, in tokens.
        among: Shapes; a text that none of them holds is a batch of its own.
        launch: What a batch costs beside its tokens, in tokens.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    offered = list(among)
    holding: dict[int, list[Shape]] = {}
    for length in set(lengths):
        tokens = min((each for _, each in offered if each >= length), default=length)
        holding[length] = [each for each in offered if each[1] == tokens] or [(1, tokens)]
    cost, texts = [0] * (len(order) + 1), [0] * len(order)  # of the best batches from a place on
    for first in reversed(range(len(order))):
        cost[first], texts[first] = min(
            (launch + count * tokens + cost[min(first + count, len(order))], count)
            for count, tokens in holding[lengths[order[first]]]
        )
    first = 0
    while first < len(order):
        yield order[first : first + texts[first]]
        first += texts[first]


def similar(lengths: Sequence[int], most: int, shortest: float) -> Iterator[list[int]]:
    """Rows in batches of at most ``most``, longest first.

    Args:
        lengths: Of each text, in tokens.
        most: Texts in a batch.
        shortest: No text of a batch is shorter than this share of its longest.
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and (len(batch) == most or lengths[row] < shortest * lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
