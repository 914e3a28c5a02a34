"""Circuit breaker of the router: a backend that hangs is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Gauge

from app.errors import Overloaded
from app.routing.router_breaker import TRIAL, RouterBreaker, RouterOut
from app.routing.scorer import ScoredQuery
from racer_core.trained_router import RouterScores
from tests.kit.loops import on_loop

LATE_S = 0.02  # a backend that hangs is late after any time
NEVER_S = 1_000.0
SCORED = ScoredQuery([0.5], truncated=False, neighbours=None)


class Backend:
    """Answers a query when the test says so."""

    def __init__(self) -> None:
        self.hangs = True
        self.error: Exception | None = None
        self.queries: list[str] = []
        self.answered: list[str] = []
        self._free = asyncio.Event()

    def recover(self) -> None:
        """Answer what waits, and everything that comes."""
        self.hangs = False
        self._free.set()

    async def score(self, query: str) -> ScoredQuery:
        """Score one query; those called ``quick`` always."""
        self.queries.append(query)
        if self.error is not None:
            raise self.error
        if self.hangs and query != "quick":
            await self._free.wait()
        self.answered.append(query)
        return SCORED

    def score_rows(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> RouterScores:
        """No test does."""
        raise NotImplementedError

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Wait as a query does."""
        await self.score(texts[0])
        return np.ones((len(texts), 1), np.float32)


def guarded(backend: Backend, timeout_s: float = LATE_S) -> RouterBreaker:
    """The backend behind a breaker."""
    up = Gauge("up", "up", registry=CollectorRegistry())
    return RouterBreaker(backend, timeout_s=lambda: timeout_s, up=up, retry_s=0)


async def is_so(condition: Callable[[], bool]) -> None:
    """Let the loop run until it is so; a test that waits for ever is ended by pytest."""
    while not condition():  # noqa: ASYNC110 - it is no event
        await asyncio.sleep(0.001)


@on_loop
async def test_a_backend_that_hangs_is_waited_for_once() -> None:
    """The first query finds out; what waits is let go, and what comes later is not sent."""
    backend = Backend()
    async with guarded(backend) as router:
        patient = asyncio.create_task(router.score("patient", NEVER_S))
        embedding = asyncio.create_task(router.embed(["answer"]))
        await is_so(lambda: len(backend.queries) == 2)
        with pytest.raises(RouterOut):
            await router.score("first", LATE_S)
        with pytest.raises(RouterOut):
            await patient
        with pytest.raises(TimeoutError):
            await embedding
        assert router.is_out
        for _ in range(100):
            with pytest.raises(RouterOut):
                await router.score("later", NEVER_S)
            with pytest.raises(TimeoutError):
                await router.embed(["later"])
        assert set(backend.queries) == {"patient", "answer", "first", TRIAL}


@on_loop
async def test_a_backend_that_answers_its_trial_is_asked_again() -> None:
    """No request is the trial, and none is needed for it."""
    backend = Backend()
    async with guarded(backend) as router:
        with pytest.raises(RouterOut):
            await router.score("first", LATE_S)
        await is_so(lambda: backend.queries.count(TRIAL) == 3)
        assert router.is_out
        backend.recover()
        await is_so(lambda: not router.is_out)
        assert await router.score("next", NEVER_S) == SCORED
        assert backend.answered[-2:] == [TRIAL, "next"]


@on_loop
async def test_one_slow_query_opens_nothing_while_others_are_scored() -> None:
    """One query times out while others are scored: the breaker stays closed."""
    backend = Backend()
    async with guarded(backend) as router:
        slow = asyncio.create_task(router.score("slow", LATE_S))
        await is_so(lambda: backend.queries == ["slow"])
        await router.score("quick", NEVER_S)
        with pytest.raises(TimeoutError):
            await slow
        assert not router.is_out
        assert TRIAL not in backend.queries


@pytest.mark.parametrize("error", [RuntimeError("broken"), Overloaded("full")])
@on_loop
async def test_errors_cost_no_time_and_open_nothing(error: Exception) -> None:
    """Every request is told of its own."""
    backend = Backend()
    backend.error = error
    async with guarded(backend) as router:
        for _ in range(100):
            with pytest.raises(type(error)):
                await router.score("query", NEVER_S)
        assert not router.is_out
        assert TRIAL not in backend.queries


@on_loop
async def test_an_impatient_query_proves_nothing_and_starts_a_trial() -> None:
    """A client that waits shorter than routing may take puts the router out for nobody else."""
    backend = Backend()
    async with guarded(backend, NEVER_S) as router:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await router.score("impatient", LATE_S)
            assert not router.is_out
        await is_so(lambda: backend.queries.count(TRIAL) == 1)
        backend.recover()
        assert await router.score("next", NEVER_S) == SCORED
    hanging = Backend()
    async with guarded(hanging) as router:
        with pytest.raises(TimeoutError):
            await router.score("impatient", LATE_S / 2)
        await is_so(lambda: router.is_out)  # by the trial, which hangs too
