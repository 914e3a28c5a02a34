"""What a scripted candidate says, in the shape of each way of asking. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .hostile import answers
from .hostile.answers import DONE, event


@dataclass
class Script:
    """How one candidate behaves."""

    text: str = "42"
    delay_s: float = 0.0
    gate: threading.Event | None = None  # no answer before it is set
    pause_s: float = 0.0  # between the chunks of a stream
    fault: str | None = None
    message: dict[str, Any] | None = None  # instead of a plain text
    fields: dict[str, Any] = field(default_factory=dict)  # of the completion, over the usual ones
    choices: list[dict[str, Any]] | None = None  # of a stream, a chunk each, instead of the text


Body = dict[str, Any]
Events = Callable[[Body, Script], list[bytes]]


@dataclass(frozen=True)
class Shape:
    """One way of asking: a whole answer, and a stream's events up to the last word and after it."""

    whole: Callable[[str, Script], dict[str, Any]]
    spoken: Events
    ending: Events


def usage_of(text: str) -> dict[str, int]:
    """Ten prompt tokens, one completion token a character."""
    return {
        "prompt_tokens": 10,
        "completion_tokens": len(text),
        "total_tokens": 10 + len(text),
    }


def completion(model: str, script: Script) -> dict[str, Any]:
    """A whole chat completion, with a field that no client of today knows."""
    message = script.message or {"role": "assistant", "content": script.text}
    usual = answers.completion(
        f"{model} at its server",
        choices=[{"index": 0, "message": message, "finish_reason": "stop"}],
        usage=usage_of(script.text),
        a_field_of_tomorrow={"kept": True},
    )
    return usual | script.fields


def chunk(body: Body, choices: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """One chunk of a stream."""
    tomorrow = {"a_field_of_tomorrow": {"kept": True}}
    return answers.chunk(f"{body['model']} at its server", choices, object=kind, **tomorrow)


def _chat_spoken(body: Body, script: Script) -> list[bytes]:
    deltas = [{"index": 0, "delta": {"content": piece}} for piece in script.text]
    return [
        event(chunk(body, [delta | {"finish_reason": None}], "chat.completion.chunk"))
        for delta in deltas
    ]


def _chat_ending(body: Body, script: Script) -> list[bytes]:
    finish = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return _chunked_ending(body, script, finish, "chat.completion.chunk")


def _chunked_ending(body: Body, script: Script, finish: dict[str, Any], kind: str) -> list[bytes]:
    """What remains to be said, the usage if it was asked for, the end."""
    events = [event(chunk(body, [choice], kind)) for choice in script.choices or [finish]]
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = script.fields.get("usage", usage_of(script.text))
        events.append(event(chunk(body, [], kind) | {"usage": usage}))
    return [*events, DONE]


def text_completion(model: str, script: Script) -> dict[str, Any]:
    """A whole text completion."""
    usual = {
        "id": "upstream-2",
        "object": "text_completion",
        "created": 1,
        "model": f"{model} at its server",
        "choices": [{"index": 0, "text": script.text, "logprobs": None, "finish_reason": "stop"}],
        "usage": usage_of(script.text),
        "a_field_of_tomorrow": {"kept": True},
    }
    return usual | script.fields


def _text_spoken(body: Body, script: Script) -> list[bytes]:
    usual = {"index": 0, "logprobs": None, "finish_reason": None}
    return [
        event(chunk(body, [usual | {"text": piece}], "text_completion")) for piece in script.text
    ]


def _text_ending(body: Body, script: Script) -> list[bytes]:
    finish = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    return _chunked_ending(body, script, finish, "text_completion")


def response(model: str, script: Script) -> dict[str, Any]:
    """A whole response, as vLLM sends it."""
    usage = usage_of(script.text)
    usual = {
        "id": "resp_upstream",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": f"{model} at its server",
        "output": [_message(script.text, "completed")],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": usage["total_tokens"],
        },
        "a_field_of_tomorrow": {"kept": True},
    }
    return usual | script.fields


def _message(text: str, status: str) -> dict[str, Any]:
    content = [_part(text)] if status == "completed" else []
    usual = {"type": "message", "id": "msg_1", "role": "assistant"}
    return {**usual, "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


_PLACE = {"output_index": 0, "item_id": "msg_1", "content_index": 0}


def _response_spoken(body: Body, script: Script) -> list[bytes]:
    begun = response(body["model"], script) | {"status": "in_progress", "output": [], "usage": None}
    opening: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": _message("", "in_progress"),
        },
        {"type": "response.content_part.added", **_PLACE, "part": _part("")},
    ]
    deltas = [
        {"type": "response.output_text.delta", **_PLACE, "delta": piece, "logprobs": []}
        for piece in script.text
    ]
    return _numbered([*opening, *deltas], 0)


def _response_ending(body: Body, script: Script) -> list[bytes]:
    said = script.text
    closing: list[dict[str, Any]] = [
        {"type": "response.output_text.done", **_PLACE, "text": said, "logprobs": []},
        {"type": "response.content_part.done", **_PLACE, "part": _part(said)},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": _message(said, "completed"),
        },
        {"type": "response.completed", "response": response(body["model"], script)},
    ]
    return _numbered(closing, 4 + len(said))


def _numbered(pieces: list[dict[str, Any]], first: int) -> list[bytes]:
    return [
        b"event: " + piece["type"].encode() + b"\n" + event({**piece, "sequence_number": number})
        for number, piece in enumerate(pieces, first)
    ]


SHAPES = {
    "/v1/chat/completions": Shape(completion, _chat_spoken, _chat_ending),
    "/v1/completions": Shape(text_completion, _text_spoken, _text_ending),
    "/v1/responses": Shape(response, _response_spoken, _response_ending),
}


def embeddings(body: Body) -> dict[str, Any]:
    """A vector for every text: how many characters it has, and 1."""
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": [float(len(text)), 1.0]}
            for place, text in enumerate(texts)
        ],
        "model": f"{body['model']} at its server",
        "usage": {"prompt_tokens": len(texts), "total_tokens": len(texts)},
    }
