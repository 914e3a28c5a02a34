"""Answers without a text: forwarding, votes and certificates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.access.quotas import QuotaTicket
from app.answering import streaming
from tests.kit.case import Shared
from tests.kit.gateway import ONE, POOL, TWO, Gateway, user
from tests.kit.upstream import FakePool

from .formats import CHAT, RESPONSES, STREAMED, WHOLE_POOL

# Messages without a text, and the finish reason of each.
REASONING = ({"role": "assistant", "content": None, "reasoning_content": "Three, four"}, "length")
REFUSED = ({"role": "assistant", "content": None, "refusal": "I would rather not."}, "stop")
FILTERED = ({"role": "assistant", "content": None}, "content_filter")
NOTHING = ({"role": "assistant", "content": None}, "stop")
BLANK = ({"role": "assistant", "content": " \n"}, "stop")
EMPTY = ({"role": "assistant", "content": ""}, "stop")
WITHOUT_TEXT = {
    "reasoning": REASONING,
    "refused": REFUSED,
    "filtered": FILTERED,
    "blank": BLANK,
    "empty": EMPTY,
}
Answer = tuple[dict[str, Any], str]

EACH_KIND = pytest.mark.parametrize("answer", WITHOUT_TEXT.values(), ids=WITHOUT_TEXT)


def set_answers(pool: FakePool, name: str, *answers: Answer) -> None:
    """Let a candidate answer these choices, whole and streamed: the role first, as servers do."""
    whole: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for index, (message, finish) in enumerate(answers):
        whole.append({"index": index, "message": message, "finish_reason": finish})
        delta = {key: value for key, value in message.items() if value is not None}
        role = {"role": "assistant"} | ({"content": ""} if "content" in delta else {})
        parts += [
            {"index": index, "delta": role, "finish_reason": None},
            {"index": index, "delta": delta, "finish_reason": None},
            {"index": index, "delta": {}, "finish_reason": finish},
        ]
    pool.say(name, "", fields={"choices": whole}, choices=parts)


def text(content: str) -> Answer:
    """A usual answer."""
    return {"role": "assistant", "content": content}, "stop"


def ask(
    gateway: Gateway, query: str, racer: dict[str, Any] | None = None, **fields: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The text, finish and extra members of the answer as one message; and the racer object."""
    body: dict[str, Any] = {"messages": user(query)} | fields
    stream = body.pop("stream", False)
    if not stream:
        response = CHAT.post(gateway, query, racer=racer or {}, **body)
        assert response.status_code == 200, response.text
        answer = response.json()
        (choice, *_) = answer["choices"]
        return choice["message"] | {"finish": choice["finish_reason"]}, answer.get("racer", {})
    _, events = CHAT.stream(gateway, query, racer=racer or {}, **body)
    message: dict[str, Any] = {"content": None}
    for choice in (choice for event in events for choice in event["choices"]):
        if choice["index"]:
            continue
        for key, value in choice["delta"].items():
            is_text = isinstance(value, str) and key != "role"
            message[key] = (message.get(key) or "") + value if is_text else value
        if choice["finish_reason"]:
            message["finish"] = choice["finish_reason"]
    return message, events[-1].get("racer", {})


def matches(message: dict[str, Any], answer: Answer) -> bool:
    """Whether an answer is what a candidate sent; a stream cannot tell null from empty."""
    expected = {key: value for key, value in answer[0].items() if value}
    answered = {key: value for key, value in message.items() if value and key != "finish"}
    return answered == expected and message["finish"] == answer[1]


# A candidate by its name ------------------------------------------------------------------------


@STREAMED
@pytest.mark.parametrize(
    "answer", [*WITHOUT_TEXT.values(), NOTHING], ids=[*WITHOUT_TEXT, "nothing"]
)
def test_a_named_candidate_is_passed_on_as_it_is(
    gateway: Gateway, pool: FakePool, answer: Answer, stream: bool
) -> None:
    """One rule for plain answers and streams: a valid shape is an answer, with text or without."""
    set_answers(pool, "poet", answer)
    message, _ = ask(gateway, ONE, model="poet", stream=stream)
    assert matches(message, answer)


def test_the_official_client_reads_a_named_candidate_without_text(
    gateway: Gateway, pool: FakePool
) -> None:
    """Its completion, and its own stream helper."""
    set_answers(pool, "poet", FILTERED)
    chat = gateway.openai().chat.completions
    whole = chat.create(model="poet", messages=user(ONE)).choices[0]
    with chat.stream(model="poet", messages=user(ONE)) as stream:
        assert list(stream)
    assert (whole.message.content, whole.finish_reason) == (None, "content_filter")


