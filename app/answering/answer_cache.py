"""The answer cache: answers of one application by digests of their requests, bounded in bytes.

It is in the memory of this process alone. An entry is found until its time is over, and the least
recently used one makes room for a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from cachetools import TTLCache
from prometheus_client import Counter

from app.settings import DEFAULT, Settings
from app.settings.answer_cache import AnswerCacheSettings
from app.telemetry.metrics import Metrics

ENTRY_BYTES: Final = 1024  # that an entry takes beside its content, rounded up

Lookup = Literal["hit", "miss", "bypass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    """An answer that may be returned again.

    Attributes:
        decision_id: Of the request that it answered first.
        served_by: The candidate whose answer it is.
        content: JSON: the body as the candidate sent it, or the array of its stream's events.
        stored_at: A ``time.monotonic()``.
    """

    decision_id: str
    served_by: str
    content: bytes
    stored_at: float

    @property
    def size(self) -> int:
        """The bytes that it counts for."""
        return ENTRY_BYTES + len(self.content)


class AnswerCache:
    """The cached answers of one application.

    Args:
        settings: Its bounds.
        metrics: Counts lookups and evictions.
        application: The label of the metrics.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        settings: AnswerCacheSettings,
        metrics: Metrics,
        application: str = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._entries = _Entries(
            settings, clock, metrics.answer_cache_evictions.labels(application)
        )
        # A rate needs the zero before the first.
        lookups: tuple[Lookup, ...] = ("hit", "miss", "bypass")
        self._lookups = {
            each: metrics.answer_cache_requests.labels(application, each) for each in lookups
        }
        metrics.answer_cache_bytes.labels(application).set_function(lambda: self.bytes)

    @property
    def bytes(self) -> int:
        """The bytes that its answers count for, at most ``max_bytes``."""
        return int(self._entries.currsize)

    def find(self, key: bytes) -> CachedAnswer | None:
        """The answer to an equal request; None without one."""
        return self._entries.get(key)

    def keep(self, key: bytes, answer: CachedAnswer) -> None:
        """Cache an answer in the place of an older one; not one that is larger than the cache."""
        self._entries.pop(key, None)
        if answer.size <= self.settings.max_bytes:
            self._entries[key] = answer

    def count(self, lookup: Lookup) -> None:
        """Count a request of the application."""
        self._lookups[lookup].inc()


class AnswerCaches:
    """The answer caches of a process, by application.

    They outlive a configuration, which is part of the keys.
    """

    def __init__(self, caches: Mapping[str, AnswerCache]) -> None:
        self._caches = caches

    @classmethod
    def open(cls, settings: Settings, metrics: Metrics) -> Self | None:
        """Those that are configured; None without any."""
        sections = settings.answer_caches
        caches = {name: AnswerCache(each, metrics, name) for name, each in sections.items()}
        return cls(caches) if caches else None

    def find(self, application: str | None) -> AnswerCache | None:
        """The cache of an application; None where it has none."""
        return self._caches.get(application or DEFAULT)


@dataclass(frozen=True, slots=True)
class CacheSlot:
    """The place for the answer to one request."""

    cache: AnswerCache
    key: bytes

    def keep(self, content: bytes, *, decision_id: str, served_by: str) -> None:
        """Cache the answer."""
        answer = CachedAnswer(
            decision_id=decision_id,
            served_by=served_by,
            content=content,
            stored_at=self.cache.clock(),
        )
        self.cache.keep(self.key, answer)


class _Entries(TTLCache[bytes, CachedAnswer]):
    """A cache of cachetools that counts what it removes to make room."""

    def __init__(
        self, settings: AnswerCacheSettings, clock: Callable[[], float], evictions: Counter
    ) -> None:
        super().__init__(
            settings.max_bytes, settings.ttl_s, timer=clock, getsizeof=lambda answer: answer.size
        )
        self._evictions = evictions

    def popitem(self) -> tuple[bytes, CachedAnswer]:
        """Remove the least recently used entry, and count it."""
        self._evictions.inc()
        return super().popitem()
