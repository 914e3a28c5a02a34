"""Streams of candidates: templates of alike events, and where a stream ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from app.answering.token_usage import TokenMeter
from app.errors import UpstreamError
from app.upstream.http_client import UpstreamAnswer
from app.upstream.stream import CandidateStream
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.event_template import Piece, parsed
from app.wire.format import ApiFormat, EventWriter
from app.wire.messages.format import Messages
from app.wire.responses import Responses
from app.wire.token_bounds import BelievedCounts
from tests.kit.event_templates import SHAPES, TEXTS, chat, template_of

# Names and values that might be taken for a key, or for the text itself.
WORDS = st.sampled_from(["content", '"content"', "text", 'x","content":"y', "\\", "a", "", "é"])


FORMS: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {"separators": (", ", ": "), "ensure_ascii": False},
    {"separators": (",", " :  ")},
]


@pytest.mark.parametrize(("api_format", "chunk"), SHAPES, ids=["chat", "completions"])
@pytest.mark.parametrize("form", FORMS, ids=["compact", "spaced", "odd"])
@given(first=TEXTS, second=TEXTS)
def test_an_alike_event_is_read_as_it_would_be(
    api_format: ApiFormat, chunk: Any, form: dict[str, Any], first: str, second: str
) -> None:
    """For any JSON formatting, and any texts but the key, which gives no template."""
    assume(first != api_format.text_key)
    event_template = template_of(api_format, json.dumps(chunk(first), **form))
    assert event_template is not None
    data = json.dumps(chunk(second), **form)
    event = event_template.event(data)
    assert event is not None
    assert event.parsed() == api_format.piece("adder", data)


@given(
    learnt=st.fixed_dictionaries({"name": WORDS, "value": WORDS, "text": TEXTS | WORDS}),
    read=st.fixed_dictionaries({"name": WORDS, "value": WORDS, "text": TEXTS | WORDS}),
    escaped=st.booleans(),
    deeper=st.booleans(),
)
@example(
    learnt={"name": "content", "value": "a", "text": "a"},
    read={"name": "content", "value": "b", "text": "a"},
    escaped=True,
    deeper=True,
)
def test_a_template_parses_events_as_json_does(
    learnt: dict[str, str], read: dict[str, str], escaped: bool, deeper: bool
) -> None:
    """Fields around the text that look like it, with its key spelled in escapes or not."""

    def event(delta: dict[str, str]) -> str:
        other: Any = {delta["name"]: delta["value"]}
        fields = chat(delta["text"])
        if deeper:
            fields["choices"][0] = {"other": other, **fields["choices"][0]}
        else:
            fields = {**other, **fields}
        data = json.dumps(fields)
        return data.replace('{"content"', '{"c\\u006fntent"') if escaped else data

    event_template = template_of(Chat(), event(learnt))
    data = event(read)
    if event_template is not None and (alike := event_template.event(data)) is not None:
        assert alike.parsed() == Chat().piece("adder", data)


@pytest.mark.parametrize(
    "changed",
    [
        chat("b", usage={"total_tokens": 3}),
        chat("b", id="b"),
        chat(None),
        chat(["b"]),
        {**chat("b"), "choices": []},
        {**chat("b"), "choices": chat("b")["choices"] * 2},
    ],
    ids=["usage", "id", "null", "parts", "no choice", "two choices"],
)
def test_another_event_is_not_alike(changed: dict[str, Any]) -> None:
    """It is read in full."""
    event_template = template_of(Chat(), json.dumps(chat("a")))
    assert event_template is not None
    assert event_template.event(json.dumps(changed)) is None


@pytest.mark.parametrize("raw", ['"\\ud800"', '\n"a"', '"a" ,"b":"c"', "1", '"a', "", '"\x01"'])
def test_events_without_a_plain_text_fit_no_template(raw: str) -> None:
    """Half a surrogate pair, more than a text, another kind of value, a text that does not end."""
    data = json.dumps(chat("TEXT"))
    event_template = template_of(Chat(), data)
    assert event_template is not None
    assert event_template.event(data.replace('"TEXT"', raw)) is None


def test_events_with_numbers_have_no_template() -> None:
    """Those of /v1/responses."""
    data = json.dumps({"type": "response.output_text.delta", "delta": "a", "sequence_number": 4})
    assert template_of(Responses(), data) is None


# In a stream -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InFull(Chat):
    """Reads every event."""

    def event_template(self, data: str, piece: Any) -> None:
        """None."""


EVENTS = st.lists(
    st.one_of(
        TEXTS.map(chat),
        st.builds(chat, TEXTS, id=st.sampled_from("ab")),
        st.just({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
        st.just({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}),
        st.just({"choices": [], "usage": {"total_tokens": 3}}),
        st.builds(chat, TEXTS, usage=st.fixed_dictionaries({"total_tokens": st.integers(0, 9)})),
    ),
    max_size=30,
)


FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class Sent:
    """An answer whose bytes arrive in these parts, and which then breaks off or ends."""

    is_stream = True

    def __init__(self, parts: Iterable[bytes], failure: str | None = None) -> None:
        self._parts = iter(parts)
        self._failure = failure
        self.is_complete = False

    async def read_part(self) -> bytes:
        """The next part; in the end a failure, or nothing."""
        for part in self._parts:
            return part
        if self._failure is not None:
            raise UpstreamError("adder broke off", kind=self._failure)
        return b""

    async def finish(self) -> None:
        """The answer was whole."""
        self.is_complete = True


async def read_into(found: list[Piece], api_format: ApiFormat, sent: Sent) -> None:
    """What is read of a stream; what arrived before a failure is there, too."""
    counts = BelievedCounts({}, api_format.path, {}, 100, lambda: None)
    stream = CandidateStream("adder", api_format, cast("UpstreamAnswer", sent), counts)
    while arrived := await stream.read():
        found += arrived


def pieces(api_format: ApiFormat, data: bytes, sizes: Sequence[int]) -> list[Piece]:
    """What is read of a stream whose bytes arrive in parts of these sizes."""
    ends = list(accumulate([0, *sizes, *repeat(7, len(data))]))
    found: list[Piece] = []
    parts = (data[start:end] for start, end in pairwise(ends) if data[start:end])
    asyncio.run(read_into(found, api_format, Sent(parts)))
    return found


def stream_of(events: Sequence[dict[str, Any]], end: str = "\n\n") -> bytes:
    """Its bytes, with a comment in the middle."""
    lines = [f"data: {json.dumps(each)}" for each in [*events, FINISH]]
    return end.join([*lines[:3], ": keep-alive", *lines[3:], "data: [DONE]", ""]).encode()


def written(events: Sequence[Piece], writers: Sequence[EventWriter]) -> Iterator[list[Any]]:
    """The JSON events that clients get, by each writer."""
    for each in writers:
        data = b"".join(event for piece in events for event in each.feed(piece))
        assert data.endswith(b"\n\n") or not data
        yield [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


@given(
    events=EVENTS,
    end=st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]),
    sizes=st.lists(st.integers(1, 400), max_size=20),
    include_usage=st.booleans(),
)
def test_a_stream_is_read_and_written_as_if_every_event_were(
    events: list[dict[str, Any]], end: str, sizes: list[int], include_usage: bool
) -> None:
    """Cut anywhere; texts among roles, tool calls and counts; with either writer.

    Tokens are counted alike, too.
    """
    data = stream_of(events, end)
    found, told = [], []
    for api_format in (Chat(include_usage=include_usage), InFull(include_usage=include_usage)):
        read = pieces(api_format, data, sizes)
        assert list(map(parsed, read)) == [*events, FINISH]
        live = api_format.live(decision_id="d", model="m")
        found.append(list(written(read, [api_format.renamed("m"), live])))
        meter = TokenMeter(api_format, {})
        for piece in read:
            meter.count(piece)
        told.append((meter.tokens, live.usage))
    assert found[0] == found[1]
    assert told[0] == told[1]


@given(texts=st.lists(TEXTS | st.sampled_from(["\0text", '"\0text"']), min_size=2))
def test_no_text_of_a_candidate_is_taken_for_the_mark_of_the_text(texts: list[str]) -> None:
    """Also where the mark stands beside the text in every event."""
    for field in ("none", "\0text", '"\0text'):
        events = [chat(text, system_fingerprint=field) for text in texts]
        read = pieces(Chat(), stream_of(events), [])
        [renamed] = written(read, [Chat().renamed("m")])
        assert renamed == [{**each, "model": "m"} for each in [*events, FINISH]]


# The end of a stream -----------------------------------------------------------------------------


BROKEN_OFF = ("upstream_disconnected", "upstream_timeout", "upstream_protocol_error")


def is_whole(api_format: ApiFormat, events: Sequence[str], failure: str | None = None) -> bool:
    """Whether these events are an answer; all of them are handed on either way."""
    sent = Sent([f"data: {each}\n\n".encode() for each in events], failure)
    found: list[Piece] = []
    with suppress(UpstreamError):
        asyncio.run(read_into(found, api_format, sent))
    assert len(found) == len([each for each in events if each != "[DONE]"])
    return sent.is_complete


def event(api_format: ApiFormat, index: int, finish: str | None) -> str:
    """A chunk of one choice."""
    choice = {"delta": {"content": "7"}} if isinstance(api_format, Chat) else {"text": "7"}
    return json.dumps({"choices": [{"index": index, "finish_reason": finish, **choice}]})


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[ApiFormat, list[str], bool]:
    """The choices of an honest stream in any order, cut anywhere; whether all had finished."""
    n = draw(st.integers(1, 3))
    api_format = draw(st.sampled_from([Chat, Completions]))(n=n)
    order = draw(st.permutations([i for i in range(n) for _ in range(draw(st.integers(1, 3)))]))
    last = {index: place for place, index in enumerate(order)}
    cut = draw(st.integers(0, len(order)))
    events = [
        event(api_format, index, "stop" if last[index] == place else None)
        for place, index in enumerate(order[:cut])
    ]
    return api_format, events, cut == len(order)


@given(stream=cut_streams(), failure=st.sampled_from([None, *BROKEN_OFF]))
def test_a_cut_stream_is_complete_once_every_requested_choice_has_finished(
    stream: tuple[ApiFormat, list[str], bool], failure: str | None
) -> None:
    """For every cut and every interleaving of choices, no choice misses a part."""
    api_format, events, finished = stream
    assert is_whole(api_format, events, failure) is finished


@given(stream=cut_streams())
def test_done_is_believed_only_of_choices_that_have_finished(
    stream: tuple[ApiFormat, list[str], bool],
) -> None:
    """A server that knows no ``n`` sends one choice and says so; a choice in the air is cut."""
    api_format, events, _ = stream
    last = dict[int, str | None]()
    for each in events:
        choice = json.loads(each)["choices"][0]
        last[choice["index"]] = choice["finish_reason"]
    assert is_whole(api_format, [*events, "[DONE]"]) is (bool(last) and all(last.values()))


@pytest.mark.parametrize("kind", ["upstream_response_too_large", "upstream_invalid_response"])
def test_a_fault_that_is_no_cut_stays_one(kind: str) -> None:
    """After the finish, too."""
    api_format = Chat()
    assert not is_whole(api_format, [event(api_format, 0, "stop")], kind)


@pytest.mark.parametrize(
    "api_format", [Chat(), Completions(), Responses(), Messages()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize(("error", "fails"), [(None, False), ({"message": "no"}, True)])
def test_an_error_that_is_null_is_none(api_format: ApiFormat, error: Any, fails: bool) -> None:
    """Some servers send the field with every event."""
    piece: dict[str, Any] = {"type": "response.in_progress", "choices": [], "error": error}
    with pytest.raises(UpstreamError) if fails else nullcontext():
        assert api_format.piece("m", json.dumps(piece)) == piece


@pytest.mark.parametrize("kind", ["error", "response.failed"])
def test_an_event_of_failure_is_one(kind: str) -> None:
    """A response says so by its type."""
    with pytest.raises(UpstreamError):
        Responses().piece("m", json.dumps({"type": kind, "response": {"status": "failed"}}))
