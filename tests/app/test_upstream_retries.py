"""Retries: conditions, pauses, choice of replica and budget."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import (
    UpstreamError,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.settings import FleetSettings
from app.upstream.retries import FLOOR, WINDOW_S, Retries, RetryBudget
from tests.kit.fleets import CHAT, asking, opened, soon, stream_into, streamed
from tests.kit.hostile.answers import EVENTS, event, piece
from tests.kit.hostile.exchange import Exchange
from tests.kit.hostile.replicas import answers, fails, hangs, replicas
from tests.kit.waiting import eventually


def test_the_budget_is_a_share_of_the_calls_of_any_ten_seconds() -> None:
    """Calls every 10 ms for 40 s, all of which fail: every window holds a fifth at most."""
    now = 0.0
    budget = RetryBudget(0.2, clock=lambda: now)
    calls, retries = deque[float](), deque[float]()
    for number in range(4_000):
        now = number / 100
        budget.record_call()
        calls.append(now)
        if budget.take():
            retries.append(now)
        for times in (calls, retries):
            while times[0] <= now - WINDOW_S if times else False:
                times.popleft()
        assert len(retries) <= max(FLOOR, 0.2 * len(calls))
    assert len(retries) >= 0.19 * len(calls)  # and what is allowed is made use of


@given(
    share=st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0]),
    history=st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 3.0, 10.0, 60.0])), max_size=200
    ),
)
@example(share=0.2, history=[(True, 11.0), (False, 0.0)] * 100)  # a call every 11 s, all fail
@example(  # the calls leave the ten seconds before the retries do
    share=0.2,
    history=[(True, 0.0)] * 100 + [(False, 3.0)] * 3 + [(False, 0.0)] * 17 + [(True, 3.0)],
)
def test_retries_are_at_most_three_or_a_share_of_the_calls(
    share: float, history: list[tuple[bool, float]]
) -> None:
    """At each retry, since the start and in ten seconds: retries <= max(3, share x calls)."""
    now = 0.0
    budget = RetryBudget(share, clock=lambda: now)
    calls, retries = list[float](), list[float]()
    for is_call, wait_s in history:
        now += wait_s
        if is_call:
            budget.record_call()
            calls.append(now)
        elif budget.take():
            retries.append(now)
            for since in (-1.0, now - WINDOW_S):
                count = sum(each > since for each in calls)
                most = max(FLOOR, share * count) if share else 0
                assert sum(each > since for each in retries) <= most + 1e-9


def test_a_quiet_candidate_has_a_fifth_of_its_calls_repeated() -> None:
    """A call every 20 s, all of which fail: 40 of 200 are repeated, not none and not all."""
    now = 0.0
    budget = RetryBudget(0.2, clock=lambda: now)
    retries = 0
    for number in range(200):
        now = 20.0 * number
        budget.record_call()
        retries += budget.take()
    assert 38 <= retries <= 40


def test_the_first_retries_are_allowed_unless_none_are() -> None:
    """A share of nothing would leave a gateway without any after its start."""
    budget = RetryBudget(0.2, clock=lambda: 0.0)
    budget.record_call()
    assert [budget.take() for _ in range(5)] == [True] * FLOOR + [False] * 2
    assert not RetryBudget(0.0, clock=lambda: 0.0).take()


def test_pauses_are_drawn_from_zero_to_a_limit_that_doubles() -> None:
    """Full jitter: retries of many calls do not arrive together."""
    retries = Retries(FleetSettings(attempts=5, retry_share=1.0), random.Random(1))
    for _ in range(10_000):
        retries.record_call("m")
    for attempt, longest in ((1, 0.05), (2, 0.1), (3, 0.2), (4, 0.4)):
        drawn = [
            pause
            for _ in range(500)
            if (
                pause := retries.pause_s(
                    "m", UpstreamUnavailable("no"), attempt=attempt, left_s=60, elsewhere=False
                )
            )
            is not None
        ]
        assert len(drawn) == 500
        assert 0 <= min(drawn) < longest / 20
        assert longest * 0.95 < max(drawn) <= longest


def pause(exc: UpstreamError, **changes: object) -> float | None:
    """What comes of one failure, where nothing else is in the way."""
    how = {"attempt": 1, "left_s": 60.0, "elsewhere": False} | changes
    retries = Retries(FleetSettings(attempts=3), random.Random(1))
    return retries.pause_s("m", exc, **how)  # pyright: ignore[reportArgumentType]


def test_retry_after_is_waited_for_if_there_is_time_and_no_other_replica() -> None:
    """Another replica is called at once: the pause concerns only the one that sent it."""
    limited = UpstreamRateLimited("no", status=429, retry_after_s=7)
    assert pause(limited) == 7
    assert pause(limited, left_s=6.0) is None
    elsewhere = pause(limited, elsewhere=True)
    assert elsewhere is not None
    assert elsewhere < 0.1


def test_a_timeout_is_tried_elsewhere_or_not_at_all() -> None:
    """The same server would likely be as slow, and twice as busy."""
    assert pause(UpstreamTimeout("late")) is None
    assert pause(UpstreamTimeout("late"), elsewhere=True) is not None
    assert pause(UpstreamTimeout("late"), elsewhere=True, left_s=0.0) is None


def test_a_broken_document_is_asked_for_once_more_only() -> None:
    """A model that writes nonsense twice goes on doing so."""
    broken = UpstreamError("no", kind="upstream_invalid_response")
    assert pause(broken) is not None
    assert pause(broken, attempt=2) is None
    assert pause(UpstreamUnavailable("no"), attempt=2) is not None
    assert pause(UpstreamUnavailable("no"), attempt=3) is None


@pytest.mark.parametrize(
    "kind",
    [
        "upstream_rejected",
        "upstream_auth_error",
        "upstream_tls_error",
        "upstream_redirect",
        "upstream_response_too_large",
        "upstream_encoding",
        "upstream_protocol_error",
        "upstream_overloaded",
        "upstream_empty",
    ],
)
def test_permanent_failures_are_not_retried(kind: str) -> None:
    """Nor what would make a crowded gateway more crowded."""
    assert pause(UpstreamError("no", kind=kind), elsewhere=True) is None


def test_with_all_candidates_failing_calls_grow_by_a_fifth() -> None:
    """300 requests of which every call fails: the server counts 360 calls at most."""

    async def test() -> None:
        rules = {"failures": 10_000, "attempts": 5}
        async with replicas(fails("500")) as [one], opened({"m": [one]}, **rules) as fleet:

            async def request(number: int) -> None:
                with pytest.raises(UpstreamError):
                    await fleet.ask("m", CHAT, asking(f"{number}"), deadline=soon())

            for start in range(0, 300, 30):
                await asyncio.gather(*(request(n) for n in range(start, start + 30)))
            assert 340 <= len(one.asked) <= 360

    uvloop.run(test())


def test_retries_of_one_flapping_candidate_are_a_fifth_of_its_own_calls() -> None:
    """One of three candidates fails every call; the calls of the others buy it no retries."""

    async def test() -> None:
        async with (
            replicas(fails("500"), answers, answers) as [flapping, one, two],
            opened({"m": [flapping], "n": [one], "o": [two]}, failures=10_000) as fleet,
        ):

            async def request(number: int) -> None:
                await asyncio.gather(
                    *(
                        fleet.ask(name, CHAT, asking(f"{number}"), deadline=soon())
                        for name in ("m", "n", "o")
                    ),
                    return_exceptions=True,
                )

            for start in range(0, 100, 20):
                await asyncio.gather(*(request(n) for n in range(start, start + 20)))
            assert [len(each.asked) for each in (one, two)] == [100, 100]
            assert 115 <= len(flapping.asked) <= 120

    uvloop.run(test())


def test_the_budgets_of_all_candidates_share_that_of_the_process() -> None:
    """Each has its floor of retries; a hundred quiet candidates do not get three each."""
    process = RetryBudget(0.2, clock=lambda: 0.0)
    budgets = [RetryBudget(0.2, within=process, clock=lambda: 0.0) for _ in range(100)]
    for budget in budgets:
        budget.record_call()
    assert sum(budget.take() for budget in budgets for _ in range(3)) == 20


def test_a_retry_goes_to_another_replica() -> None:
    """Its success is the request's success."""

    async def test() -> None:
        async with replicas(fails("500"), answers) as [bad, good]:
            rules = {"failures": 10_000, "retry_share": 1.0}
            async with opened({"m": [bad, good]}, **rules) as fleet:
                attempts = [
                    (await fleet.ask("m", CHAT, asking(f"{n}"), deadline=soon())).attempts
                    for n in range(20)
                ]
            assert set(attempts) == {1, 2}
            assert (len(bad.asked), len(good.asked)) == (attempts.count(2), 20)

    uvloop.run(test())


