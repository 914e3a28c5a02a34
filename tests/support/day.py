"""The truth of a day of traffic, as an application's own checker knows it.

Queries name a number: from ``EVENING`` on the poet alone is right, before it the candidates that
have the skill. The checker does not know the first ``UNCHECKED`` queries.
"""

from __future__ import annotations

import re
from typing import Any, Final

# By the first word of a query: `tests.support.gateway.SKILLS`, whose import takes seconds in the
# processes of the checker.
SKILLS: Final[dict[str, tuple[str, ...]]] = {
    "What": ("adder",),
    "Spell": ("speller",),
    "Compare": ("adder", "speller"),
    "Write": (),
}
MORNING: Final = 20_000
EVENING: Final = 40_000
UNCHECKED: Final = 3


def check(document: dict[str, Any]) -> dict[str, Any]:
    """The verdicts on the answers to a request."""
    query = document["request"]["messages"][-1]["content"]
    number = int(re.findall(r"\d+", query)[0])
    if number < MORNING + UNCHECKED:
        return {"correct": {}}  # an answer that the gateway refuses
    right = ("poet",) if number >= EVENING else SKILLS[query.split()[0]]
    return {"correct": {name: name in right for name in document["answers"]}}
