"""Normal forms of answers: computed off the loop, bounded in size and by the deadline."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from app import lifespan
from app.answering import answer_forms
from app.answering.answer_forms import VOTE_CHARS, AnswerReader
from app.answering.fan_out import FanOutResult
from app.answering.vote import Vote
from app.concurrency.memory_budget import SMALL_BYTES
from app.settings import Aggregation
from app.upstream.reply import Reply
from app.wire.chat import Chat
from app.wire.format import Choice
from racer_core.aggregation.answers import Equality
from racer_core.encoder.base import Encoder, EncoderOutput
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from tests.kit.gateway import ONE, POOL, Serve, user
from tests.kit.upstream import FakePool

pytestmark = pytest.mark.anyio
MEANING = {"equality": "semantic", "similarity": 0.75}


async def never(_: object) -> None:
    """Not in this test's time."""
    await asyncio.Event().wait()


class Encoding:
    """An encoder that remembers what it was given, and finds all of it alike."""

    def __init__(self) -> None:
        self.given: list[str] = []

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One and the same vector for each."""
        self.given += texts
        return np.ones((len(texts), 1), np.float32)


def reader(embed: Encoding | None = None, embed_chars: int = 8192) -> AnswerReader:
    """A reader of texts."""
    encoding = embed or Encoding()
    return AnswerReader(encoding.embed, never, similarity=0.75, embed_chars=embed_chars)  # type: ignore[arg-type]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each form, and each clustering, was made on the event loop's thread."""
    on_the_loop: list[bool] = []
    for name in ("normalise", "tool_call_form", "cluster"):
        function = getattr(answer_forms, name)

        def noting(*given: object, function: object = function) -> object:
            on_the_loop.append(threading.current_thread() is threading.main_thread())
            assert callable(function)
            return function(*given)

        monkeypatch.setattr(answer_forms, name, noting)
    return on_the_loop


async def test_long_answers_are_read_on_a_thread(threads: list[bool]) -> None:
    """Short ones on the loop; tool calls and clusters, of unknown size, always on a thread."""
    for choice, form in (
        (Choice(text="1 " * (SMALL_BYTES // 2)), "1"),
        (Choice(text="1 " * SMALL_BYTES), "1"),
        (Choice(tool_calls=({"name": "add"},)), '[["add",{}]]'),
    ):
        assert await reader().form(Equality.NUMBER, [choice]) == form
    await reader().semantic({"a": "x", "b": "y"}, {"a": 0.5, "b": 0.5})
    assert threads == [True, False, False, False]


async def test_an_answer_over_a_mebibyte_has_no_vote(threads: list[bool]) -> None:
    """Whatever its kind; it is not even looked at."""
    calls = ({"name": "add", "arguments": '{"a": "' + "x" * VOTE_CHARS + '"}'},)
    long = [Choice(text="1".rjust(VOTE_CHARS + 1)), Choice(tool_calls=calls)]
    for choice in long:
        assert await reader().form(Equality.NUMBER, [choice]) is None
    assert threads == []
    assert await reader().form(Equality.NUMBER, [Choice(text="1".rjust(VOTE_CHARS))]) == "1"
    assert len(threads) == 1


async def test_the_encoder_is_given_the_beginning_of_an_answer() -> None:
    """As much as of a query; and nothing of an answer that is no vote."""
    encoding = Encoding()
    texts = {"a": "x" * 9, "b": "y" * 11, "c": "z" * (VOTE_CHARS + 1)}
    scores = dict.fromkeys(texts, 0.5)
    forms, medoids = await reader(encoding, embed_chars=10).semantic(texts, scores)
    assert encoding.given == ["x" * 9, "y" * 10]
    assert (forms, medoids) == ({"a": "a", "b": "a"}, {"a"})
    assert await reader(encoding).semantic({"c": texts["c"]}, scores) == ({}, frozenset())
    assert len(encoding.given) == 2


def vote(kind: Equality, deadline: float) -> Vote:
    """A vote whose formulas and meanings are never read."""
    return Vote(
        rule=Aggregation(),
        kind=kind,
        reader=AnswerReader(never, never, similarity=0.75, embed_chars=10),  # type: ignore[arg-type]
        stacked=None,
        scores={"adder": 0.5},
        members=("adder",),
        deadline=deadline,
    )


def replied(text: str) -> Reply:
    """A candidate's whole answer."""
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    return Reply.of("adder", body, Chat())


async def test_an_answer_not_read_by_the_deadline_has_no_vote() -> None:
    """A formula or meanings that wait for others; what came in time is a vote all the same."""
    async with asyncio.timeout(60):
        late = vote(Equality.MATH, time.monotonic() + 0.05)
        assert await late.read(replied("1")) is None
        result = FanOutResult(replies={"adder": replied("1")}, forms={"adder": None})
        meaning = vote(Equality.SEMANTIC, time.monotonic() + 0.05)
        assert await meaning.cluster(result, ["adder"]) == frozenset()
        assert result.forms == {"adder": None}
        assert await vote(Equality.NUMBER, -math.inf).read(replied("It is 7")) == "7"


# Through the gateway --------------------------------------------------------------------------


@dataclass
class Busy:
    """An encoder that stands still at texts with a mark, until it is let go."""

    encoder: Encoder = field(default_factory=CharNgramEncoder)
    free: threading.Event = field(default_factory=threading.Event)

    spec = SPEC

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Called on the worker's thread alone."""
        if any("MARK" in text for text in texts):
            self.free.wait(60)
        return self.encoder.encode(texts)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Busy:
    """The encoder of every gateway that is started after this."""
    encoder = Busy()
    open_racer = lifespan.open_racer
    monkeypatch.setattr(
        lifespan, "open_racer", lambda settings: replace(open_racer(settings), encoder=encoder)
    )
    return encoder


def test_routing_ends_at_the_requests_own_deadline(serve: Serve, busy: Busy) -> None:
    """A busy encoder is waited for as long as the request has, and no longer."""
    gateway = serve(limits={"route_timeout_s": 60.0})
    try:
        decision = gateway.route(f"{ONE} MARK", timeout=0.3)
        response = gateway.ask(f"{ONE} MARK", {"timeout": 0.3})
        assert not busy.free.is_set()
    finally:
        busy.free.set()
    assert decision["certificate"]["reasons"] == ["router_failed_whole_pool"]
    assert sorted(decision["selected"]) == sorted(POOL)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")


def test_a_vote_ends_at_the_requests_deadline(serve: Serve, pool: FakePool, busy: Busy) -> None:
    """Meanings not compared in time have no vote: the text with the best router score wins."""
    gateway = serve(aggregation=MEANING)
    for name in POOL:
        pool.say(name, f"MARK {name}")
    body = {"model": "auto", "messages": user(ONE), "racer": {"alpha": 0.001, "timeout": 3.0}}
    try:
        answer = gateway.post("/v1/chat/completions", json=body).json()
    finally:
        busy.free.set()
    assert answer["racer"]["votes"] == {}
    assert answer["model"] == answer["racer"]["selected"][0]
    assert answer["racer"]["certificate"]["holds"] is True