def test_a_retry_avoids_the_replica_that_failed_even_if_the_others_are_busy() -> None:
    """The one that fails at once would always have the fewest calls."""

    async def hangs_once(exchange: Exchange) -> None:
        await (hangs if exchange.number == 0 else answers)(exchange)

    async def test() -> None:
        async with (
            replicas(fails("500"), hangs_once) as [bad, busy],
            opened({"m": [bad, busy]}) as fleet,
        ):
            first = asyncio.create_task(fleet.ask("m", CHAT, asking("1"), deadline=soon()))
            await eventually(lambda: len(busy.asked) == 1)
            failed = len(bad.asked)
            assert (await fleet.ask("m", CHAT, asking("2"), deadline=soon())).attempts == 2
            assert (len(bad.asked), len(busy.asked)) == (failed + 1, 2)
            first.cancel()

    uvloop.run(test())


def test_retry_after_is_honoured_by_the_only_replica() -> None:
    """The second call comes no sooner than the server's ``retry-after``."""

    async def limited(exchange: Exchange) -> None:
        arrived.append(time.monotonic())
        if exchange.number == 0:
            await fails("429:1")(exchange)
        else:
            await answers(exchange)

    arrived: list[float] = []

    async def test() -> None:
        async with replicas(limited) as [one], opened({"m": [one]}) as fleet:
            assert (await fleet.ask("m", CHAT, asking(), deadline=soon())).attempts == 2
            assert arrived[1] - arrived[0] >= 1
            one.play = fails("429:9")
            started = time.monotonic()
            with pytest.raises(UpstreamRateLimited) as caught:
                await fleet.ask("m", CHAT, asking(), deadline=soon(5))
            assert time.monotonic() - started < 4
            assert caught.value.retry_after_s == 9
            assert len(one.asked) == 3

    uvloop.run(test())


