"""Upstream calls over real sockets: deadlines, connections, limits and failures."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from app.errors import (
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from app.telemetry.metrics import Metrics
from app.upstream.fleet import Fleet
from app.upstream.reply import Endpoint
from tests.kit.fleets import CHAT, asking, opened, soon, stream_into, streamed
from tests.kit.hostile.answers import DONE, EVENTS, JSON, completion, encoded, event, finish, piece
from tests.kit.hostile.exchange import WORDS, Behaviour, Exchange, head
from tests.kit.hostile.replicas import Replica, answers, fails, hangs, replicas
from tests.kit.hostile.server import behaviour
from tests.kit.loops import on_loop
from tests.kit.network import connections_to
from tests.kit.waiting import eventually

FOUR = piece("m", "4")
NEVER_S = 600  # more than a test may take


async def trickles_head(exchange: Exchange) -> None:
    """A head that never ends."""
    await exchange.send(b"HTTP/1.1 200 OK\r\nx-slow: ")
    for _ in range(1000):
        await exchange.send(b"y")
        await asyncio.sleep(0.02)


async def stalls(exchange: Exchange) -> None:
    """Half of an answer, then nothing."""
    await exchange.send(head({"content-type": JSON, "content-length": "100"}) + b'{"choices": ')
    await hangs(exchange)


async def begin_stream(exchange: Exchange) -> None:
    """The head of a stream that ends with its connection."""
    await exchange.send(head({"content-type": EVENTS, "connection": "close"}))


async def drips(exchange: Exchange) -> None:
    """Something all the time, and an end never."""
    await begin_stream(exchange)
    while True:
        await exchange.send(event(FOUR))
        await asyncio.sleep(0.02)


async def floods(exchange: Exchange) -> None:
    """So much that there is always more to read."""
    await begin_stream(exchange)
    while True:
        await exchange.send(event(piece("m", "4" * 60_000)))


MODES: dict[str, Callable[[Fleet, float], Coroutine[Any, Any, Any]]] = {
    "ask": lambda fleet, deadline: fleet.ask("m", CHAT, asking(), deadline=deadline),
    "stream": lambda fleet, deadline: streamed(fleet, asking(stream=True), deadline),
    "complete": lambda fleet, deadline: fleet.complete(
        Endpoint(name="e", target="m", timeout_s=NEVER_S), {"prompt": ""}, deadline=deadline
    ),
    "forward": lambda fleet, deadline: fleet.forward("m", "x", {}, deadline=deadline),
}
# A stream is refused at once where none was asked for.
CELLS = [
    *itertools.product((hangs, trickles_head, stalls), MODES),
    *itertools.product((drips, floods), ("stream",)),
]


@pytest.mark.parametrize(("play", "mode"), CELLS)
@on_loop
async def test_every_call_ends_at_its_deadline(play: Behaviour, mode: str) -> None:
    """Whatever the server does, in every mode: no other limit ends one before the test's."""
    limits: dict[str, Any] = {
        "limits": {"answer_bytes": 2**40},
        "candidate": {"timeout_s": NEVER_S},
        "idle_timeout_s": NEVER_S,
    }
    async with replicas(play) as [one], opened({"m": [one]}, **limits) as fleet:
        deadline = soon(0.4)
        with pytest.raises(UpstreamTimeout):
            await MODES[mode](fleet, deadline)
        assert time.monotonic() > deadline - 0.05
        await eventually(lambda: one.open == 0)


@on_loop
async def test_a_pause_between_two_pieces_has_a_limit_of_its_own() -> None:
    """A stream that stalls ends long before its deadline; a slow first piece is waited for."""

    async def slow_then_stalls(exchange: Exchange) -> None:
        await asyncio.sleep(0.5)
        await begin_stream(exchange)
        await exchange.send(event(FOUR))
        await hangs(exchange)

    async with (
        replicas(slow_then_stalls) as [one],
        opened({"m": [one]}, idle_timeout_s=0.2, candidate={"timeout_s": NEVER_S}) as fleet,
    ):
        seen: list[str] = []
        with pytest.raises(UpstreamTimeout):
            await stream_into(seen, fleet, asking(), soon(NEVER_S))
        assert seen == ["4"]


@on_loop
async def test_waiting_for_a_place_ends_at_the_deadline_too() -> None:
    """Calls over a candidate's concurrency limit wait, at most until their deadline."""
    async with (
        replicas(hangs) as [one],
        opened({"m": [one]}, candidate={"concurrency": 1, "timeout_s": NEVER_S}) as fleet,
    ):
        first = asyncio.create_task(fleet.ask("m", CHAT, asking(), deadline=soon(NEVER_S)))
        await eventually(lambda: len(one.asked) == 1)
        with pytest.raises(UpstreamTimeout):
            await fleet.ask("m", CHAT, asking(), deadline=soon(0.2))
        assert len(one.asked) == 1
        one.play = answers
        waiting = asyncio.create_task(fleet.ask("m", CHAT, asking(), deadline=soon()))
        await asyncio.sleep(0.1)
        assert len(one.asked) == 1
        first.cancel()
        assert (await waiting).attempts == 1


