"""Decisions that were made already, so that a query that comes again costs no forward pass.

A decision is a function of the record, the query as the router reads it, the candidates that are
left, the options and what the caller's key fixes. All of that is the key here, the query letter by
letter and not as a fingerprint: whoever finds an entry would have been decided the same. Entries of
another caller are never found, or the time of an answer would tell what others asked.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from app.access.api_keys import Caller
from app.routing.premises import CandidateChoice
from app.routing.query import Query
from racer_core.types import Score

MOST_CHARS: Final = 2**22  # of all queries together

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheKey:
    """All that a decision follows from, beside the record and the configuration.

    Attributes:
        query: What the router reads, and what is special about the request.
        choice: The candidates among which the set is chosen, and why they are not the whole pool.
        alpha: The risk level in force; None: the calibration's.
        score: The nonconformity score; None: the calibration's.
        group: Which the request says that it belongs to.
        requested_alpha: The alpha of the request itself, which adds a reason; None: none.
        caller: Whose key it is.
    """

    query: Query
    choice: CandidateChoice
    alpha: float | None
    score: Score | None
    group: str | None
    requested_alpha: float | None
    caller: Caller


class DecisionCache(Generic[T]):
    """The decisions of one record; of too many, those least lately asked for go.

    Args:
        most: How many are kept; 0 keeps none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._record_id = ""
        self._known: OrderedDict[CacheKey, T] = OrderedDict()
        self._chars = 0

    def find(self, record_id: str, conditions: CacheKey) -> T | None:
        """What was decided under these conditions by this record."""
        if record_id != self._record_id:
            return None
        found = self._known.get(conditions)
        if found is not None:
            self._known.move_to_end(conditions)
        return found

    def keep(self, record_id: str, conditions: CacheKey, decision: T) -> None:
        """Remember a decision; those of another record are forgotten."""
        if record_id != self._record_id:
            self._record_id = record_id
            self._known.clear()
            self._chars = 0
        if conditions not in self._known:
            self._chars += len(conditions.query.text)
        self._known[conditions] = decision
        while len(self._known) > self._most or self._chars > MOST_CHARS:
            oldest, _ = self._known.popitem(last=False)
            self._chars -= len(oldest.query.text)
