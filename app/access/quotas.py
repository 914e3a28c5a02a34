"""How much a key may use: requests and tokens a minute, and how many at once.

Buckets run on the monotonic clock, so that a corrected wall clock gives nobody a free minute.
All of it is decided before the first byte of a body is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from app.concurrency.memory_budget import MemoryBudget
from app.errors import Overloaded, RateLimited
from app.settings.access import Key

Clock = Callable[[], float]
_MINUTE_S: Final = 60.0
_LEASED_S: Final = 1.0  # when a lease that is used up is worth asking for again


@dataclass(frozen=True, slots=True, order=True)
class Limit:
    """How many units of a kind a key may use in a minute."""

    key: str
    unit: str  # `requests` or `tokens`
    per_minute: float


class Bucket:
    """So many units a minute, which may come at once; spending more than there is leaves a debt.

    It fills by itself, wholly or with a share of the limit, or is filled with what is leased from a
    limit that others use, too.
    """

    def __init__(self, per_minute: float, clock: Clock) -> None:
        self.per_minute = per_minute
        self._share = 1.0  # of the limit, by which it fills itself; 0: it is leased
        self._level = per_minute
        self._alone = per_minute  # what of the last minute's it filled by itself
        self._clock = clock
        self._at = clock()

    @property
    def level(self) -> float:
        """Units that are there; below 0 a debt."""
        now, most = self._clock(), self.per_minute * self._share
        filled = min(most, self._level + (now - self._at) * most / _MINUTE_S)
        gained = max(0.0, filled - self._level)
        self._level, self._alone = self._level + gained, min(most, self._alone + gained)
        self._at = now
        return self._level

    def wait_s(self, units: float) -> float:
        """Seconds until so many units are there; 0 when they are."""
        missing = units - self.level
        if missing <= 0.0:
            return 0.0
        filling = self.per_minute * self._share
        return missing * _MINUTE_S / filling if filling else _LEASED_S

    def spend(self, units: float) -> None:
        """Take units, whether or not they are there."""
        self._level -= units

    def refill(self, share: float) -> None:
        """Fill by itself from now on, with this share of the limit."""
        _, self._share = self.level, share

    @property
    def leased(self) -> float:
        """What is left of leases; below 0 when more than that was spent."""
        return self.level - self._alone

    def lease(self) -> None:
        """Fill by itself no more, and give back what came so: spent already, it leaves a debt."""
        self._level = self.leased
        self._share = self._alone = 0.0

    def add(self, units: float) -> None:
        """Put in what was leased."""
        self._level += units


class Account:
    """What one key has used."""

    def __init__(self, key: Key | None, clock: Clock) -> None:
        self._concurrency = math.inf if key is None else key.concurrency
        self._requests = _bucket(key.requests_per_minute if key else None, clock)
        self._tokens = _bucket(key.tokens_per_minute if key else None, clock)
        self.running = 0

    def buckets(self) -> Iterable[tuple[str, float, Bucket]]:
        """Those that are limited, with their unit and how much a minute."""
        for unit, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                yield unit, bucket.per_minute, bucket

    def enter(self) -> None:
        """Count one more request. Raises RateLimited, counting nothing, when there is no room."""
        if self.running >= self._concurrency:
            raise RateLimited(f"this key has {self.running} requests running, which is its limit")
        _need(self._requests, "requests")
        _need(self._tokens, "tokens")
        if self._requests is not None:
            self._requests.spend(1)
        self.running += 1

    def spend(self, tokens: int) -> None:
        """Count tokens of an answer."""
        if self._tokens is not None:
            self._tokens.spend(tokens)


class Ticket:
    """One admitted request; a context that gives its place back. Handlers report tokens to it.

    Attributes:
        is_work: It counts against the limit of the process.
    """

    def __init__(self, quotas: Quotas, account: Account, *, is_work: bool) -> None:
        self._quotas = quotas
        self._account = account
        self._held = 0
        self.is_work = is_work

    def spend(self, tokens: int) -> None:
        """Count the tokens that this request used, once they are known."""
        self._account.spend(tokens)

    def hold(self, size: int) -> None:
        """Count bytes of its body until it ends. Raises Overloaded when others have too many."""
        self._quotas.bodies.reserve(size)
        self._held += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._account.running -= 1
        self._quotas.in_flight -= self.is_work
        self._quotas.bodies.release(self._held)


class Quotas:
    """The accounts of all keys, and the limits of the process."""

    def __init__(
        self,
        keys: Iterable[Key],
        in_flight: int,
        body_bytes: int,
        clock: Clock = time.monotonic,
    ) -> None:
        self._accounts = {key.name: Account(key, clock) for key in keys}
        self._unlimited = Account(None, clock)  # the environment's keys: only the process's limit
        self._most = in_flight
        self.in_flight = 0
        self.bodies = MemoryBudget(
            body_bytes, Overloaded, "too many large requests are under way; try again soon"
        )

    def buckets(self) -> dict[Limit, Bucket]:
        """The bucket of every limit of a key."""
        return {
            Limit(name, unit, per_minute): bucket
            for name, account in self._accounts.items()
            for unit, per_minute, bucket in account.buckets()
        }

    def admit(self, name: str, *, is_work: bool) -> Ticket:
        """Let a request of this key in.

        Args:
            name: The key's.
            is_work: It counts against the limit of the process. Looking at a gateway does
                not, so that an overloaded one can be looked at.

        Raises:
            RateLimited: Which limit is reached, and when there is room again.
        """
        if is_work and self.in_flight >= self._most:
            raise RateLimited(f"the gateway has {self.in_flight} requests running, its limit")
        account = self._accounts.get(name, self._unlimited)
        account.enter()
        self.in_flight += is_work
        return Ticket(self, account, is_work=is_work)


def _bucket(per_minute: int | None, clock: Clock) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, clock)


def _need(bucket: Bucket | None, unit: str) -> None:
    wait_s = 0.0 if bucket is None else bucket.wait_s(1)
    if wait_s > 0:
        raise RateLimited(
            f"this key has used its {unit} of the minute", retry_after_s=math.ceil(wait_s)
        )
