"""What a healthy OpenAI-compatible server says: the stuff that modes are made from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from .exchange import Exchange

TEXT: Final = "42"  # what is answered unless a mode says otherwise
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
DONE: Final = b"data: [DONE]\n\n"
USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}

Fields = dict[str, Any]


def choice(text: str = TEXT, **changes: Any) -> Fields:
    """One choice of a whole answer."""
    message = {"role": "assistant", "content": text}
    return {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None, **changes}


def completion(model: str, text: str = TEXT, **fields: Any) -> Fields:
    """A whole answer; ``fields`` replace or add some of it."""
    return {
        "id": "upstream-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice(text)],
        "usage": USAGE,
        **fields,
    }


def chunk(model: str, choices: Sequence[Mapping[str, Any]], **fields: Any) -> Fields:
    """One event's value."""
    return {
        "id": "upstream-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": list(choices),
        **fields,
    }


def piece(model: str, text: str) -> Fields:
    """A chunk that says some text."""
    return chunk(model, [{"index": 0, "delta": {"content": text}, "finish_reason": None}])


def finish(model: str, reason: object = "stop") -> Fields:
    """The chunk that ends a choice."""
    return chunk(model, [{"index": 0, "delta": {}, "finish_reason": reason}])


def pieces(model: str, text: str = TEXT) -> list[Fields]:
    """A text as chunks, a character each, without its finish."""
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return [chunk(model, [role]), *(piece(model, each) for each in text)]


def chunks(model: str, text: str = TEXT) -> list[Fields]:
    """A text as chunks, with its finish and the tokens."""
    return [*pieces(model, text), finish(model), chunk(model, [], usage=USAGE)]


def with_members(value: Any, members: Mapping[str, Any]) -> Any:
    """The value with these members in every object, at every depth."""
    if isinstance(value, list):
        return [with_members(each, members) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("Fields", value)
    return {name: with_members(each, members) for name, each in fields.items()} | dict(members)


def encoded(value: Any) -> bytes:
    """JSON as most servers write it: everything outside ASCII is escaped."""
    return json.dumps(value).encode()


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"


async def send_packets(exchange: Exchange, packets: Sequence[bytes]) -> None:
    """A whole event stream, cut into these packets."""
    await exchange.begin(EVENTS)
    for packet in packets:
        await exchange.chunk(packet)
    await exchange.end()


async def healthy(exchange: Exchange, text: str) -> None:
    """Answer ``text``, as a stream or whole, as was asked."""
    model, text = exchange.request.model, text or TEXT
    if exchange.request.streams:
        await send_packets(exchange, [*map(event, chunks(model, text)), DONE])
    else:
        await exchange.answer(encoded(completion(model, text)))


async def send_choices(
    exchange: Exchange,
    choices: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    usage: object = USAGE,
) -> None:
    """Answer with these choices, as a stream or whole."""
    model = model or exchange.request.model
    if not exchange.request.streams:
        body = completion(model) | {"choices": choices, "usage": usage}
        await exchange.answer(encoded(body))
        return
    said: list[Fields] = [
        {"index": each["index"], "delta": each.get("message"), "finish_reason": None}
        | ({"logprobs": each["logprobs"]} if each.get("logprobs") else {})
        for each in choices
    ]
    ends: list[Fields] = [
        {"index": each["index"], "delta": {}, "finish_reason": each["finish_reason"]}
        for each in choices
    ]
    values = [chunk(model, said), chunk(model, ends), chunk(model, [], usage=usage)]
    await send_packets(exchange, [*map(event, values), DONE])
