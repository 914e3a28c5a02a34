"""The decision cache: a repeated query costs no forward pass of the encoder.

The key holds all inputs of a decision: the query letter by letter (no fingerprint), the candidates,
the options and the caller's key. So a cached decision equals a fresh one. Entries are per caller;
otherwise response times would reveal other callers' queries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from app.access.api_keys import Caller
from app.routing.applications import Membership
from app.routing.premises import CandidateChoice
from app.routing.query import Query
from racer_core.types import Score

MOST_CHARS: Final = 2**22  # of all queries together

T = TypeVar("T")


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class CacheKey:
    """All inputs of a decision, except the record and the configuration.

    Attributes:
        query: The text that the router reads, and the request's own reasons.
        choice: The candidates among which the set is chosen, and why they are not the whole pool.
        alpha: The risk level in force; None: the calibration's.
        score: The nonconformity score; None: the calibration's.
        group: The group that the request names.
        application: The application of the request, and whether the request names it.
        requested_alpha: The alpha that the request chose, which adds a reason; None: none.
        caller: The owner of the API key.
    """

    query: Query
    choice: CandidateChoice
    alpha: float | None
    score: Score | None
    group: str | None
    application: Membership | None
    requested_alpha: float | None
    caller: Caller

    def __hash__(self) -> int:
        """Of the values that a client varies at will; equality compares the others, too."""
        query = self.query
        return hash(
            (query.text, query.conditions.identity, self.choice.names, self.alpha, self.group)
        )


class DecisionCache(Generic[T]):
    """LRU cache of one record's decisions, bounded by entries and by characters of their queries.

    Args:
        limit: Maximum number of entries; 0 caches none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._record: Hashable = None
        # Not a cache of cachetools: this one has two limits, entries and characters of the keys.
        self._entries: OrderedDict[CacheKey, T] = OrderedDict()
        self._chars = 0

    def find(self, record: Hashable, key: CacheKey) -> T | None:
        """The cached decision of this record; None without one.

        Args:
            record: Its id, and what else of it certificates have.
            key: The other inputs.
        """
        if record != self._record:
            return None
        found = self._entries.pop(key, None)
        if found is not None:
            self._entries[key] = found  # the newest again
        return found

    def keep(self, record: Hashable, key: CacheKey, decision: T) -> None:
        """Cache a decision; the decisions of another record are removed."""
        if record != self._record:
            self._record = record
            self._entries.clear()
            self._chars = 0
        if key not in self._entries:
            self._chars += len(key.query.text)
        self._entries[key] = decision
        while len(self._entries) > self._limit or self._chars > MOST_CHARS:
            oldest, _ = self._entries.popitem(last=False)
            self._chars -= len(oldest.query.text)