@STREAMED
@pytest.mark.parametrize("output", [[], [{"type": "reasoning", "id": "r", "summary": []}]])
def test_a_named_response_without_a_message_is_passed_on(
    gateway: Gateway, pool: FakePool, output: list[Any], stream: bool
) -> None:
    """The Responses API has the same rule."""
    details = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    pool.say("poet", "", fields={"output": output, **details})
    if stream:
        _, events = RESPONSES.stream(gateway, ONE, model="poet")
        assert events[-1]["response"]["output"] == output
    else:
        assert RESPONSES.answer(gateway, ONE, model="poet")["output"] == output


# In a set ---------------------------------------------------------------------------------------


@STREAMED
@EACH_KIND
def test_in_a_set_an_answer_without_text_has_no_vote(
    gateway: Gateway, pool: FakePool, answer: Answer, stream: bool
) -> None:
    """The other's text is returned. Rows label the first wrong, so the guarantee holds."""
    set_answers(pool, "adder", answer)
    set_answers(pool, "speller", text("seven"))
    message, racer = ask(gateway, TWO, {"explain": True}, stream=stream)
    assert message["content"] == "seven"
    assert (racer["served_by"], racer["votes"]) == ("speller", {"seven": 1})
    assert racer["certificate"]["holds"] is True
    assert [each["candidate"] for each in racer["calls"]] == ["adder", "speller"]
    assert not any("error" in each for each in racer["calls"])


@STREAMED
@EACH_KIND
@pytest.mark.parametrize(
    "rule",
    [
        {"equality": "number"},
        {"equality": "exact", "method": "weighted"},
        {"equality": "json", "method": "log_odds", "waves": "frugal"},
        {"equality": "semantic"},
        {"equality": "choice"},
    ],
    ids=lambda rule: rule["equality"],
)
def test_a_text_that_cannot_be_read_is_better_than_none(
    shared: Shared, pool: FakePool, rule: dict[str, str], answer: Answer, stream: bool
) -> None:
    """The adder has the highest score, and no answer is a vote: its blank is not chosen."""
    gateway = shared(aggregation=rule).gateway
    set_answers(pool, "adder", answer)
    for name in ("speller", "poet"):
        set_answers(pool, name, text("I cannot say"))
    message, racer = ask(gateway, ONE, WHOLE_POOL, stream=stream)
    assert message["content"] == "I cannot say"
    assert racer["served_by"] != "adder"


@STREAMED
@pytest.mark.parametrize(
    ("worse", "better"),
    [(EMPTY, REASONING), (BLANK, FILTERED), (REASONING, REFUSED), (FILTERED, REFUSED)],
)
def test_without_an_answer_a_refusal_then_reasoning_then_a_blank_is_returned(
    gateway: Gateway, pool: FakePool, worse: Answer, better: Answer, stream: bool
) -> None:
    """A refusal before reasoning or a filter, and these before a blank, for any scores."""
    set_answers(pool, "adder", worse)
    set_answers(pool, "speller", better)
    set_answers(pool, "poet", worse)
    message, racer = ask(gateway, ONE, WHOLE_POOL, stream=stream)
    assert matches(message, better)
    assert (racer["served_by"], racer["votes"]) == ("speller", {})


@STREAMED
@pytest.mark.parametrize("query", [ONE, TWO])
@pytest.mark.parametrize("answer", [REASONING, FILTERED, BLANK, EMPTY, REFUSED])
def test_without_an_answer_the_certificate_is_void(
    gateway: Gateway, pool: FakePool, answer: Answer, query: str, stream: bool
) -> None:
    """Every answer of the set would be labelled wrong; a refusal may be labelled right."""
    for name in POOL:
        set_answers(pool, name, answer)
    message, racer = ask(gateway, query, stream=stream)
    assert matches(message, answer)
    certificate = racer["certificate"]
    assert certificate["holds"] is (answer is REFUSED)
    assert ("set_unanswered" in certificate["reasons"]) is (answer is not REFUSED)
    if answer is not REFUSED:
        assert (racer["served_by"], racer["votes"]) == ("adder", {})


CUT: Answer = ({}, "cut")  # the stream breaks off before its first text


