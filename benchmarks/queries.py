"""Queries of the load tests, their right answers and injected faults: pure functions of the text.

The load generator and the candidates compute them independently, so every answer can be checked and
an injected fault distinguished from an error of the gateway, without communication.
"""

import itertools
import random
import re
import zlib
from collections.abc import Iterator

POOL = ("adder", "speller", "poet")

# How many candidates are right: the router learns from the wording how many it has to select.
KINDS = {
    "What is {} plus {}?": POOL[:1],
    "Compare {} with {} in one word": POOL[:2],
    "Write a poem about {} and {}": POOL,
}
TEMPLATES = tuple(KINDS)
FAULTS = ("status", "cut", "hang", "garbage")
REPEATED = 300  # different queries, where they come again and again
_NUMBERS = re.compile(r"\d+")
_FAULT_SHARE = 0.05  # of calls, once a query may break at all
_BREAKABLE = 10**9  # numbers from here on mark queries whose candidates may break


def endless(seed: int, *, breakable: bool = False) -> Iterator[str]:
    """Queries of random kinds, no two alike, nor alike those of another seed below 1,000."""
    rng = random.Random(seed)
    start = seed % 1000 * 10**6 + (_BREAKABLE if breakable else 0)
    for number in itertools.count(start):
        yield rng.choice(TEMPLATES).format(number, number + rng.randrange(100))


def repeated(size: int, digits: int) -> Iterator[str]:
    """Repeat the same queries, with ``size`` right candidates and ``digits`` letters per answer.

    No candidate breaks on them, and no seed of :func:`endless` below 900 makes one of them.
    """
    rng = random.Random(digits)
    template = TEMPLATES[size - 1]
    first = range(900 * 10**6, 900 * 10**6 + REPEATED)
    few = [
        template.format(number, rng.randrange(10 ** (digits - 1), 10**digits // 2))
        for number in first
    ]
    return itertools.cycle(few)


def labelled(seed: int, count: int) -> list[tuple[str, tuple[str, ...]]]:
    """Queries with the candidates that are right."""
    return [
        (query, KINDS[_NUMBERS.sub("{}", query)])
        for query in itertools.islice(endless(seed), count)
    ]


def answer(query: str) -> str:
    """The one right answer: an answer to another query is wrong."""
    return str(sum(map(int, _NUMBERS.findall(query))))


def fault(candidate: str, query: str) -> str | None:
    """How this candidate breaks on this query, if it does; a retry meets the same."""
    if int(_NUMBERS.findall(query)[0]) < _BREAKABLE:
        return None
    draw = zlib.crc32(f"{candidate} {query}".encode()) / 2**32 / _FAULT_SHARE
    return FAULTS[int(draw * len(FAULTS))] if draw < 1 else None


def may_fail(query: str) -> bool:
    """Whether any candidate breaks on it, so that the gateway may have nothing to say."""
    return any(fault(candidate, query) for candidate in POOL)
