"""Conversations at the replicas of a candidate: one replica's prompt cache, and bounded loads."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.settings import FleetSettings
from app.upstream.affinity import conversation_key, nearest
from app.upstream.replicas import Replicas
from app.wire.responses import Responses
from tests.kit.fleets import CHAT, asking, opened, soon, streamed
from tests.kit.gateway import POOL, Serve, candidates
from tests.kit.hostile.exchange import Exchange
from tests.kit.hostile.replicas import answers, fails, replicas
from tests.kit.loops import on_loop
from tests.kit.upstream import FakePool
from tests.kit.waiting import eventually

URLS = tuple(f"http://replica-{number}:8000/v1" for number in range(4))
MAX_LOAD = 1.25
PATH = CHAT.path


@dataclass
class Server:
    """A replica with calls in flight."""

    base_url: str
    outstanding: int = 0


def messages(*texts: str, system: str | None = "Be brief.") -> list[dict[str, str]]:
    """The turns of user and assistant, after a system prompt."""
    spoken = [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(texts)
    ]
    return spoken if system is None else [{"role": "system", "content": system}, *spoken]


def key_of(*texts: str, session: str | None = None, **changes: Any) -> bytes | None:
    """The key of a request with these turns."""
    payload = {"messages": messages(*texts, **changes)}
    return conversation_key(payload, PATH, caller="me", session=session)


def place_of(conversation: bytes, urls: tuple[str, ...] = URLS) -> str:
    """The replica of a conversation where no call is in flight."""
    return nearest([Server(url) for url in urls], conversation, MAX_LOAD).base_url


# The key ----------------------------------------------------------------------------------------


def test_later_turns_share_a_key_that_no_other_conversation_has() -> None:
    """It follows from the system prompt and the first user turn alone."""
    second, third = key_of("a", "1", "b"), key_of("a", "1", "b", "2", "c")
    assert second is not None
    assert second == third
    others = [
        key_of("x", "1", "b"),
        key_of("a", "1", "b", system="Be long."),
        key_of("a", "1", "b", system=None),
    ]
    assert len({second, *others}) == 4


def test_a_single_turn_has_no_key_without_a_session() -> None:
    """It may go anywhere. A session is a conversation of its caller, from its first turn on."""
    assert key_of("a") is None
    mine = key_of("a", session="1")
    assert mine == key_of("b", "1", "c", session="1")
    yours = conversation_key({"messages": messages("a")}, PATH, caller="you", session="1")
    assert len({mine, yours, key_of("a", session="2"), None}) == 4


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"input": "a"}, "responses"),
        ({"prompt": ["a", "b"]}, "completions"),
        ({"input": ["a", "b"]}, "embeddings"),
        ({"messages": 7}, "chat/completions"),
        ({"messages": [7, None, {"role": "assistant", "content": "b"}]}, "chat/completions"),
        ({}, "chat/completions"),
    ],
)
def test_requests_without_turns_have_no_key(payload: dict[str, Any], path: str) -> None:
    """Whatever stands in their place: servers judge bodies."""
    assert conversation_key(payload, path, caller="me", session=None) is None


def test_turns_of_the_responses_api_have_a_key() -> None:
    """Its system prompt stands beside the turns."""

    def key(instructions: str, *texts: str) -> bytes | None:
        payload = {"instructions": instructions, "input": messages(*texts, system=None)}
        return conversation_key(payload, Responses.path, caller="me", session=None)

    assert key("x", "a", "1", "b") == key("x", "a", "1", "b", "2", "c")
    assert key("x", "a", "1", "b") != key("y", "a", "1", "b")


# The choice -------------------------------------------------------------------------------------


def test_conversations_spread_over_replicas_evenly() -> None:
    """Each has a binomial share. False alarm 1e-6 for all four together."""
    conversations = 4_000
    counts = Counter(place_of(number.to_bytes(16)) for number in range(conversations))
    from scipy.stats import binom

    low, high = binom.interval(1 - 1e-6 / 4, conversations, 1 / 4)
    assert len(counts) == 4
    assert all(low <= count <= high for count in counts.values())


@given(st.binary(min_size=16, max_size=16), st.permutations(URLS))
def test_a_replica_that_leaves_moves_its_own_conversations_alone(
    conversation: bytes, order: list[str]
) -> None:
    """And the order of the list decides nothing."""
    place = place_of(conversation)
    assert place_of(conversation, tuple(order)) == place
    for gone in URLS:
        left = tuple(url for url in URLS if url != gone)
        assert (place_of(conversation, left) == place) == (gone != place)


@given(
    loads=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    conversation=st.binary(min_size=16, max_size=16),
    max_load=st.floats(1, 3),
)
def test_no_replica_is_called_above_its_limit(
    loads: list[int], conversation: bytes, max_load: float
) -> None:
    """Whatever is in flight; there is always one with room."""
    servers = [Server(f"http://{place}", calls) for place, calls in enumerate(loads)]
    chosen = nearest(servers, conversation, max_load)
    assert chosen.outstanding + 1 <= math.ceil(max_load * (sum(loads) + 1) / len(loads))


@given(st.data())
@on_loop
async def test_calls_that_come_and_go_keep_the_bound(data: st.DataObject) -> None:
    """Turns of conversations and single turns together, at each choice."""
    asked = st.one_of(st.none(), st.integers(0, 2).map(lambda each: each.to_bytes(16)))
    steps = data.draw(st.lists(st.tuples(st.booleans(), asked), max_size=60))
    its = Replicas("m", URLS[:3], rules=FleetSettings(), concurrency=1_000)
    running = list[Any]()
    for leaves, conversation in steps:
        if leaves and running:
            its.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
            continue
        replica = await its.acquire(
            (), caller="me", deadline=math.inf, even_if_out=lambda: False, conversation=conversation
        )
        running.append(replica)
        assert replica.outstanding <= math.ceil(MAX_LOAD * len(running) / 3)


# Calls ------------------------------------------------------------------------------------------


def turn(number: int, *later: str) -> dict[str, Any]:
    """A payload of a conversation."""
    return asking() | {"messages": messages(f"question {number}", "answer", *later)}


@on_loop
async def test_turns_of_a_conversation_reach_one_replica() -> None:
    """Whole and streamed, while single turns go to the one with the fewest calls, in rotation."""
    async with replicas(answers, answers, answers) as its, opened({"m": its}) as fleet:
        for number in range(12):
            before = [len(each.asked) for each in its]
            await fleet.ask("m", CHAT, turn(number, "more"), deadline=soon())
            await fleet.ask("m", CHAT, turn(number, "more", "x", "y"), deadline=soon())
            await streamed(fleet, turn(number, "more", "x", "z") | {"stream": True}, soon())
            grown = [len(each.asked) - was for each, was in zip(its, before, strict=True)]
            assert sorted(grown) == [0, 0, 3]
        before = [len(each.asked) for each in its]
        for number in range(12):
            await fleet.ask("m", CHAT, asking(f"{number}"), deadline=soon())
        assert [len(each.asked) - was for each, was in zip(its, before, strict=True)] == [4] * 3


@on_loop
async def test_a_failed_call_goes_to_the_next_replica_of_its_conversation() -> None:
    """Every turn to the same second one, before and after the first one is out."""
    async with (
        replicas(fails("500"), answers, answers, answers) as [bad, *good],
        opened({"m": [bad, *good]}, retry_share=1.0) as fleet,
    ):

        async def ask(number: int, text: str) -> int:
            return (await fleet.ask("m", CHAT, turn(number, text), deadline=soon())).attempts

        number = 0
        while await ask(number, "more") == 1:  # until a conversation meets the bad one
            number += 1
        before = [len(each.asked) for each in good]
        attempts = [await ask(number, f"more {each}") for each in range(12)]
        grown = [len(each.asked) - was for each, was in zip(good, before, strict=True)]
        assert sorted(grown) == [0, 0, 12]
        assert (attempts[0], attempts[-1]) == (2, 1)
        assert [each.state for each in fleet.health()["m"]] == ["out", "in", "in", "in"]


@on_loop
async def test_a_busy_conversation_overflows() -> None:
    """All its calls at once are more than its replica's share: others take the rest."""
    peaks = Counter[str]()
    running = Counter[str]()

    async def slow(exchange: Exchange) -> None:
        host = exchange.request.headers["host"]
        running[host] += 1
        peaks[host] = max(peaks[host], running[host])
        await eventually(lambda: peaks.total() >= 16)  # all of them are under way
        running[host] -= 1
        await answers(exchange)

    async with replicas(slow, slow) as its, opened({"m": its}) as fleet:
        calls = (fleet.ask("m", CHAT, turn(1, f"{n}"), deadline=soon()) for n in range(16))
        await asyncio.gather(*calls)
        assert sorted(len(each.asked) for each in its) == [6, 10]  # ceil(1.25 * 16 / 2)
        assert max(peaks.values()) <= 10


def test_sessions_of_clients_reach_one_replica(serve: Serve, pool: FakePool) -> None:
    """Routed and by name: `x-session-id` names the conversation from its first turn on."""
    with FakePool() as other:
        name = POOL[0]
        several = {"base_url": None, "base_urls": [pool.url, other.url]}
        gateway = serve(candidates=candidates(pool.url, **{name: several}))
        for model in (name, "auto"):
            for number in range(10):
                pool.reset()
                other.reset()
                headers = {"x-session-id": f"{number}"}
                with gateway.http() as client:
                    for text in ("What is 1 plus 2?", "What is 3 plus 4?", "What is 5 plus 6?"):
                        body = {"model": model, "messages": messages(text, system=None)}
                        response = client.post("/v1/chat/completions", json=body, headers=headers)
                        assert response.status_code == 200
                counts = [each.models_called().count(name) for each in (pool, other)]
                assert sorted(counts) == [0, 3]
