"""Replicas of a candidate: load balancing, ejection and readmission."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.errors import UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.telemetry.metrics import Metrics
from tests.kit.fleets import CHAT, asking, opened, soon
from tests.kit.hostile.exchange import Exchange
from tests.kit.hostile.replicas import Replica, answers, fails, hangs, replicas
from tests.kit.loops import on_loop
from tests.kit.waiting import eventually

QUICK: dict[str, Any] = {"eject_s": 0.3, "eject_max_s": 5, "retry_share": 1.0}


async def ask(fleet: Any, text: str, name: str = "m") -> int:
    """Ask, and say how many calls it took."""
    return (await fleet.ask(name, CHAT, asking(text), deadline=soon())).attempts


async def fail(fleet: Any, *texts: str, name: str = "m") -> None:
    """Ask what will not be answered."""
    for text in texts:
        with pytest.raises(UpstreamError):
            await ask(fleet, text, name)


def states(fleet: Any, name: str = "m") -> list[str]:
    """How a candidate's replicas stand."""
    return [each.state for each in fleet.health()[name]]


@on_loop
async def test_the_replica_with_the_fewest_calls_is_next() -> None:
    """One that is slow gets few: the others take what it would have had."""
    quick_answers = 0

    async def slow(exchange: Exchange) -> None:
        await eventually(lambda: quick_answers >= 110)
        await answers(exchange)

    async def quick(exchange: Exchange) -> None:
        nonlocal quick_answers
        await asyncio.sleep(0.01)
        await answers(exchange)
        quick_answers += 1

    async with replicas(slow, quick, quick) as its, opened({"m": its}) as fleet:
        texts = iter(map(str, range(120)))

        async def client() -> None:
            for text in texts:
                assert await ask(fleet, text) == 1

        await asyncio.gather(*(client() for _ in range(6)))
        counts = [len(each.asked) for each in its]
        assert sum(counts) == 120
        assert counts[0] <= 20  # 40, if they were called in turn
        assert min(counts[1:]) >= 40


@on_loop
async def test_a_dead_replica_is_never_noticed() -> None:
    """It dies in the middle of the traffic and comes back; every request is answered."""
    async with (
        replicas(answers, answers) as [one, two],
        opened({"m": [one, two]}, **QUICK) as fleet,
    ):
        number, failures = 0, list[UpstreamError]()
        over = asyncio.Event()

        async def client() -> None:
            nonlocal number
            while not over.is_set():
                number += 1
                try:
                    await ask(fleet, f"{number}")
                except UpstreamError as exc:
                    failures.append(exc)
                await asyncio.sleep(0.005)

        clients = [asyncio.create_task(client()) for _ in range(8)]
        await eventually(lambda: number > 100)
        await two.stop()
        await eventually(lambda: states(fleet) == ["in", "out"])
        before = number
        await eventually(lambda: number > before + 100)
        await two.start()
        calls_before = len(two.asked)
        await eventually(lambda: len(two.asked) > calls_before + 5)
        await eventually(lambda: states(fleet) == ["in", "in"])
        over.set()
        await asyncio.gather(*clients)
        assert failures == []


@on_loop
async def test_a_sick_replica_is_left_out_until_a_probe_finds_it_well() -> None:
    """No request pays for finding out."""
    async with (
        replicas(fails("500"), answers) as [bad, good],
        opened({"m": [bad, good]}, **QUICK) as fleet,
    ):
        bad.healthy = False
        number = 0
        while states(fleet) != ["out", "in"]:
            number += 1
            await ask(fleet, f"{number}")
            assert number < 20
        before = len(bad.asked)
        assert before == 5
        for each in range(20):
            assert await ask(fleet, f"out {each}") == 1
        await eventually(lambda: bad.probes >= 2)
        assert states(fleet) == ["out", "in"]
        assert len(bad.asked) == before
        bad.healthy, bad.play = True, answers
        await eventually(lambda: states(fleet) == ["probation", "in"])
        for each in range(4):
            await ask(fleet, f"back {each}")
        assert states(fleet) == ["in", "in"]
        assert len(bad.asked) > before


