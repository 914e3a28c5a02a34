"""Votes in the gateway: early end, cancelled calls, and equality of answers."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app import lifespan
from app.answering import answer_forms
from app.answering.answer_forms import VOTE_CHARS, AnswerReader
from app.answering.vote import Vote
from app.concurrency.threads import SMALL_BYTES
from app.settings import Aggregation
from app.upstream.reply import Reply
from app.wire.chat import Chat
from app.wire.format import Choice
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.wording import SHIPPED
from racer_core.encoder.base import Encoder, EncoderOutput
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from tests.kit.case import GatewayCase, Shared
from tests.kit.gateway import ONE, POOL, TWO, UNANSWERABLE, Gateway, Serve, user
from tests.kit.monitored import sampled
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

pytestmark = pytest.mark.anyio
WHOLE_POOL = {"alpha": 0.001}  # the whole pool is called
FAILS_AT_ONCE = "400"  # a fault that is not tried again


def reasons(answer: dict[str, Any]) -> list[str]:
    """What the certificate says of the answers, but for the alpha of these tests."""
    reasons = answer["racer"]["certificate"]["reasons"]
    return [each for each in reasons if not each.startswith("alpha_")]


def outcome(answer: dict[str, Any]) -> dict[str, str]:
    """What became of each call."""
    calls = answer["racer"]["calls"]
    return {
        each["candidate"]: next(
            what for what in ("error", "cancelled", "skipped", "ms") if what in each
        )
        for each in calls
    }


# The end of a vote ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_cannot_change_the_vote_is_cancelled(
    shared: Shared, pool: FakePool, stream: bool
) -> None:
    """Two of three agree: the third is not waited for, sees it, and the promise stands."""
    case, gate = shared(), threading.Event()
    pool.say("adder", "7", gate=gate)
    pool.say("speller", "7", gate=gate)
    pool.say("poet", "8", delay_s=30)  # the candidate's own limit is 5 s
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(case.stream if stream else case.ask, ONE, WHOLE_POOL)
        wait_until(lambda: pool.models_called() == sorted(POOL))  # all three work
        gate.set()
        answer = asked.result().body
    assert until(lambda: pool.cancelled == ["poet"])
    assert outcome(answer) == {"adder": "ms", "speller": "ms", "poet": "cancelled"}
    assert answer["racer"]["certificate"]["holds"] is True
    assert reasons(answer) == []
    assert answer["racer"]["votes"] == {"7": 2}
    assert answer["racer"]["usage_incomplete"] is True  # the poet's answer has no usage


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"waves": "frugal"},
        {"method": "weighted", "temperature": 0.5},
        {"method": "log_odds", "waves": "frugal"},
    ],
    ids=str,
)
def test_a_vote_that_ends_early_has_the_winner_of_the_full_vote(
    shared: Shared, pool: FakePool, rule: dict[str, Any]
) -> None:
    """For any answers in any order: the same answer, with at most as many calls."""
    gateway = shared(aggregation=rule).gateway
    rng = random.Random(7)
    spared = 0
    for _ in range(15):
        for name in POOL:
            pool.say(name, rng.choice("789"), delay_s=rng.choice((0.0, 0.01, 0.1)))
        query = rng.choice((ONE, TWO, "Spell the number 3 and then 4"))
        early, full = (
            gateway.chat(query, WHOLE_POOL | {"explain": explain}) for explain in (False, True)
        )
        assert early["choices"][0]["message"] == full["choices"][0]["message"], pool.scripts
        assert outcome(full) == dict.fromkeys(POOL, "ms")
        spared += sum(what != "ms" for what in outcome(early).values())
    assert spared > 0


def test_frugal_waves_call_no_more_than_may_decide(shared: Shared, pool: FakePool) -> None:
    """Two who agree settle three; where they do not, the third is called."""
    gateway = shared(aggregation={"waves": "frugal"}).gateway
    answer = gateway.chat(ONE, WHOLE_POOL)
    first, second, third = answer["racer"]["selected"]
    assert pool.models_called() == sorted((first, second))
    assert outcome(answer) == {first: "ms", second: "ms", third: "skipped"}
    assert answer["racer"]["certificate"]["holds"] is True
    assert answer["racer"]["usage_incomplete"] is False
    pool.reset()
    pool.say(second, "43")
    assert outcome(gateway.chat(ONE, WHOLE_POOL)) == dict.fromkeys(POOL, "ms")


# Failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "late", "reason"),
    [
        ({"adder": "7", "speller": "7"}, (), "outvoted_candidate_failed:poet"),
        ({"adder": "7", "speller": "8"}, (), "candidate_failed:poet"),
        # The adder wins against either alone, not against both: the late one is waited for.
        ({"adder": "7", "poet": "7"}, ("poet",), "outvoted_candidate_failed:speller"),
        ({"adder": "7", "poet": "8"}, ("poet",), "candidate_failed:speller"),
    ],
)
def test_a_failure_voids_where_its_answer_could_have_mattered(
    gateway: Gateway, pool: FakePool, answers: dict[str, str], late: tuple[str, ...], reason: str
) -> None:
    """Else it is a remark, and the guarantee holds."""
    for name, text in answers.items():
        pool.say(name, text, delay_s=0.5 if name in late else 0.3 - 0.3 * bool(late))
    failed = reason.partition(":")[2]
    pool.fail(failed, FAILS_AT_ONCE)
    answer = gateway.chat(ONE, WHOLE_POOL)
    assert answer["choices"][0]["message"]["content"] == "7"
    assert outcome(answer) == dict.fromkeys(answers, "ms") | {failed: "error"}
    assert reasons(answer) == [reason]
    assert answer["racer"]["certificate"]["holds"] is reason.startswith("outvoted")


@pytest.mark.parametrize("stream", [False, True])
def test_for_a_failure_the_surviving_pools_set_is_called(
    shared: Shared, pool: FakePool, stream: bool
) -> None:
    """`cover` calls one of two who are right together; when it fails, the other is called."""
    case = shared(routing={"score": "cover"})
    (chosen,) = case.route(TWO)["selected"]
    (other,) = {"adder", "speller"} - {chosen}
    pool.fail(chosen, FAILS_AT_ONCE)
    pool.say(other, "larger")
    answered = case.stream(TWO) if stream else case.ask(TWO)
    answer = answered.body
    assert answer["model"] == answer["racer"]["served_by"] == other
    assert outcome(answer) == {other: "ms", chosen: "error"}
    assert reasons(answer) == [f"candidate_failed:{chosen}"]
    assert answered.text == "larger"
    assert pool.models_called() == sorted((chosen, other))


def test_replacements_of_failed_calls_keep_to_the_fan_out_limit(
    shared: Shared, pool: FakePool
) -> None:
    """The limit on calls is one request's, failures included."""
    gateway = shared(routing={"score": "cover"}, limits={"fan_out": 1}).gateway
    (chosen,) = gateway.route(TWO)["selected"]
    pool.fail(chosen, FAILS_AT_ONCE)
    assert gateway.ask(TWO).status_code == 400
    assert pool.models_called() == [chosen]


