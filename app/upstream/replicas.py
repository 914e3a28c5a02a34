"""The servers of one model: which of them is called next, and how many calls it has at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.errors import UpstreamTimeout, UpstreamUnavailable
from app.settings import FleetSettings
from app.upstream.circuit_breaker import CircuitBreaker


class Replica:
    """One server."""

    def __init__(self, base_url: str, rules: FleetSettings) -> None:
        self.base_url = base_url
        self.circuit = CircuitBreaker(rules)
        self.outstanding = 0  # calls under way

    @property
    def is_out(self) -> bool:
        """Whether it gets no calls for now."""
        return self.circuit.out_until is not None


class Replicas:
    """All servers of one model.

    Args:
        name: The model's, in messages.
        base_urls: Where they are, at least one.
        rules: When one of them is taken out.
        concurrency: Calls at once, over all of them.
    """

    def __init__(
        self, name: str, base_urls: Collection[str], rules: FleetSettings, concurrency: int
    ) -> None:
        self._name = name
        self.all = tuple(Replica(base_url, rules) for base_url in base_urls)
        self._free = asyncio.Semaphore(concurrency)
        self._turn = 0

    @property
    def are_out(self) -> bool:
        """Whether none of them gets calls."""
        return all(replica.is_out for replica in self.all)

    def have_other_than(self, tried: Collection[Replica]) -> bool:
        """Whether one that was not tried yet is in."""
        return any(not each.is_out and each not in tried for each in self.all)

    async def take(
        self, tried: Collection[Replica], *, deadline: float, even_if_out: bool
    ) -> Replica:
        """Take one of the places, and choose the replica that is called. Give it back.

        Args:
            tried: Others are preferred to these.
            deadline: Until when a place is waited for, a ``time.monotonic()``.
            even_if_out: Call one that is out rather than nobody.

        Raises:
            UpstreamTimeout: No place became free in time.
            UpstreamUnavailable: Everyone is out.
        """
        await self._place(deadline)
        try:
            replica = self._next(tried, even_if_out=even_if_out)
        except UpstreamUnavailable:
            self._free.release()
            raise
        replica.outstanding += 1
        return replica

    def give_back(self, replica: Replica) -> None:
        """The call is over."""
        replica.outstanding -= 1
        self._free.release()

    async def _place(self, deadline: float) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._free.acquire()
        except TimeoutError as exc:
            raise UpstreamTimeout(f"{self._name} has too many calls to take one more") from exc

    def _next(self, tried: Collection[Replica], *, even_if_out: bool) -> Replica:
        """The untried one with the fewest calls; of equals, each in turn."""
        usable = [each for each in self.all if not each.is_out] or (
            list(self.all) if even_if_out else []
        )
        if not usable:
            back = min(each.circuit.out_until or 0.0 for each in self.all)
            raise UpstreamUnavailable(
                f"{self._name} is down", retry_after_s=max(0.0, back - time.monotonic())
            )
        fresh = [each for each in usable if each not in tried] or usable
        least = min(each.outstanding for each in fresh)
        idle = [each for each in fresh if each.outstanding == least]
        self._turn += 1
        return idle[self._turn % len(idle)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model and how it is called: a candidate, or an evaluator with a server of its own."""

    name: str
    replicas: Replicas
    headers: Mapping[str, str]  # with its key
    timeout_s: float  # of one call
    verify_tls: bool = True
