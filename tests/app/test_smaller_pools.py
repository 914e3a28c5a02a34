"""Thresholds of smaller pools: clients choose which, so work and memory for them are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import combinations

import pytest

from app.errors import Overloaded
from app.routing import active_calibration
from app.routing.active_calibration import ActiveCalibration
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration
from tests.support.gateway import ONE, POOL, Serve
from tests.support.monitored import calibration_record

Part = Callable[[tuple[str, ...]], Awaitable[Calibration]]

PAIRS = tuple(combinations(POOL, 2))


class Warming:
    """Stands in for what a thread does to a part: held up until it is let go, and counted."""

    def __init__(self) -> None:
        self.pools: list[tuple[str, ...]] = []
        self.threads: set[str] = set()
        self.free = threading.Event()

    def __call__(self, calibration: Calibration) -> Calibration:
        """On a thread."""
        assert self.free.wait(30)
        self.pools.append(calibration.pool)
        self.threads.add(threading.current_thread().name.partition("_")[0])
        return calibration


@pytest.fixture
def warming(monkeypatch: pytest.MonkeyPatch) -> Warming:
    """How parts of pools are computed."""
    stub = Warming()
    monkeypatch.setattr(active_calibration, "_warmed", stub)
    return stub


def play(story: Callable[[Part], Awaitable[None]]) -> None:
    """Run a story with what asks for the part of a pool."""
    made = calibration_record(rows=40)

    async def run() -> None:
        calibrations = ActiveCalibration(Metrics())
        await calibrations.swap(made)
        async with asyncio.timeout(60):
            await story(lambda names: calibrations.sub_pool(made, names))

    asyncio.run(run())


def test_past_the_limit_no_further_part_is_begun(
    warming: Warming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused at once; whoever asks for one that is under way waits for it, and later all do."""
    monkeypatch.setattr(active_calibration, "_MAX_PENDING", 2)
    one, two, three = PAIRS

    async def story(part: Part) -> None:
        first = [asyncio.ensure_future(part(names)) for names in (one, two, two)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await part(three)
        warming.free.set()
        assert [(await each).pool for each in first] == [one, two, two]
        assert (await part(three)).pool == three
        assert sorted(warming.pools) == sorted(PAIRS)
        assert warming.threads == {"racer-threshold"}  # parts hold up no other work

    play(story)


def test_the_part_that_is_asked_for_most_lately_is_kept(
    warming: Warming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage's pool, which every request asks for, outlives those that one client invents."""
    monkeypatch.setattr(active_calibration, "_MAX_PARTS", 2)
    warming.free.set()
    outage, *invented = PAIRS

    async def story(part: Part) -> None:
        for names in (outage, invented[0], outage, invented[1], outage):
            assert (await part(names)).pool == names
        assert warming.pools == [outage, *invented]

    play(story)


def test_whose_threshold_is_not_begun_is_answered_by_the_whole_smaller_pool(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once and with the guarantee: no threshold is needed to call everyone."""
    gateway = serve()
    with monkeypatch.context() as full:
        full.setattr(active_calibration, "_MAX_PENDING", 0)
        decision = gateway.route(ONE, candidates=POOL[:2])
    assert sorted(decision["selected"]) == sorted(POOL[:2])
    assert "sub_pool_pending_whole_pool" in decision["certificate"]["reasons"]
    assert gateway.route(ONE, candidates=POOL[:2])["selected"] == ["adder"]