def test_too_few_rows_for_the_survivors_do_not_refuse_the_request(
    shared: Shared, pool: FakePool
) -> None:
    """`on_infeasible: reject` is for requests that come in; here the others were called already."""
    gateway = shared(
        routing={"score": "cover", "on_infeasible": "reject", "alpha": 0.03},
        calibrated=False,
        group="uploads",
    ).gateway
    gateway.calibrate(60, alpha=0.03)
    (chosen,) = gateway.route(ONE)["selected"]
    pool.fail(chosen, FAILS_AT_ONCE)
    answer = gateway.chat(ONE)
    assert answer["model"] in POOL
    assert outcome(answer)[chosen] == "error"
    assert reasons(answer) == [f"candidate_failed:{chosen}"]


# What counts as the same answer -----------------------------------------------------------------


def voted(gateway: Gateway, text: str = ONE, **fields: Any) -> dict[str, float]:
    """The votes of all answers."""
    return gateway.chat(text, WHOLE_POOL | {"explain": True}, **fields)["racer"]["votes"]


def test_formulas_are_compared_as_mathematics(shared: Shared, pool: FakePool) -> None:
    """All spellings of one half are equal; the returned text is a candidate's own."""
    pytest.importorskip("math_verify")
    gateway = shared(aggregation={"equality": "math"}).gateway
    pool.say("adder", "It is 3")
    pool.say("speller", "so $x = \\boxed{\\frac{1}{2}}$")
    pool.say("poet", "\\boxed{0.5}")
    answer = gateway.chat(ONE, WHOLE_POOL | {"explain": True})
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["model"] in ("speller", "poet")


