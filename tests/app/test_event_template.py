"""Event templates: a fast parser for stream events that differ only in their text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from app.upstream.http_client import UpstreamAnswer
from app.upstream.stream import pieces_of
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.event_template import EventTemplate
from app.wire.format import ApiFormat
from app.wire.responses import Responses

from .test_stream_end import Sent

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
# Names and values that might be taken for a key, or for the text itself.
WORDS = st.sampled_from(["content", '"content"', "text", 'x","content":"y', "\\", "a", "", "é"])


def chat(text: object, **fields: Any) -> dict[str, Any]:
    """A chunk as servers send it."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return {"id": "a", "object": "chat.completion.chunk", "choices": [choice]} | fields


def completion(text: object, **fields: Any) -> dict[str, Any]:
    """The like of a continued prompt."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    return {"id": "a", "object": "text_completion", "choices": [choice]} | fields


SHAPES = [(Chat(), chat), (Completions(), completion)]
FORMS: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {"separators": (", ", ": "), "ensure_ascii": False},
    {"separators": (",", " :  ")},
]


def template_of(api_format: ApiFormat, data: str) -> EventTemplate | None:
    """What is learnt from one event."""
    return api_format.event_template(data, api_format.piece("adder", data))


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
    assert event_template.piece(data) == api_format.piece("adder", data)


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
    if event_template is not None and (piece := event_template.piece(data)) is not None:
        assert piece == Chat().piece("adder", data)


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
    assert event_template.piece(json.dumps(changed)) is None


@pytest.mark.parametrize("raw", ['"\\ud800"', '"a" ,"b":"c"', "1", '"a', "", '"\x01"'])
def test_events_without_a_plain_text_fit_no_template(raw: str) -> None:
    """Half a surrogate pair, more than a text, another kind of value, a text that does not end."""
    data = json.dumps(chat("TEXT"))
    event_template = template_of(Chat(), data)
    assert event_template is not None
    assert event_template.piece(data.replace('"TEXT"', raw)) is None


def test_ends_are_not_cut_out_of_each_other() -> None:
    """An event shorter than what stands around the text."""
    event_template = EventTemplate('{"a":"', '"a":"b"}', lambda text: {"a": text})
    assert event_template.piece('{"a":"b"}') is None


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


def pieces(api_format: ApiFormat, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is read of a stream."""
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    sent = Sent([*map(json.dumps, [*events, finish]), "[DONE]"], None)

    async def read() -> list[dict[str, Any]]:
        return [
            piece async for piece in pieces_of("adder", api_format, cast("UpstreamAnswer", sent))
        ]

    return asyncio.run(read())


@given(events=EVENTS)
def test_a_stream_is_read_as_if_every_event_were(events: list[dict[str, Any]]) -> None:
    """Texts among roles, tool calls and counts; also if no template can be learnt."""
    assert pieces(Chat(), events) == pieces(InFull(), events)


def test_templates_are_used_in_streams_and_given_up_where_none_fits() -> None:
    """Alike events are learnt from once; where all differ, only from the first few."""
    learnt: list[str] = []

    class Counting(Chat):
        def event_template(self, data: str, piece: Any) -> EventTemplate | None:
            learnt.append(data)
            return Chat.event_template(self, data, piece)

    pieces(Counting(), [chat(str(number)) for number in range(100)])
    assert len(learnt) <= 2  # the first, and the one that finishes
    learnt.clear()
    pieces(Counting(), [chat("a", id=str(number)) for number in range(100)])
    assert len(learnt) < 10
