"""Rate limits of API keys: requests and tokens per minute (token buckets), and concurrency.

A client that sends half a body holds its place for as long as ``limits.body_s``. So the last places
of ``limits.in_flight`` are closed to a key that fills a share of all places with such requests.

Buckets use the monotonic clock: a correction of the wall clock must not refill them. All limits are
checked before the body of a request is read.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from app.access.reservation import Reservation
from app.concurrency.memory_budget import MemoryBudget
from app.errors import Overloaded, RateLimited
from app.settings.access import Key

Clock = Callable[[], float]
_MINUTE_S: Final = 60.0
_LEASE_RETRY_S: Final = 1.0  # when a new lease may have arrived
# Requests that are refused in one second come back over this many, or they would be refused again.
_SPREAD_S: Final = 5
_RECEIVING_SHARE: Final = 4  # a key with more than this part of all places in receipt
_RESERVED_SHARE: Final = 8  # has no access to this last part of them


@dataclass(frozen=True, slots=True, order=True)
class Limit:
    """How many units per minute a key may use."""

    key: str
    unit: str  # `requests` or `tokens`
    per_minute: float


class Bucket:
    """A token bucket. Its level may fall below 0: the debt is refilled first.

    The bucket either refills itself, with the whole limit or with a share of it, or receives leases
    of a limit that several gateways share (:mod:`app.access.quota_leases`).

    Args:
        per_minute: Capacity, and units that are refilled per minute.
        clock: Monotonic time in seconds.
    """

    def __init__(self, per_minute: float, clock: Clock) -> None:
        self.per_minute = per_minute
        self._share = 1.0  # of the limit, for refilling itself; 0: it is leased
        self._level = per_minute
        self._self_refilled = per_minute  # part of the last minute's units that no lease covers
        self._clock = clock
        self._updated_at = clock()

    @property
    def level(self) -> float:
        """Available units; a debt if below 0."""
        now, most = self._clock(), self.per_minute * self._share
        filled = min(most, self._level + (now - self._updated_at) * most / _MINUTE_S)
        gained = max(0.0, filled - self._level)
        self._level, self._self_refilled = (
            self._level + gained,
            min(most, self._self_refilled + gained),
        )
        self._updated_at = now
        return self._level

    def wait_s(self, units: float) -> float:
        """Seconds until this many units are available; 0 if they are."""
        missing = units - self.level
        if missing <= 0.0:
            return 0.0
        filling = self.per_minute * self._share
        return missing * _MINUTE_S / filling if filling else _LEASE_RETRY_S

    def spend(self, units: float) -> None:
        """Take units, even if they are not available."""
        self._level -= units

    def refill(self, share: float) -> None:
        """From now on, refill itself with this share of the limit."""
        _, self._share = self.level, share

    @property
    def leased(self) -> float:
        """Units left of leases; below 0 if more were spent."""
        return self.level - self._self_refilled

    def lease(self) -> None:
        """Stop refilling itself, and remove the units that came so; spent ones become a debt."""
        self._level = self.leased
        self._share = self._self_refilled = 0.0

    def add(self, units: float) -> None:
        """Add leased units."""
        self._level += units

    def limit_to(self, per_minute: float) -> None:
        """Follow another limit; what was spent stays spent."""
        self._level = min(self.level, per_minute)
        self._self_refilled = min(self._self_refilled, per_minute)
        self.per_minute = per_minute


class Account:
    """The usage of one key, without limits until it follows a key's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._concurrency = math.inf
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.running = 0
        self.receiving = 0  # of these, requests whose bodies have not arrived

    def reconfigure(self, key: Key) -> None:
        """Follow the limits of a key."""
        self._concurrency = key.concurrency
        self._requests = _bucket(key.requests_per_minute, self._requests, self._clock)
        self._tokens = _bucket(key.tokens_per_minute, self._tokens, self._clock)

    def buckets(self) -> Iterable[tuple[str, float, Bucket]]:
        """Unit, limit per minute and bucket of each limit."""
        for unit, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                yield unit, bucket.per_minute, bucket

    def enter(self) -> None:
        """Count a request. Raises RateLimited, and counts nothing, if a limit is reached."""
        if self.running >= self._concurrency:
            raise RateLimited(f"this key has {self.running} requests running, which is its limit")
        _check_available(self._requests, "requests")
        _check_available(self._tokens, "tokens")
        if self._requests is not None:
            self._requests.spend(1)
        self.running += 1

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answer."""
        if self._tokens is not None:
            self._tokens.spend(tokens)


class QuotaTicket:
    """The quota of one admitted request, as a context manager that releases it.

    Attributes:
        is_work: It counts towards ``limits.in_flight``.
        reservation: Of what it may cost; None: it has no budget.
    """

    reservation: Reservation | None = None

    def __init__(
        self, quotas: Quotas, account: Account, *, is_work: bool, is_receiving: bool
    ) -> None:
        self._quotas = quotas
        self._account = account
        self._body_bytes = 0
        self._is_receiving = is_receiving
        self.is_work = is_work

    def spend(self, tokens: int) -> None:
        """Count the tokens that this request used."""
        self._account.spend(tokens)

    def body_received(self) -> None:
        """Stop counting the request among those whose bodies have not arrived."""
        self._account.receiving -= self._is_receiving
        self._is_receiving = False

    def hold(self, size: int) -> None:
        """Reserve memory for its body until it ends. Raises Overloaded if none is left."""
        self._quotas.bodies.reserve(size)
        self._body_bytes += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.body_received()
        self._account.running -= 1
        self._quotas.in_flight -= self.is_work
        self._quotas.bodies.release(self._body_bytes)
        if self.reservation is not None:
            self.reservation.close()


class Quotas:
    """Rate limits of all keys, and the limits of the process.

    Args:
        keys: The configured keys.
        in_flight: Requests at once, of all keys.
        body_bytes: Bytes of all bodies in memory.
        clock: Monotonic time in seconds.

    Attributes:
        buckets: The buckets of all limits of keys; one object, whatever the limits are.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        *,
        in_flight: int,
        body_bytes: int,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        # Keys of the environment, and callers without a key, have no limit but their share.
        self._unlimited = defaultdict[str, Account](lambda: Account(clock))
        self._waits_s = itertools.cycle(range(1, _SPREAD_S + 1))
        self.buckets: dict[Limit, Bucket] = {}
        self.in_flight = 0
        self.bodies = MemoryBudget(
            body_bytes, Overloaded, "too many large requests are under way; try again soon"
        )
        self.reconfigure(keys, in_flight=in_flight, body_bytes=body_bytes)

    def reconfigure(self, keys: Iterable[Key], *, in_flight: int, body_bytes: int) -> None:
        """Follow other limits; running requests and spent units still count."""
        before, self._accounts = self._accounts, {}
        for key in keys:
            account = self._accounts[key.name] = before.get(key.name) or Account(self._clock)
            account.reconfigure(key)
        self.buckets.clear()
        for name, account in self._accounts.items():
            for unit, per_minute, bucket in account.buckets():
                self.buckets[Limit(name, unit, per_minute)] = bucket
        self._max_in_flight = in_flight
        self._max_receiving = max(1, in_flight // _RECEIVING_SHARE)
        self._unreserved = in_flight - max(1, in_flight // _RESERVED_SHARE)
        self.bodies.limit_to(body_bytes)

    def admit(self, name: str, *, is_work: bool, is_receiving: bool = False) -> QuotaTicket:
        """Check the key's quota and admit a request.

        Args:
            name: Name of the key.
            is_work: It counts towards ``limits.in_flight``. GET requests do not: operators must be
                able to inspect an overloaded gateway.
            is_receiving: Its body has not arrived; :meth:`QuotaTicket.body_received` ends that.

        Raises:
            RateLimited: A limit is reached; the error says which, and when to retry.
        """
        if is_work and self.in_flight >= self._max_in_flight:
            message = f"the gateway has {self.in_flight} requests running, its limit"
            raise RateLimited(message, retry_after_s=next(self._waits_s))
        account = self._accounts.get(name) or self._unlimited[name]
        is_crowded = self.in_flight >= self._unreserved
        if is_receiving and is_crowded and account.receiving >= self._max_receiving:
            raise RateLimited(
                f"this key has {account.receiving} requests whose bodies have not arrived, and "
                "the gateway has few places left: send the bodies of fewer requests at once"
            )
        account.enter()
        account.receiving += is_receiving
        self.in_flight += is_work
        return QuotaTicket(self, account, is_work=is_work, is_receiving=is_receiving)


def _bucket(per_minute: int | None, before: Bucket | None, clock: Clock) -> Bucket | None:
    """The bucket of a limit: the one before it, where there was one."""
    if per_minute is None:
        return None
    if before is None:
        return Bucket(per_minute, clock)
    before.limit_to(per_minute)
    return before


def _check_available(bucket: Bucket | None, unit: str) -> None:
    wait_s = 0.0 if bucket is None else bucket.wait_s(1)
    if wait_s > 0:
        raise RateLimited(
            f"this key has used its {unit} of the minute", retry_after_s=math.ceil(wait_s)
        )
