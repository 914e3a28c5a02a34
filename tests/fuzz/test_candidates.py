"""What candidates send: an answer, or one error that says so."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UpstreamError
from app.upstream.reply import Reply, completion
from app.upstream.retries import retry_after_s
from app.wire import parsing
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.format import ApiFormat
from app.wire.messages.format import Messages
from app.wire.responses import Responses
from app.wire.sse import EventReader

from .strategies import Strategy, damaged, json_texts, objects, texts, written

pytestmark = pytest.mark.slow

ENVELOPE = {"error": {"message": "m", "type": "t", "param": None, "code": "c"}}
RACER = {"decision_id": "d"}
FORGED = {"decision_id": "forged"}

_text = st.text(max_size=5)
_counts = st.integers(-1, 9)
_usage = objects(
    {
        name: _counts
        for name in (
            *("prompt_tokens", "completion_tokens", "total_tokens"),
            *("input_tokens", "output_tokens"),
        )
    }
)
_parts = st.lists(
    objects(
        {
            "type": st.sampled_from(["text", "output_text", "refusal"]),
            "text": _text,
            "refusal": _text,
        }
    ),
    max_size=2,
)
_call = objects({"name": _text, "arguments": _text})
_tool_calls = st.lists(
    objects({"id": _text, "index": st.integers(0, 2), "type": _text, "function": _call}), max_size=2
)
_message = objects(
    {
        "role": st.just("assistant"),
        "content": st.one_of(_text, _parts, st.none()),
        "tool_calls": st.one_of(_tool_calls, st.none()),
        "function_call": _call,
        "refusal": st.one_of(_text, st.none()),
        "audio": st.none(),
    }
)
_finish = st.sampled_from(["stop", "length", "tool_calls", "eos_token", "abort", None])
_forged = st.just(FORGED)
_logprobs = objects(
    {
        "content": st.lists(objects({"token": _text, "logprob": st.floats(-9, 0)}), max_size=2),
        "top_logprobs": st.lists(st.dictionaries(_text, st.floats(-9, 0), max_size=2), max_size=2),
    }
)
_choices = st.lists(
    objects(
        {
            "index": st.integers(0, 2),
            "text": _text,
            "message": _message,
            "delta": _message,
            "finish_reason": _finish,
            "logprobs": st.one_of(_logprobs, st.none()),
            "racer": _forged,
        }
    ),
    max_size=3,
)
_completions = objects(
    {
        "id": _text,
        "object": _text,
        "created": st.integers(),
        "model": _text,
        "choices": _choices,
        "usage": st.one_of(_usage, st.none()),
        "racer": _forged,
        "x-racer-guarantee": _forged,
    }
)
_items = st.lists(
    objects(
        {
            "type": st.sampled_from(["message", "function_call", "reasoning"]),
            "id": _text,
            "content": st.one_of(_parts, st.none()),
            "name": _text,
            "arguments": _text,
        }
    ),
    max_size=3,
)
_response = objects(
    {
        "id": _text,
        "status": st.sampled_from(["completed", "incomplete", "failed"]),
        "output": _items,
        "usage": st.one_of(_usage, st.none()),
        "error": st.none(),
        "racer": _forged,
    }
)
_events = objects(
    {
        "type": st.sampled_from(
            ["response.created", "response.completed", "response.incomplete", "error", "x\ny"]
        ),
        "response": _response,
        "delta": _text,
        "sequence_number": st.integers(),
        "racer": _forged,
    }
)
FORMATS: dict[str, tuple[list[ApiFormat], Strategy, Strategy]] = {
    "chat": ([Chat(), Chat(n=2, include_usage=True)], _completions, _completions),
    "completions": (
        [Completions(), Completions(n=2, include_usage=True)],
        _completions,
        _completions,
    ),
    "responses": ([Responses()], _response, _events),
    "messages": ([Messages(), Messages(shows_thinking=True)], _completions, _completions),
}


def sent(values: Strategy) -> Strategy:
    """A document as bytes, or other bytes."""
    return st.one_of(
        written(values).map(lambda text: text.encode()),
        damaged(written(values).map(lambda text: text.encode())),
        json_texts.map(lambda text: text.encode()),
        st.binary(max_size=20),
    )


@pytest.mark.parametrize("name", FORMATS)
def test_any_body_is_an_answer_or_an_error(name: str) -> None:
    """An answer that was taken can be told in every way: whole, as a stream, as a vote."""
    api_formats, bodies, _ = FORMATS[name]

    @given(api_format=st.sampled_from(api_formats), data=sent(bodies))
    def check(api_format: ApiFormat, data: bytes) -> None:
        try:
            body = api_format.body("qwen", data)
        except UpstreamError:
            return
        _check_answer(api_format, body)

    check()


def _check_answer(api_format: ApiFormat, body: dict[str, Any]) -> None:
    reply = Reply.of("qwen", body, api_format)
    assert reply.choices
    assert all(count >= 0 for count in reply.usage.values())
    json.dumps(reply.as_json(), allow_nan=False)
    whole = api_format.stamped(body, decision_id="d", model="qwen", usage=reply.usage)
    assert api_format.named(body, "llama")["model"] == "llama"
    assert isinstance(api_format.answer_text(whole), str)
    assert "forged" not in json.dumps([whole, api_format.named(body, "llama")])
    events = _read_back(api_format.whole_stream(whole, RACER))
    assert RACER in _racers(*events[-2:])
    # Servers that do not stream are cut into the pieces of a stream.
    assert any(any(api_format.ends(piece).values()) for piece in api_format.pieces(body))
    with suppress(UpstreamError):
        _check_stream(api_format, api_format.pieces(body))


@pytest.mark.parametrize("name", FORMATS)
def test_any_stream_is_an_answer_or_an_error(name: str) -> None:
    """A stream that was taken reaches the client as events that can be read."""
    api_formats, _, pieces = FORMATS[name]

    @given(api_format=st.sampled_from(api_formats), data=st.lists(sent(pieces), max_size=4))
    def check(api_format: ApiFormat, data: list[bytes]) -> None:
        read: list[dict[str, Any]] = []
        for each in data:
            try:
                read.append(api_format.piece("qwen", each.decode("utf-8", "replace")))
            except UpstreamError:
                break
        for piece in read:
            assert isinstance(api_format.is_wanted(piece), bool)
            api_format.usage(piece)
        with suppress(UpstreamError):  # parts of calls that fit no block
            named = api_format.renamed("qwen")
            out = [event for piece in read for event in named.feed(piece)]
            _read_back([*out, named.end()])
        with suppress(UpstreamError):
            _check_stream(api_format, read)

    check()


def _check_stream(api_format: ApiFormat, pieces: list[dict[str, Any]]) -> None:
    """What the client would get of it."""
    live = api_format.live(decision_id="d", model="qwen")
    out = [event for piece in pieces for event in live.feed(piece)]
    assert all(count >= 0 for count in live.usage.values())
    if any(any(api_format.ends(piece).values()) for piece in pieces):
        try:
            last = live.close(RACER)
        except UpstreamError:  # it said nothing
            return
        assert RACER in _racers(*_read_back([*out, *last])[-2:])
    else:
        _read_back([*out, api_format.error_event(502, ENVELOPE)])


def _read_back(events: list[bytes]) -> list[Any]:
    """The events as a client reads them, without the mark of the end."""
    assert b"forged" not in b"".join(events)
    read = EventReader().feed(b"".join(events))
    return [json.loads(event) for event in read if event != "[DONE]"]


def _racers(*events: dict[str, Any]) -> list[Any]:
    """Where last events may carry the `racer` object."""
    return [
        each
        for event in events
        for each in (event.get("racer"), (event.get("response") or {}).get("racer"))
    ]


@given(data=sent(_completions))
def test_any_rating_is_one_or_an_error(data: bytes) -> None:
    """What an evaluator says of an answer."""
    try:
        rated = completion("judge", parsing.json_object("judge", data))
    except UpstreamError:
        return
    assert rated.top is None or all(math.isfinite(value) for value in rated.top.values())


_dates = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)).map(
    lambda when: format_datetime(when, usegmt=True)
)


@given(
    header=st.one_of(
        st.text(max_size=20),
        _dates,
        st.floats().map(str),
        st.integers().map(str),
        texts(["Mon", "Tue, ", "1 ", "32 ", "Jan ", "2030 ", "99999999999999999999 ", "10:", "00",
               "61", " GMT", " +0100", "-99999999999999999999", ", ", " "]),
    )
)  # fmt: skip
def test_any_wish_to_wait_is_seconds_or_none(header: str) -> None:
    """``retry-after`` is a number, a date, or not usable."""
    wait_s = retry_after_s({"retry-after": header})
    assert wait_s is None or (wait_s >= 0 and math.isfinite(wait_s))