def test_tool_calls_are_compared_as_calls_for_every_equality(
    shared: Shared, pool: FakePool
) -> None:
    """No number is looked for in a call; a text beside calls is a vote of the configured kind."""
    gateway = shared(aggregation={"equality": "number"}).gateway
    for name, arguments in (("adder", '{"a": 1}'), ("speller", '{"a":1.0}')):
        function = {"name": "add", "arguments": arguments}
        calls = [{"id": name, "type": "function", "function": function}]
        pool.say(name, "", message={"role": "assistant", "content": None, "tool_calls": calls})
    pool.say("poet", "It is 1")
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert voted(gateway, tools=tools) == {'[["add",{"a":1}]]': 2, "1": 1}


CLOSE = (
    "Paris is the capital of France.",
    "Paris is the capital city of France.",  # the closest to both others
    "Paris is the capital city of the French.",
)
FAR = "The moon orbits the earth once a month."
MEANING = {"equality": "semantic", "similarity": 0.75}


def test_open_texts_vote_by_what_they_mean(shared: Shared, pool: FakePool) -> None:
    """Texts that are close to one are its class, and the best-scored of them is returned."""
    gateway = shared(aggregation=MEANING).gateway
    for name, text in zip(POOL, (CLOSE[0], FAR, CLOSE[1]), strict=True):
        pool.say(name, text)
    answer = gateway.chat(ONE, WHOLE_POOL)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["model"] in ("adder", "poet")
    for name, text in zip(POOL, (CLOSE[0], CLOSE[2], CLOSE[1]), strict=True):
        pool.say(name, text)
    answer = gateway.chat(ONE, WHOLE_POOL)
    assert list(answer["racer"]["votes"].values()) == [3]
    assert answer["racer"]["votes"].keys() == {answer["model"]}


def test_a_refusal_has_no_vote(shared: Shared, pool: FakePool) -> None:
    """Neither its text nor its meaning counts for an answer."""
    refusal = {"role": "assistant", "content": "I cannot say.", "refusal": "I cannot say."}
    for rule in ({}, MEANING):
        gateway = shared(aggregation=rule).gateway
        pool.say("adder", "", message=refusal)
        pool.say("speller", "", message=refusal)
        pool.say("poet", "42")
        answer = gateway.chat(ONE, WHOLE_POOL | {"explain": True})
        assert sum(answer["racer"]["votes"].values()) == 1
        assert answer["model"] == "poet"


OPTIONS = f"{ONE}\nA. six\nB. seven\nC. eight"


def test_auto_equality_depends_on_the_request(shared: Shared, pool: FakePool) -> None:
    """`auto`: letters for options, JSON where it is demanded, else the meaning."""
    gateway = shared(aggregation={"equality": "auto", "similarity": 0.75}).gateway
    for name, text in zip(POOL, ("The answer is B", "(B)", "C"), strict=True):
        pool.say(name, text)
    assert voted(gateway, OPTIONS) == {"B": 2, "C": 1}
    for name, text in zip(POOL, ('{"a": 1}', '{"a":1.0}', "[2]"), strict=True):
        pool.say(name, text)
    wanted = {"type": "json_object"}
    assert voted(gateway, response_format=wanted) == {'{"a":1}': 2, "[2]": 1}
    body = {"model": "auto", "input": ONE, "text": {"format": wanted}, "racer": WHOLE_POOL}
    votes = gateway.post("/v1/responses", json=body).json()["racer"]["votes"]
    assert votes['{"a":1}'] == 2
    for name, text in zip(POOL, (CLOSE[0], FAR, CLOSE[1]), strict=True):
        pool.say(name, text)
    assert sorted(voted(gateway).values()) == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_open_questions_can_go_to_the_best_alone(
    shared: Shared, pool: FakePool, stream: bool
) -> None:
    """``open_ended: top`` calls one and promises nothing; other questions are voted on."""
    case = shared(aggregation={"equality": "auto", "open_ended": "top"})
    gateway = case.gateway
    answer = (case.stream(TWO) if stream else case.ask(TWO)).body
    assert pool.models_called() == ["adder"]
    assert (answer["racer"]["selected"], reasons(answer)) == (["adder"], ["no_vote"])
    assert answer["racer"]["certificate"]["holds"] is False
    pool.reset()
    pool.say("adder", "A")
    pool.say("speller", "B")
    voters = gateway.chat(f"{TWO}\nA. three\nB. four", {"explain": True})["racer"]
    assert len(voters["votes"]) == len(voters["selected"]) > 1
    assert gateway.chat(ONE)["racer"]["certificate"]["holds"], "one was chosen anyway"


