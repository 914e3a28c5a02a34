"""Event templates: stream events that differ in their text alone are read and written as others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from app.answering.token_usage import TokenMeter
from app.upstream.http_client import UpstreamAnswer
from app.upstream.stream import CandidateStream
from app.wire.chat import Chat
from app.wire.event_template import Piece, parsed
from app.wire.format import ApiFormat, EventWriter
from app.wire.responses import Responses
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


class Cut:
    """An answer whose bytes arrive in parts of these sizes."""

    is_stream = True

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        self._left = data
        self._sizes = iter([*sizes, *[7] * len(data)])

    async def read_part(self) -> bytes:
        """The next part; nothing at the end."""
        size = next(self._sizes, 0)
        part, self._left = self._left[:size], self._left[size:]
        return part

    async def finish(self) -> None:
        """The answer was whole."""


def pieces(api_format: ApiFormat, data: bytes, sizes: Sequence[int]) -> list[Piece]:
    """What is read of a stream."""

    async def read() -> list[Piece]:
        answer = cast("UpstreamAnswer", Cut(data, sizes))
        stream = CandidateStream("adder", api_format, answer)
        found: list[Piece] = []
        while arrived := await stream.read():
            found += arrived
        return found

    return asyncio.run(read())


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