async def _cancelled(one: Replica, call: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.create_task(call)
    before = len(one.asked)
    await eventually(lambda: len(one.asked) == before + 1)
    await asyncio.sleep(0.05)
    gone, cancelled = len(one.left), time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: len(one.left) == gone + 1)
    assert one.left[-1] - cancelled < 1  # the goal is 0.1


@on_loop
async def test_cancelling_reaches_the_server() -> None:
    """In every mode; before the head, in mid-answer and in mid-stream."""
    async with replicas(hangs) as [one], opened({"m": [one]}) as fleet:
        for play in (hangs, stalls):
            one.play = play
            for call in MODES.values():
                await _cancelled(one, call(fleet, soon()))
        one.play = drips
        await _cancelled(one, streamed(fleet, asking(stream=True), soon()))
        assert fleet.health()["m"][0].outstanding == 0
        assert fleet.health()["m"][0].state == "in"


@on_loop
async def test_a_server_that_reads_nothing_is_let_go_too() -> None:
    """What is left of a long question is not worth waiting for: its connection is closed."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        one = Replica(hangs, port=port)
        async with opened({"m": [one]}) as fleet:
            question = asking("?" * 32 * 2**20)
            task = asyncio.create_task(fleet.ask("m", CHAT, question, deadline=soon()))
            with (await asyncio.to_thread(deaf.accept))[0]:
                await asyncio.sleep(0.3)  # meanwhile the buffers between the two fill
                assert connections_to(port) == 1
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await eventually(lambda: connections_to(port) == 0)


@on_loop
async def test_leaving_a_stream_early_closes_its_connection() -> None:
    """The server can stop generating."""
    async with replicas(drips) as [one], opened({"m": [one]}) as fleet:
        async with fleet.stream("m", CHAT, asking(), deadline=soon()) as stream:
            assert await stream.read() == [FOUR]
            left = time.monotonic()
        await eventually(lambda: len(one.left) == 1)
        assert one.left[0] - left < 1


@on_loop
async def test_cancelled_fan_outs_leak_nothing() -> None:
    """After 300 of them every connection, place and task is back, and calls are answered."""
    names, places = ("a", "b", "c"), 4
    running, peak = 0, 0

    async def slow(exchange: Exchange) -> None:
        nonlocal running, peak
        is_last = exchange.body == asking("last")  # a cancelled call may come in late
        running += is_last
        peak = max(peak, running)
        try:
            if is_last:
                await eventually(lambda: peak >= places)  # the first four wait for each other
            else:
                await asyncio.sleep(0.02)
        finally:
            running -= is_last
        await answers(exchange)

    async with replicas(slow, slow, slow) as its:
        candidates = {name: [each] for name, each in zip(names, its, strict=True)}
        async with opened(candidates, candidate={"concurrency": places}) as fleet:

            def tasks() -> int:
                return len(asyncio.all_tasks()) - sum(len(each.tasks) for each in its)

            def ask(name: str, text: str) -> Coroutine[Any, Any, Any]:
                return fleet.ask(name, CHAT, asking(text), deadline=soon())

            async def fan_out(number: int) -> None:
                calls = [asyncio.create_task(ask(name, f"{number}")) for name in names]
                await asyncio.sleep(number % 50 / 1000)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)

            tasks_before = tasks()
            for start in range(0, 300, 10):
                await asyncio.gather(*(fan_out(n) for n in range(start, start + 10)))
            await asyncio.gather(*(ask("a", "last") for _ in range(16)))
            assert peak == places
            await eventually(lambda: tasks() == tasks_before)
            await eventually(lambda: sum(each.open for each in its) <= len(names) * places)
            health = [each for every in fleet.health().values() for each in every]
            assert [(each.outstanding, each.state) for each in health] == [(0, "in")] * 3
        await eventually(lambda: sum(each.open for each in its) == 0)


@on_loop
async def test_a_connection_that_went_stale_is_never_noticed() -> None:
    """The server closes idle connections as they are used again; no retry is spent on it."""
    used: set[int] = set()

    async def once_a_connection(exchange: Exchange) -> None:
        if exchange.entry.connection in used:
            exchange.reset()
            return
        used.add(exchange.entry.connection)
        await answers(exchange)

    async with replicas(once_a_connection) as [one], opened({"m": [one]}, attempts=1) as fleet:
        for number in range(20):
            reply = await fleet.ask("m", CHAT, asking(f"{number}"), deadline=soon())
            assert reply.attempts == 1
        assert one.connections == 20


@on_loop
async def test_a_prompt_that_servers_hang_up_on_does_not_run_through_the_pool() -> None:
    """Many connections are open; the call, its reconnection and one retry are all that it gets."""
    arrived, waiting = asyncio.Condition(), [0]

    async def hangs_up_on_poison(exchange: Exchange) -> None:
        if "poison" in str(exchange.body):
            exchange.reset()
            return
        async with arrived:  # every call has its own connection
            waiting[0] += 1
            arrived.notify_all()
            await arrived.wait_for(lambda: waiting[0] == 8)
        await answers(exchange)

    async with replicas(hangs_up_on_poison) as [one], opened({"m": [one]}, attempts=2) as fleet:
        await asyncio.gather(
            *(fleet.ask("m", CHAT, asking(f"{each}"), deadline=soon()) for each in range(8))
        )
        assert one.open == 8
        before = len(one.asked)
        with pytest.raises(UpstreamError):
            await fleet.ask("m", CHAT, asking("poison"), deadline=soon())
        assert len(one.asked) - before == 3


@on_loop
async def test_connections_are_kept_after_answers_and_streams() -> None:
    """What was read to its end can be used again, a stream too."""

    async def chunked(exchange: Exchange) -> None:
        if not exchange.body.get("stream"):
            await answers(exchange)
            return
        await exchange.begin(EVENTS)
        for data in (event(FOUR), event(finish("m")), DONE):
            await exchange.chunk(data)
            await asyncio.sleep(0)
        await exchange.end()

    async with replicas(chunked) as [one], opened({"m": [one]}) as fleet:
        for _ in range(5):
            await fleet.ask("m", CHAT, asking(), deadline=soon())
            assert await streamed(fleet, asking(stream=True), soon()) == ["4", ""]
        assert one.connections == 1


def _stream_of(*events: bytes) -> Behaviour:
    async def play(exchange: Exchange) -> None:
        await begin_stream(exchange)
        for each in events:
            await exchange.send(each)
        await asyncio.sleep(0.05)
        exchange.fin()

    return play


def _sends(data: bytes, headers: Mapping[str, str] | None = None) -> Behaviour:
    async def play(exchange: Exchange) -> None:
        await exchange.answer(data, headers=headers)

    return play


FINISHED = (event(FOUR), event(finish("m")))


async def _cut_after_the_finish(exchange: Exchange) -> None:
    await exchange.begin(EVENTS)
    await exchange.chunk(b"".join(FINISHED))
    await asyncio.sleep(0.05)
    exchange.reset()


@pytest.mark.parametrize(
    ("play", "whole"),
    [
        (_stream_of(*FINISHED, DONE), True),
        (_stream_of(*FINISHED), True),
        (_stream_of(*FINISHED, DONE, b"data: nonsense\n\n"), True),
        (_cut_after_the_finish, True),
        (_sends(encoded(completion("m", "4"))), True),  # some servers do not stream
        (_stream_of(event(FOUR)), False),
        (_stream_of(event(FOUR), DONE), False),
        (_stream_of(DONE), False),
        (_stream_of(), False),
    ],
)
@on_loop
async def test_a_stream_is_whole_when_it_says_why_it_ended(play: Behaviour, whole: bool) -> None:
    """A cut is not an end, and an end without ``[DONE]`` is one."""
    async with replicas(play) as [one], opened({"m": [one]}, attempts=1) as fleet:
        if whole:
            assert await streamed(fleet, asking(stream=True), soon()) == ["4", ""]
            return
        with pytest.raises(UpstreamError) as caught:
            await streamed(fleet, asking(stream=True), soon())
        assert caught.value.kind == "upstream_disconnected"


def _writes(*parts: bytes) -> Behaviour:
    async def play(exchange: Exchange) -> None:
        for part in parts:
            await exchange.send(part)
            await asyncio.sleep(0.05)
        exchange.fin()

    return play


_OK = b"HTTP/1.1 200 OK\r\n"
FAILURES: dict[str, tuple[Behaviour, type[UpstreamError], str, int]] = {
    # name: (behaviour, error, kind, calls with one retry allowed)
    "400": (fails("400"), UpstreamRejected, "upstream_rejected", 1),
    "401": (fails("401"), UpstreamError, "upstream_auth_error", 1),
    "302": (behaviour("redirect:302"), UpstreamError, "upstream_redirect", 1),
    "408": (fails("408"), UpstreamTimeout, "upstream_timeout", 2),
    "429": (fails("429"), UpstreamRateLimited, "upstream_rate_limited", 2),
    "500": (fails("500"), UpstreamError, "upstream_error", 2),
    "501": (fails("501"), UpstreamError, "upstream_error", 1),
    "503": (fails("503"), UpstreamUnavailable, "upstream_error", 2),
    "529": (fails("529"), UpstreamUnavailable, "upstream_error", 2),
    "half": (_sends(b'{"choices": ['), UpstreamError, "upstream_invalid_response", 2),
    "none": (_sends(b'{"choices": []}'), UpstreamError, "upstream_empty", 1),
    "gzip": (_sends(b"{}", {"content-encoding": "gzip"}), UpstreamError, "upstream_encoding", 1),
    "large": (_sends(encoded(completion("m", "4" * 20_000))), UpstreamError,
              "upstream_response_too_large", 1),
    "cut": (_writes(_OK + b"content-length: 9\r\n\r\n{"), UpstreamError,
            "upstream_disconnected", 2),
    "stream": (drips, UpstreamError, "upstream_invalid_response", 2),
    "dropped": (_writes(b""), UpstreamError, "upstream_disconnected", 2),
    "no http": (_writes(b"220 mail.example ESMTP\r\n\r\n"), UpstreamError,
                "upstream_protocol_error", 1),
    "bad chunk": (_writes(_OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n"), UpstreamError,
                  "upstream_protocol_error", 1),
    "late bad chunk": (_writes(_OK + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n{}\r\n"),
                       UpstreamError, "upstream_protocol_error", 1),
}  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
@on_loop
async def test_every_failure_has_its_name_and_its_retries(failure: str) -> None:
    """No error but a rejection repeats the server's text."""
    play, error, kind, calls = FAILURES[failure]
    limits = {"answer_bytes": 10_000}
    async with replicas(play) as [one], opened({"m": [one]}, limits=limits) as fleet:
        with pytest.raises(UpstreamError) as caught:
            await fleet.ask("m", CHAT, asking(), deadline=soon())
        assert (type(caught.value), caught.value.kind) == (error, kind)
        assert len(one.asked) == calls
        assert "127.0.0.1" not in str(caught.value)
        assert (WORDS in str(caught.value)) == (error is UpstreamRejected)