@pytest.mark.parametrize("status", ["400", "401", "404", "422", "429"])
@on_loop
async def test_client_errors_eject_no_replica(status: str) -> None:
    """At any number of them."""
    async with (
        replicas(fails(status), answers) as [one, other],
        opened({"m": [one], "n": [other]}, attempts=1) as fleet,
    ):
        await fail(fleet, *map(str, range(40)))
        assert states(fleet) == ["in"]


@on_loop
async def test_short_client_deadlines_eject_no_replica() -> None:
    """A request that allows 20 ms says nothing about a server; the configured limit does."""
    patient = {"timeout_s": 0.2}
    async with replicas(hangs, answers) as [one, other]:
        candidates = {"m": [one], "n": [other]}
        async with opened(candidates, candidate=patient, attempts=1) as fleet:
            for number in range(10):
                with pytest.raises(UpstreamTimeout):
                    await fleet.ask("m", CHAT, asking(f"{number}"), deadline=soon(0.02))
            assert states(fleet) == ["in"]
            await fail(fleet, *map(str, range(5)))
            assert states(fleet) == ["out"]


@on_loop
async def test_a_candidate_without_replicas_is_down_and_fails_at_once() -> None:
    """Other candidates take its traffic; no request waits for it."""
    metrics = Metrics()
    async with replicas(answers, answers) as [one, other]:
        rules = QUICK | {"eject_s": 5.0}
        async with opened(
            {"m": [one], "n": [other]}, metrics, candidate={"concurrency": 1}, **rules
        ) as fleet:
            await one.stop()
            await fail(fleet, "1")
            assert fleet.down() == {"m"}
            for text in ("2", "3"):  # none of them keeps the only place
                with pytest.raises(UpstreamUnavailable) as caught:
                    await ask(fleet, text)
                assert caught.value.retry_after_s is not None
                assert 0 < caught.value.retry_after_s <= 5
            assert await ask(fleet, "3", "n") == 1
            text = metrics.render().decode()
            assert 'racer_candidate_up{candidate="m"} 0.0' in text
            assert 'racer_candidate_up{candidate="n"} 1.0' in text
            assert 'racer_candidate_ejections_total{candidate="m"} 1.0' in text
            assert 'racer_candidate_replicas{candidate="m",state="out"} 1.0' in text
            assert 'racer_candidate_replicas{candidate="m",state="in"} 0.0' in text
            assert 'racer_candidate_retries_total{candidate="m"} 1.0' in text


@on_loop
async def test_when_all_candidates_are_down_all_are_called() -> None:
    """Otherwise no request could be answered; the first success closes the breaker."""
    async with replicas(answers, answers) as [one, other]:
        rules = QUICK | {"eject_s": 60.0}
        async with opened({"m": [one], "n": [other]}, **rules) as fleet:
            await one.stop()
            await other.stop()
            await fail(fleet, "1", "2")
            await fail(fleet, "1", "2", name="n")
            assert (states(fleet), states(fleet, "n")) == (["out"], ["out"])
            assert fleet.down() == frozenset()
            await one.start()
            assert await ask(fleet, "3") == 1
            assert states(fleet) == ["in"]
            assert fleet.down() == {"n"}


@on_loop
async def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    """And is out at the second try."""
    async with replicas(answers) as [other]:
        nowhere = Replica(answers, host="no-such-host.invalid", port=80)
        async with opened({"m": [nowhere], "n": [other]}, **QUICK) as fleet:
            with pytest.raises(UpstreamUnavailable):
                await ask(fleet, "1")
            assert fleet.down() == {"m"}


@on_loop
async def test_nothing_is_left_of_a_closed_fleet() -> None:
    """No task, while a replica is out and its probe waits."""
    async with replicas(answers, answers) as [one, other]:
        before = len(asyncio.all_tasks())
        async with opened({"m": [one], "n": [other]}) as fleet:
            await one.stop()
            await fail(fleet, "1", "2")
            assert states(fleet) == ["out"]
        assert len(asyncio.all_tasks()) == before