# The shadow sample ------------------------------------------------------------------------------


def test_in_a_shadow_decision_the_others_do_not_make_good_for_a_failure(
    shared: Shared, pool: FakePool
) -> None:
    """Its client gets the error that a client outside the sample gets."""
    pool.fail("adder", FAILS_AT_ONCE)
    errors = [shared(watching={"shadow_rate": rate}).gateway.ask(ONE) for rate in (1.0, 0.0)]
    assert errors[0].status_code == errors[1].status_code == 400
    assert errors[0].json() == errors[1].json()


@pytest.mark.parametrize("stream", [False, True])
def test_a_shadow_decision_that_abstains_calls_the_whole_pool_and_abstains(
    serve: Serve, pool: FakePool, stream: bool
) -> None:
    """Whether to abstain was right is part of the risk; the client gets none of the answers."""
    case = GatewayCase(serve(watching={"shadow_rate": 1.0}), pool)
    pool.say("adder", "7")
    pool.fail("poet", FAILS_AT_ONCE)
    answer = case.stream(UNANSWERABLE) if stream else case.ask(UNANSWERABLE)
    racer = answer.racer
    if not stream:
        tokens = sum(each["total_tokens"] for each in racer["usage"])
        assert answer.body["usage"]["total_tokens"] == tokens
    sampled(case.gateway, 1)
    assert pool.models_called() == sorted(POOL)
    assert "none answers" in answer.text
    assert (racer["abstained"], racer["served_by"], racer["votes"]) == (True, None, {})
    assert racer["calls"] == []
    assert racer["certificate"]["holds"] is True


# Normal forms of answers --------------------------------------------------------------------------


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
    return AnswerReader(
        encoding.embed, never, similarity=0.75, text=SHIPPED, embed_chars=embed_chars
    )  # type: ignore[arg-type]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each form was made on the event loop's thread."""
    on_the_loop: list[bool] = []
    for name in ("normalise", "tool_call_form", "wording"):
        function = getattr(answer_forms, name)

        def noting(*given: object, function: object = function) -> object:
            on_the_loop.append(threading.current_thread() is threading.main_thread())
            assert callable(function)
            return function(*given)

        monkeypatch.setattr(answer_forms, name, noting)
    return on_the_loop


async def test_long_answers_are_read_on_a_thread(threads: list[bool]) -> None:
    """Short ones on the loop; tool calls, of unknown size, always on a thread."""
    for choice, form in (
        (Choice(text="1 " * (SMALL_BYTES // 2)), "1"),
        (Choice(text="1 " * SMALL_BYTES), "1"),
        (Choice(tool_calls=({"name": "add"},)), '[["add",{}]]'),
    ):
        assert await reader().form(Equality.NUMBER, [choice]) == form
    for size in (SMALL_BYTES // 4, SMALL_BYTES):
        assert await reader().compared(Equality.TEXT, replied("1 " * size), "?") is not None
    assert threads == [True, False, False, True, False]


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
    reads = reader(encoding, embed_chars=10)
    texts = ("x" * 9, "y" * 11, "z" * (VOTE_CHARS + 1))
    found = [await reads.compared(Equality.SEMANTIC, replied(text), "") for text in texts]
    assert encoding.given == ["x" * 9, "y" * 10]
    assert found[2] is None


def vote(kind: Equality, deadline: float) -> Vote:
    """A vote whose formulas and meanings are never read."""
    return Vote(
        rule=Aggregation(),
        kind=kind,
        reader=AnswerReader(never, never, similarity=0.75, text=SHIPPED, embed_chars=10),  # type: ignore[arg-type]
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
    """A formula or a meaning that waits for others; what came in time is a vote all the same."""
    async with asyncio.timeout(60):
        late = vote(Equality.MATH, time.monotonic() + 0.05)
        assert await late.read(replied("1")) is None
        assert await vote(Equality.SEMANTIC, time.monotonic() + 0.05).read(replied("1")) is None
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