@STREAMED
@pytest.mark.parametrize("answer", [REASONING, FILTERED, BLANK, EMPTY, NOTHING, CUT])
def test_where_the_only_member_has_no_answer_another_is_called(
    shared: Shared,
    pool: FakePool,
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    stream: bool,
) -> None:
    """`cover` calls one of two who are right together; what was answered is charged, once.

    Reasoning has begun when it is sent, so a stream of it stays.
    """
    gateway = shared(routing={"score": "cover"}).gateway
    (chosen,) = gateway.route(TWO)["selected"]
    (other,) = {"adder", "speller"} - {chosen}
    if answer is CUT:
        pool.say(chosen, "", fault="cut" if stream else "half")
    else:
        set_answers(pool, chosen, answer)
    set_answers(pool, other, text("larger"))
    spent: list[int] = []
    monkeypatch.setattr(QuotaTicket, "spend", lambda _, tokens: spent.append(tokens))
    message, racer = ask(gateway, TWO, stream=stream)
    if answer is not NOTHING:  # whose prompt is charged, and which is not listed
        assert sum(spent) == sum(each["total_tokens"] for each in racer["usage"])
    certificate = racer["certificate"]
    assert certificate["holds"] is False
    if stream and answer is REASONING:
        assert (racer["served_by"], matches(message, answer)) == (chosen, True)
        assert certificate["reasons"] == ["set_unanswered"]
        return
    failed = answer in (NOTHING, CUT)
    assert (racer["served_by"], message["content"]) == (other, "larger")
    reason = f"candidate_failed:{chosen}" if failed else "set_unanswered"
    assert certificate["reasons"] == [reason]
    assert set(pool.models_called()) == {chosen, other}
    used = {each["candidate"] for each in racer["usage"]}
    assert used == ({other} if failed else {chosen, other})


@STREAMED
@pytest.mark.parametrize("equality", ["exact", "semantic"])
def test_of_two_choices_one_may_be_filtered(
    shared: Shared, pool: FakePool, equality: str, stream: bool
) -> None:
    """The candidate's other choice votes, and both are returned as they are."""
    gateway = shared(aggregation={"equality": equality}).gateway
    for name in ("adder", "speller"):
        set_answers(pool, name, FILTERED, text("seven"))
    for query in (ONE, TWO):
        response = gateway.ask(query, {"explain": True}, n=2, stream=stream)
        data = response.text.split("data: ")[-2] if stream else response.text
        racer = json.loads(data)["racer"]
        assert racer["certificate"]["holds"] is True
        assert "seven" in response.text
        assert '"content_filter"' in response.text
        if query is TWO:
            assert list(racer["votes"].values()) == [2]
            assert racer["answers"] == {"adder": "seven", "speller": "seven"}


@STREAMED
@pytest.mark.parametrize(
    "fields",
    [
        {
            "output": [{"type": "reasoning", "id": "r", "summary": []}],
            "incomplete_details": {"reason": "max_output_tokens"},
        },
        {"output": [], "incomplete_details": {"reason": "content_filter"}},
    ],
    ids=["reasoning", "filtered"],
)
def test_responses_of_reasoning_or_a_filter_alone_are_returned_last(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any], stream: bool
) -> None:
    """A text is preferred; where no candidate has one, the set misses."""
    for name in POOL:
        pool.say(name, "", fields=fields | {"status": "incomplete"})

    def answered(query: str) -> dict[str, Any]:
        if stream:
            return RESPONSES.stream(gateway, query)[1][-1]["response"]
        return RESPONSES.answer(gateway, query)

    for query in (ONE, TWO):
        answer = answered(query)
        assert answer["output"] == fields["output"]
        assert "set_unanswered" in answer["racer"]["certificate"]["reasons"]
    pool.say("speller", "seven")
    answer = answered(TWO)
    certificate = answer["racer"]["certificate"]
    assert RESPONSES.text(answer) == "seven"
    assert certificate["reasons"] == ["conditions_differ:endpoint"]


# Streams ----------------------------------------------------------------------------------------


def test_white_space_without_end_is_not_held_without_end(
    gateway: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a bound the events go out, so that they take no memory, and the text follows."""
    monkeypatch.setattr(streaming, "HELD_CHARS", 4_000)
    pool.say("adder", " " * 100 + "7")
    _, events = CHAT.stream(gateway, ONE)
    assert "".join(map(CHAT.delta, events)) == " " * 100 + "7"
    assert events[-1]["racer"]["certificate"]["holds"] is True
    pool.say("adder", " " * 100)
    _, events = CHAT.stream(gateway, ONE)
    assert len(events) > 100  # live: a merged answer has two
    assert events[-1]["racer"]["certificate"]["reasons"] == ["set_unanswered"]
