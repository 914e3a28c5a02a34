"""Retries: conditions, pauses, choice of replica and budget."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from itertools import cycle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import UpstreamError, UpstreamRateLimited, UpstreamTimeout, UpstreamUnavailable
from app.settings import FleetSettings
from app.upstream.retries import FLOOR, WINDOW_S, Retries, RetryBudget
from tests.kit.fleets import CHAT, asking, opened, soon, stream_into, streamed
from tests.kit.hostile.answers import EVENTS, event, piece
from tests.kit.hostile.exchange import Exchange
from tests.kit.hostile.replicas import answers, fails, hangs, replicas
from tests.kit.loops import on_loop
from tests.kit.waiting import eventually


def test_the_budget_is_a_share_of_the_calls_of_any_ten_seconds() -> None:
    """Calls every 10 ms for 40 s, all of which fail: every window holds a fifth at most."""
    now = 0.0
    budget = RetryBudget(0.2, clock=lambda: now)
    calls, retries = deque[float](), deque[float]()
    for number in range(4_000):
        now = number / 100
        budget.record_call("key")
        calls.append(now)
        if budget.take("key"):
            retries.append(now)
        for times in (calls, retries):
            while times[0] <= now - WINDOW_S if times else False:
                times.popleft()
        assert len(retries) <= max(FLOOR, 0.2 * len(calls))
    assert len(retries) >= 0.19 * len(calls)  # and what is allowed is made use of


@given(
    share=st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0]),
    callers=st.lists(st.sampled_from("abc"), min_size=1, max_size=20),
    history=st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 3.0, 10.0, 60.0])), max_size=200
    ),
)
@example(  # a call every 11 s, all fail
    share=0.2, callers=["a"], history=[(True, 11.0), (False, 0.0)] * 100
)
@example(  # the calls leave the ten seconds before the retries do
    share=0.2,
    callers=["a"],
    history=[(True, 0.0)] * 100 + [(False, 3.0)] * 3 + [(False, 0.0)] * 17 + [(True, 3.0)],
)
def test_retries_are_at_most_three_or_a_share_of_the_calls(
    share: float, callers: list[str], history: list[tuple[bool, float]]
) -> None:
    """At each retry, since the start and in ten seconds: retries <= max(3, share x calls)."""
    now = 0.0
    budget = RetryBudget(share, clock=lambda: now)
    calls, retries = list[float](), list[float]()
    for (is_call, wait_s), caller in zip(history, cycle(callers)):
        now += wait_s
        if is_call:
            budget.record_call(caller)
            calls.append(now)
        elif budget.take(caller):
            retries.append(now)
            for since in (-1.0, now - WINDOW_S):
                count = sum(each > since for each in calls)
                most = max(FLOOR, share * count) if share else 0
                assert sum(each > since for each in retries) <= most + 1e-9


@given(
    before_s=st.sampled_from([0.0, 5.0, 60.0]),
    honest=st.integers(1, 3),
    failing=st.integers(0, 200),
    rng=st.randoms(use_true_random=False),
)
def test_no_caller_uses_up_the_retries_of_the_others(
    before_s: float, honest: int, failing: int, rng: random.Random
) -> None:
    """However often one fails; each other one that has called has a retry left."""
    now = 0.0
    budget = RetryBudget(0.2, clock=lambda: now)
    others = [f"honest {number}" for number in range(min(honest, FLOOR - 1))]
    for other in others:
        budget.record_call(other)
    now += before_s
    for _ in range(failing):
        budget.record_call("mallory")
        for _ in range(rng.randint(0, 3)):
            budget.take("mallory")
    for other in others:
        budget.record_call(other)
    kept = others if before_s < WINDOW_S else others[:1]  # of those that were quiet, one
    assert all(budget.take(other) for other in kept)


@on_loop
async def test_a_failed_call_is_repeated_though_another_key_fails_all_the_time() -> None:
    """Its replica recovers at once, and the retries are not another key's alone."""

    async def flaps(exchange: Exchange) -> None:
        text = str(exchange.request.body)
        is_flap = "flaky" in text and text not in seen
        seen.add(text)
        await (fails("500") if "poison" in text or is_flap else answers)(exchange)

    seen = set[str]()
    async with (
        replicas(flaps) as [one],
        opened({"m": [one]}, failures=10_000, attempts=2) as fleet,
    ):
        assert (await fleet.ask("m", CHAT, asking("well"), deadline=soon(), caller="honest")).text
        for number in range(12):
            poison = asking(f"poison {number}")
            with pytest.raises(UpstreamError):
                await fleet.ask("m", CHAT, poison, deadline=soon(), caller="mallory")
        assert len(one.asked) == 1 + 12 + FLOOR - 1  # the rest is kept
        assert (await fleet.ask("m", CHAT, asking("flaky"), deadline=soon(), caller="honest")).text


@on_loop
async def test_a_replica_that_is_well_takes_every_call_that_a_sick_one_failed() -> None:
    """Whoever spent the retries, and though nobody has any: 40 calls of one key are answered.

    Once both are sick the budget counts again: it bounds the calls to what fails.
    """
    is_sick = False

    async def sickens(exchange: Exchange) -> None:
        await (fails("500") if is_sick else answers)(exchange)

    rules = {"failures": 10_000, "attempts": 2, "retry_share": 0.0}
    async with (
        replicas(fails("500"), sickens) as [one, other],
        opened({"m": [one, other]}, **rules) as fleet,
    ):
        for number in range(40):
            reply = await fleet.ask("m", CHAT, asking(f"{number}"), deadline=soon())
            assert reply.text
        assert len(other.asked) == 40
        before, is_sick = len(one.asked), True
        for number in range(40):
            with pytest.raises(UpstreamError):
                await fleet.ask("m", CHAT, asking(f"again {number}"), deadline=soon())
        assert len(one.asked) + len(other.asked) <= before + 40 + 40 + 1


