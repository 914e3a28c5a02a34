"""Quotas of API keys: requests and tokens per minute, and concurrency.

Requests and tokens are limits of a minute that refills continuously: see :mod:`app.access.lease`.
Several gateways share them through the store; without it a gateway fills them itself. No request
waits for the store.

A client that sends half a body holds its place for as long as ``limits.body_s``. So the last places
of ``limits.in_flight`` are closed to a key that fills a share of all places with such requests.

All limits are checked before the body of a request is read.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from app.access.budgets import Reservation
from app.access.lease import Clock, Limit, Share
from app.concurrency.memory_budget import MemoryBudget
from app.errors import Overloaded, RateLimited
from app.settings.access import Key
from racer_core.prices import PICO

_REQUESTS: Final = "requests"
_TOKENS: Final = "tokens"
_MOST_MINUTES: Final = 60  # of a key's tokens, for one answer
# Requests that are refused in one second come back over this many, or they would be refused again.
_SPREAD_S: Final = 5
_RECEIVING_SHARE: Final = 4  # a key with more than this part of all places in receipt
_RESERVED_SHARE: Final = 8  # has no access to this last part of them


class Account:
    """The usage of one key, without limits until it follows a key's.

    Attributes:
        running: Requests under way.
        receiving: Of these, requests whose bodies have not arrived.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._concurrency = math.inf
        self._shares: dict[str, Share] = {}  # of requests and of tokens, where they are limited
        self.running = 0
        self.receiving = 0

    def reconfigure(self, key: Key) -> None:
        """Follow the limits of a key."""
        self._concurrency = key.concurrency
        before, self._shares = self._shares, {}
        for unit, units in ((_REQUESTS, key.requests_per_minute), (_TOKENS, key.tokens_per_minute)):
            if units is not None:
                limit = Limit.per_minute(f"{unit}:{key.name}", units)
                share = self._shares[unit] = before.get(unit) or Share(limit, self._clock)
                share.follow(limit)

    def shares(self) -> Iterable[Share]:
        """Of its limits."""
        return self._shares.values()

    def enter(self) -> None:
        """Count a request. Raises RateLimited, and counts nothing, if a limit is reached."""
        if self.running >= self._concurrency:
            raise RateLimited(f"this key has {self.running} requests running, which is its limit")
        for unit, share in self._shares.items():
            if wait_s := share.wait_s(PICO):
                raise RateLimited(
                    f"this key has used its {unit} of the minute",
                    retry_after_s=math.ceil(wait_s),
                )
        if (requests := self._shares.get(_REQUESTS)) is not None:
            requests.settle(0, PICO)
        self.running += 1

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answer: of an hour at most, whatever a candidate reports."""
        if (share := self._shares.get(_TOKENS)) is not None:
            most = _MOST_MINUTES * (share.limit.amount or 0)
            share.settle(0, min(tokens * PICO, most))


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

    @property
    def bodies(self) -> MemoryBudget:
        """The memory of all bodies; see :meth:`hold`."""
        return self._quotas.bodies

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
        self._max_in_flight = in_flight
        self._max_receiving = max(1, in_flight // _RECEIVING_SHARE)
        self._unreserved = in_flight - max(1, in_flight // _RESERVED_SHARE)
        self.bodies.limit_to(body_bytes)

    def shares(self) -> list[Share]:
        """Of all limits of keys."""
        return [share for account in self._accounts.values() for share in account.shares()]

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
