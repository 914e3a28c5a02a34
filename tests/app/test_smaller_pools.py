"""Thresholds of smaller pools, which clients choose: bounded work and memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations

import pytest

from app import lifespan
from app.errors import Overloaded
from app.routing import service
from app.routing.active_calibration import ActiveCalibration
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration
from tests.kit.gateway import ONE, POOL, Serve
from tests.kit.monitored import calibration_record

Part = Callable[[tuple[str, ...]], Awaitable[Calibration]]

PAIRS = tuple(combinations(POOL, 2))


class HeldSorting:
    """Holds up the sorting of smaller pools' scores until ``free`` is set, and counts it."""

    def __init__(self) -> None:
        self.pools: list[tuple[str, ...]] = []
        self.threads: set[str] = set()
        self.begun = threading.Event()
        self.free = threading.Event()

    def __call__(self, calibration: Calibration) -> None:
        """Sort on a thread."""
        if calibration.pool != POOL:
            self.begun.set()
            assert self.free.wait(30)
            self.pools.append(calibration.pool)
            self.threads.add(threading.current_thread().name.partition("_")[0])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldSorting:
    """The stub in the place of ``Calibration.sort_scores``."""
    stub = HeldSorting()
    monkeypatch.setattr(Calibration, "sort_scores", lambda each: stub(each))
    return stub


def play(story: Callable[[Part], Awaitable[None]], **limits: int) -> None:
    """Run a story with the function that returns the part of a pool."""
    made = calibration_record(rows=40)

    async def run() -> None:
        calibrations = ActiveCalibration(Metrics(), **limits)
        await calibrations.swap(made)
        async with asyncio.timeout(60):
            await story(lambda names: calibrations.sub_pool(made, names))

    asyncio.run(run())


def test_past_the_limit_no_further_part_is_begun(held: HeldSorting) -> None:
    """New pools are refused at once; requests for a pool being computed wait for it."""
    one, two, three = PAIRS

    async def story(part: Part) -> None:
        first = [asyncio.ensure_future(part(names)) for names in (one, two, two)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await part(three)
        held.free.set()
        assert [(await each).pool for each in first] == [one, two, two]
        assert (await part(three)).pool == three
        assert sorted(held.pools) == sorted(PAIRS)
        assert held.threads == {"racer-threshold"}  # parts hold up no other work

    play(story, max_pending=2)


def test_the_most_recently_used_pool_stays_cached(held: HeldSorting) -> None:
    """An outage's pool, which every request asks for, outlives those that one client invents."""
    held.free.set()
    outage, *invented = PAIRS

    async def story(part: Part) -> None:
        for names in (outage, invented[0], outage, invented[1], outage):
            assert (await part(names)).pool == names
        assert held.pools == [outage, *invented]

    play(story, max_parts=2)


def test_whose_threshold_is_not_begun_is_answered_by_the_whole_smaller_pool(
    serve: Serve, held: HeldSorting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once and with the guarantee: calling the whole pool needs no threshold."""
    limited = partial(ActiveCalibration, max_pending=1)
    monkeypatch.setattr(lifespan, "ActiveCalibration", limited)
    gateway = serve()
    with ThreadPoolExecutor(1) as other:
        first = other.submit(gateway.route, ONE, candidates=POOL[1:])
        assert held.begun.wait(30)
        decision = gateway.route(ONE, candidates=POOL[:2])
        held.free.set()
        assert "sub_pool_pending_whole_pool" not in first.result()["certificate"]["reasons"]
    assert sorted(decision["selected"]) == sorted(POOL[:2])
    assert "sub_pool_pending_whole_pool" in decision["certificate"]["reasons"]
    assert decision["certificate"]["holds"]
    assert decision["certificate"]["n"] == 0, "no row set a threshold"
    assert gateway.route(ONE, candidates=POOL[:2])["selected"] == ["adder"]


def test_a_threshold_that_takes_too_long_is_not_waited_for(
    serve: Serve, held: HeldSorting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its computation goes on, and the next request finds it."""
    gateway = serve()
    with monkeypatch.context() as patch:
        patch.setattr(service, "SUB_POOL_WAIT_S", 0.02)
        certificate = gateway.route(ONE, candidates=POOL[:2])["certificate"]
    assert certificate["reasons"].count("sub_pool_pending_whole_pool") == 1
    assert certificate["holds"]
    held.free.set()
    assert gateway.route(ONE, candidates=POOL[:2])["selected"] == ["adder"]
    assert held.pools == [POOL[:2]]


def test_requests_past_the_limit_compute_nothing_of_their_own(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pools are not read from the rows: the work of a refused request knows no row."""
    monkeypatch.setattr(lifespan, "ActiveCalibration", partial(ActiveCalibration, max_pending=0))
    gateway = serve()
    read: list[tuple[str, ...]] = []

    def restrict(_: Calibration, names: tuple[str, ...]) -> Calibration:
        read.append(names)
        raise AssertionError

    monkeypatch.setattr(Calibration, "restrict", restrict)
    for alpha in (0.1, 0.2, 0.3):
        decision = gateway.route(ONE, candidates=POOL[1:], alpha=alpha)
        assert sorted(decision["selected"]) == sorted(POOL[1:])
        assert decision["certificate"]["guarantee"]["pool"] == list(POOL[1:])
        assert decision["certificate"]["guarantee"]["alpha"] == alpha
    assert read == []