def test_pauses_are_drawn_from_zero_to_a_limit_that_doubles() -> None:
    """Full jitter: retries of many calls do not arrive together."""
    retries = Retries(FleetSettings(attempts=5, retry_share=1.0), random.Random(1))
    for _ in range(10_000):
        retries.record_call("m", "key")
    for attempt, longest in ((1, 0.05), (2, 0.1), (3, 0.2), (4, 0.4)):
        drawn = [
            pause
            for _ in range(500)
            if (
                pause := retries.pause_s(
                    "m",
                    UpstreamUnavailable("no"),
                    caller="key",
                    attempt=attempt,
                    left_s=60,
                    elsewhere=False,
                )
            )
            is not None
        ]
        assert len(drawn) == 500
        assert 0 <= min(drawn) < longest / 20
        assert longest * 0.95 < max(drawn) <= longest


def limited() -> UpstreamRateLimited:
    """The server wants a pause of seven seconds."""
    return UpstreamRateLimited("no", status=429, retry_after_s=7)


def failed(kind: str) -> UpstreamError:
    """Another failure."""
    return UpstreamError("no", kind=kind)


@pytest.mark.parametrize(
    ("exc", "changes", "longest_s"),
    [
        (limited(), {}, 7),
        (limited(), {"left_s": 6.0}, None),
        (limited(), {"elsewhere": True}, 0.1),  # the pause concerns only the one that sent it
        (UpstreamTimeout("late"), {}, None),  # the same server would likely be as slow
        (UpstreamTimeout("late"), {"elsewhere": True}, 0.1),
        (UpstreamTimeout("late"), {"elsewhere": True, "left_s": 0.0}, None),
        (failed("upstream_invalid_response"), {}, 0.1),
        (failed("upstream_invalid_response"), {"attempt": 2}, None),
        (UpstreamUnavailable("no"), {"attempt": 2}, 0.2),
        (UpstreamUnavailable("no"), {"attempt": 3}, None),
        *(
            (failed(f"upstream_{kind}"), {"elsewhere": True}, None)
            for kind in (
                *("rejected", "auth_error", "tls_error", "redirect", "response_too_large"),
                *("encoding", "protocol_error", "overloaded", "empty"),
            )
        ),
    ],
)
def test_each_failure_has_its_pause_or_none(
    exc: UpstreamError, changes: dict[str, Any], longest_s: float | None
) -> None:
    """A retry costs a crowded gateway; it is made where it can help, and in time."""
    retries = Retries(FleetSettings(attempts=3), random.Random(1))
    usual: dict[str, Any] = {"caller": "key", "attempt": 1, "left_s": 60.0, "elsewhere": False}
    how = usual | changes
    pause = retries.pause_s("m", exc, **how)
    if longest_s is None:
        assert pause is None
    else:
        assert pause is not None
        assert (7 if longest_s == 7 else 0) <= pause <= longest_s


@on_loop
async def test_retries_of_one_flapping_candidate_are_a_fifth_of_its_own_calls() -> None:
    """One of three candidates fails every call; the calls of the others buy it no retries."""
    async with (
        replicas(fails("500"), answers, answers) as [flapping, one, two],
        opened({"m": [flapping], "n": [one], "o": [two]}, failures=10_000, attempts=5) as fleet,
    ):

        async def request(number: int) -> None:
            calls = (fleet.ask(name, CHAT, asking(f"{number}"), deadline=soon()) for name in "mno")
            await asyncio.gather(*calls, return_exceptions=True)

        for start in range(0, 100, 20):
            await asyncio.gather(*(request(n) for n in range(start, start + 20)))
        assert [len(each.asked) for each in (one, two)] == [100, 100]
        assert 115 <= len(flapping.asked) <= 120


def test_the_budgets_of_all_candidates_share_that_of_the_process() -> None:
    """Each has its floor of retries; a hundred quiet candidates do not get three each."""
    process = RetryBudget(0.2, clock=lambda: 0.0)
    budgets = [RetryBudget(0.2, within=process, clock=lambda: 0.0) for _ in range(100)]
    for budget in budgets:
        budget.record_call("key")
    assert sum(budget.take("key") for budget in budgets for _ in range(3)) == 20


@on_loop
async def test_a_retry_avoids_the_replica_that_failed_even_if_the_others_are_busy() -> None:
    """The one that fails at once would always have the fewest calls."""

    async def hangs_once(exchange: Exchange) -> None:
        await (hangs if exchange.number == 0 else answers)(exchange)

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


@on_loop
async def test_retry_after_is_honoured_by_the_only_replica() -> None:
    """The second call comes no sooner than the server's ``retry-after``."""
    arrived: list[float] = []

    async def limited(exchange: Exchange) -> None:
        arrived.append(time.monotonic())
        if exchange.number == 0:
            await fails("429:1")(exchange)
        else:
            await answers(exchange)

    async with replicas(limited) as [one], opened({"m": [one]}) as fleet:
        assert (await fleet.ask("m", CHAT, asking(), deadline=soon())).attempts == 2
        assert arrived[1] - arrived[0] >= 1
        one.play = fails("429:900")
        with pytest.raises(UpstreamRateLimited) as caught:  # and does not wait until then
            await fleet.ask("m", CHAT, asking(), deadline=soon(600))
        assert caught.value.retry_after_s == 60  # the most that a candidate can name
        assert len(one.asked) == 3


@on_loop
async def test_a_stream_is_begun_again_before_its_first_piece_and_never_after() -> None:
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