def buffered(metrics: Metrics) -> float:
    """How many bytes of answers are held."""
    [family] = metrics.buffered_bytes.collect()
    return family.samples[0].value


@on_loop
async def test_answers_share_one_budget_of_memory() -> None:
    """Past it a call fails at once, and what was read is given back."""
    go_on = asyncio.Event()

    async def half_then_waits(exchange: Exchange) -> None:
        data = encoded(completion("m", "4" * 60_000))
        await exchange.send(head({"content-length": str(len(data))}) + data[:50_000])
        await go_on.wait()
        await exchange.send(data[50_000:])

    go_on = asyncio.Event()
    metrics, limits = Metrics(), {"buffered_bytes": 100_000}
    async with (
        replicas(half_then_waits) as [one],
        opened({"m": [one]}, metrics, limits=limits, attempts=1) as fleet,
    ):

        async def ask(number: int) -> str:
            reply = await fleet.ask("m", CHAT, asking(f"{number}"), deadline=soon())
            return reply.body["choices"][0]["message"]["content"]

        first = asyncio.create_task(ask(1))
        await eventually(lambda: buffered(metrics) == 50_000)
        second = asyncio.create_task(ask(2))
        await eventually(lambda: buffered(metrics) == 100_000)
        go_on.set()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in results].count(UpstreamOverloaded) >= 1
        assert await ask(3) == "4" * 60_000
        assert fleet.health()["m"][0].state == "in"


@on_loop
async def test_large_payloads_are_of_that_budget_until_they_are_answered() -> None:
    """Two fit; the third is not sent by any method; afterwards there is room again."""
    go_on = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.answer(encoded(completion("m", "4")))

    go_on = asyncio.Event()
    async with (
        replicas(waits) as [one],
        opened({"m": [one]}, limits={"buffered_bytes": 250_000}, attempts=1) as fleet,
    ):

        async def ask(text: str) -> object:
            return await fleet.ask("m", CHAT, asking(text), deadline=soon())

        large = "4" * 100_000
        both = [asyncio.create_task(ask(large)) for _ in range(2)]
        await eventually(lambda: len(one.asked) == 2)
        with pytest.raises(UpstreamOverloaded):
            await ask(large)
        small = asyncio.create_task(ask("4"))
        await eventually(lambda: len(one.asked) == 3)
        go_on.set()
        await asyncio.gather(*both, small)
        await ask(large)
        assert len(one.asked) == 4
