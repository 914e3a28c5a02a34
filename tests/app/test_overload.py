"""Load shedding past the capacity: admitted and refused requests, both decided soon."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import settings
from app.http.admission_queue import ADMITTED_PER_ITERATION, MAX_BURST, AdmissionQueue
from tests.kit.gateway import DATA_KEY, ENVIRONMENT, ONE, Gateway, ServerThread, configure
from tests.kit.loops import on_loop

# The law.


class Loop:
    """Counted passes of an event loop, and who was let in after each."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.queue = AdmissionQueue(self.waiting.append)
        self.came: list[asyncio.Task[None]] = []

    async def arrive(self, number: int) -> None:
        """Let ``number`` requests arrive; those that need not wait are admitted."""
        self.came += [asyncio.create_task(self.queue.admit()) for _ in range(number)]
        await asyncio.sleep(0)

    async def go(self) -> None:
        """Run one loop iteration."""
        now = self.waiting.copy()
        self.waiting.clear()
        for call in now:
            call()
        await asyncio.sleep(0)

    @property
    def inside(self) -> int:
        """The number of requests admitted so far."""
        return sum(each.done() and not each.cancelled() for each in self.came)

    async def admit_all(self) -> int:
        """Run iterations until the queue is empty; return their number."""
        passes = 0
        while not all(each.done() for each in self.came):
            passes += 1
            await self.go()
        return passes


@given(arrivals=st.lists(st.integers(0, 3 * MAX_BURST), max_size=40))
@on_loop
async def test_no_run_of_iterations_admits_more_than_its_share(arrivals: list[int]) -> None:
    """Between two iterations: ADMITTED_PER_ITERATION each, and one burst. At the end all are in."""
    loop, inside = Loop(), [0]
    for number in arrivals:
        await loop.arrive(number)
        inside.append(loop.inside)
        await loop.go()
    for first in range(len(inside)):
        for last in range(first, len(inside)):
            assert inside[last] - inside[first] <= MAX_BURST + ADMITTED_PER_ITERATION * (
                last - first
            )
    line = len(loop.came) - loop.inside
    assert await loop.admit_all() == math.ceil(line / ADMITTED_PER_ITERATION)


@given(
    arrivals=st.lists(st.integers(0, ADMITTED_PER_ITERATION), max_size=100),
    before=st.integers(0, MAX_BURST),
)
@on_loop
async def test_no_request_waits_while_the_loop_keeps_up(arrivals: list[int], before: int) -> None:
    """Arrivals per iteration stay within the admitted number, after any burst before."""
    loop = Loop()
    for number in (before, *arrivals):
        await loop.arrive(number)
        assert loop.inside == len(loop.came)
        await loop.go()


@given(
    number=st.integers(MAX_BURST + 1, 3 * MAX_BURST), leaving=st.sets(st.integers(0, 3 * MAX_BURST))
)
@on_loop
async def test_admission_is_first_come_first_served_without_cancelled_requests(
    number: int, leaving: set[int]
) -> None:
    """First come, first served."""
    loop = Loop()
    await loop.arrive(number)
    line = loop.came[MAX_BURST:]
    staying = [each for i, each in enumerate(line) if i not in leaving]
    for each in set(line) - set(staying):
        each.cancel()
    await asyncio.sleep(0)
    for passes in range(1, math.ceil(len(staying) / ADMITTED_PER_ITERATION) + 1):
        await loop.go()
        done = [each.done() for each in staying]
        assert done == [i < ADMITTED_PER_ITERATION * passes for i in range(len(staying))]


@given(used=st.integers(1, 2 * MAX_BURST))
@on_loop
async def test_an_idle_loop_goes_to_sleep_with_all_its_room(used: int) -> None:
    """The passes are counted only until everything is saved again: counting keeps a loop awake."""
    loop = Loop()
    await loop.arrive(used)
    assert len(loop.waiting) == 1
    for _ in range(math.ceil(used / ADMITTED_PER_ITERATION)):
        await loop.go()
    assert not loop.waiting
    await loop.arrive(MAX_BURST + 1)
    assert loop.inside == used + MAX_BURST


STEPS, STEP_S = 10, 0.0004  # of a request: 4 ms of the loop, so 250 requests a second
IN_FLIGHT = 256


async def offered(times_capacity: float, passes: int) -> tuple[int, list[int]]:
    """How many were refused, and how many were under way at each pass, on a simulated loop."""
    loop = Loop()
    under_way: list[int] = []  # steps that each request inside still has
    counts: list[int] = []
    refused, due = 0, 0.0
    for _ in range(passes):
        due += STEP_S * max(1, len(under_way)) * times_capacity / (STEPS * STEP_S)
        under_way = [left - 1 for left in under_way if left > 1]
        knocking, due = int(due), due % 1
        line = len(loop.came) - loop.inside
        room = max(0, IN_FLIGHT - len(under_way) - line)
        refused += max(0, knocking - room)
        before = loop.inside
        await loop.arrive(min(knocking, room))
        await loop.go()
        under_way += [STEPS] * (loop.inside - before)
        counts.append(len(under_way))
        loop.came = [each for each in loop.came if not each.done()]
    return refused, counts


@pytest.mark.parametrize("times_capacity", [1.5, 2.0, 5.0, 100.0])
def test_concurrent_requests_do_not_grow_with_the_offered_load(times_capacity: float) -> None:
    """Steps times admissions, after the first burst; the loop is never idle meanwhile."""
    refused, counts = asyncio.run(offered(times_capacity, 2_000))
    assert max(counts[200:]) <= ADMITTED_PER_ITERATION * (STEPS + 1)
    assert min(counts[200:]) > 0
    assert refused > 0


# Admission and access control.


def test_a_burst_is_answered_whole(gateway: Gateway) -> None:
    """As many at once as may be in flight: the last of them wait, and no client is refused."""

    async def burst() -> list[int]:
        async with httpx2.AsyncClient(
            base_url=gateway.url, headers={"authorization": f"Bearer {DATA_KEY}"}, timeout=60,
            limits=httpx2.Limits(max_connections=None), verify=False, trust_env=False,
        ) as client:  # fmt: skip
            body = {"query": ONE}
            answers = [client.post("/route", json=body) for _ in range(200)]
            return [each.status_code for each in await asyncio.gather(*answers)]

    assert asyncio.run(burst()) == [200] * 200


# The listener.


class _Slow(threading.Event):
    """Set by the gateway once it serves: from then on its loop makes as many passes as are let."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = threading.Semaphore(0)
        self.is_over = False

    def set(self) -> None:
        super().set()
        self._pass(asyncio.get_running_loop())

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        self.passes.acquire()
        if not self.is_over:
            loop.call_soon(self._pass, loop)


def test_a_busy_loop_accepts_many_connections_in_one_pass(tmp_path: Path, artifact: Path) -> None:
    """64 connect at once; one a pass would be 64 passes until the last of them is heard."""
    path = configure(tmp_path, artifact, "http://127.0.0.1:1/v1")
    slow = _Slow()
    with ServerThread(*settings.load(path, ENVIRONMENT), slow) as thread:
        address = thread.listener.getsockname()
        clients = [socket.create_connection(address, timeout=20) for _ in range(64)]
        for each in clients:
            each.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        slow.passes.release(32)
        try:
            for each in clients:
                assert each.recv(2**10).startswith(b"HTTP/1.1 200 ")
        finally:
            slow.is_over = True
            slow.passes.release()
            for each in clients:
                each.close()