def test_a_stream_is_begun_again_before_its_first_piece_and_never_after() -> None:
    """What went out cannot be taken back."""

    async def cut_before(exchange: Exchange) -> None:
        await exchange.begin(EVENTS)
        exchange.fin()

    async def cut_after(exchange: Exchange) -> None:
        await exchange.begin(EVENTS)
        await exchange.chunk(event(piece("m", "4")))
        await asyncio.sleep(0.05)
        exchange.fin()

    async def first_cut(exchange: Exchange) -> None:
        await (cut_before if exchange.number == 0 else answers)(exchange)

    async def test() -> None:
        async with replicas(first_cut) as [one], opened({"m": [one]}) as fleet:
            ask = asking(stream=True)
            assert await streamed(fleet, ask, soon()) == ["", "4", "2", ""]
            assert len(one.asked) == 2
            one.play = cut_after
            seen: list[str] = []
            with pytest.raises(UpstreamError) as caught:
                await stream_into(seen, fleet, ask, soon())
            assert caught.value.kind == "upstream_disconnected"
            assert (seen, len(one.asked)) == (["4"], 3)

    uvloop.run(test())


def test_a_retry_can_be_cancelled_while_it_waits() -> None:
    """The pause is no time in which a request cannot end."""

    async def test() -> None:
        play = fails("503:9")
        async with replicas(play) as [one], opened({"m": [one]}) as fleet:
            task = asyncio.create_task(fleet.ask("m", CHAT, asking(), deadline=soon()))
            await eventually(lambda: len(one.asked) == 1)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 4)

    uvloop.run(test())
