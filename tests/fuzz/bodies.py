"""Strategies for request bodies, and the endpoints that read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from fastapi import Request
from hypothesis import strategies as st
from starlette.types import Message as Arrival

from app.access.api_keys import LOCAL
from app.api.chat import chat_completions, completions, responses
from app.api.embeddings import embeddings
from app.api.messages import count_tokens, messages
from app.api.route import route
from app.concurrency.memory_budget import MemoryBudget
from app.errors import Overloaded
from app.routing.applications import Applications
from app.routing.conditions import ConditionReader
from app.settings import Settings
from app.wire.candidate_payload import candidate_payload
from app.wire.error_envelope import envelope
from app.wire.messages.blocks import BLOCKS
from racer_core.errors import RacerError
from tests.fuzz.strategies import Strategy, objects
from tests.kit.gateway import POOL

Endpoint = Callable[[Request, Any], Coroutine[Any, Any, Any]]
_text = st.sampled_from(["", " ", "hello", "A. one\nB. two", "\u2028", "z" * 9_000])
_kinds = ("text", "input_text", "output_text", "image_url", "input_image", "file")

_part = objects(
    {"type": st.sampled_from(_kinds), "text": _text, "image_url": st.just({"url": "data:,"})}
)

_content = st.one_of(_text, _text, st.lists(_part, max_size=2), st.none())
_role = st.sampled_from(["user", "user", "system", "assistant", "tool"])
_messages = st.lists(objects({"role": _role, "content": _content}), min_size=1, max_size=3)

_items = st.lists(
    objects(
        {
            "type": st.sampled_from(["message", "function_call", "function_call_output"]),
            "role": _role,
            "content": _content,
        }
    ),
    max_size=3,
)

_form = objects({"type": st.sampled_from(["text", "json_object", "json_schema"])})

_options: dict[str, Strategy] = {
    "alpha": st.sampled_from([0.1, None, 2]),
    "candidates": st.sampled_from([[*POOL], ["unknown"], None]),
    "group": st.sampled_from(["maths", None]),
    "on_abstain": st.sampled_from(["refuse", "strongest"]),
    "timeout": st.sampled_from([1.0, None]),
}

_common: dict[str, Strategy] = {
    "model": st.sampled_from(["auto", "auto", POOL[0], "unknown"]),
    "stream": st.booleans(),
    "n": st.sampled_from([1, 2, 100, None]),
    "max_tokens": st.sampled_from([5, 100_000, None]),
    "racer": st.one_of(objects(_options), st.none()),
    "user": _text,
}

_chat = {
    "messages": _messages,
    "tools": st.just([{"type": "function"}]),
    "response_format": _form,
    "stream_options": objects({"include_usage": st.booleans()}),
}

_source = objects(
    {
        "type": st.sampled_from(["base64", "url", "text", "content", "file"]),
        "media_type": _text,
        "data": _text,
        "url": _text,
        "content": st.lists(objects({"type": st.just("text"), "text": _text}), max_size=1),
    }
)

_block = objects(
    {
        "type": st.sampled_from([*(row.type for row in BLOCKS), "text", "server_tool_use"]),
        "text": _text,
        "source": _source,
        "tool_use_id": _text,
        "id": _text,
        "name": _text,
        "input": st.just({"a": 1}),
        "content": _content,
        "thinking": _text,
        "is_error": st.booleans(),
    }
)

_blocks = st.one_of(_text, st.lists(_block, max_size=3))

_messages_turn = objects(
    {"role": st.sampled_from(["user", "user", "assistant", "system"]), "content": _blocks}
)

_sound_turn = st.sampled_from(
    [
        {"role": "user", "content": "hello"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
        {"role": "system", "content": "hello"},
    ]
)

_messages_prompt = {
    "model": _common["model"],
    "messages": st.one_of(
        st.lists(_sound_turn, min_size=1, max_size=4),
        st.lists(st.one_of(_sound_turn, _messages_turn), min_size=1, max_size=3),
    ),
    "system": st.sampled_from(["", "hello", [{"type": "text", "text": "hello"}], [{}], None]),
    "tools": st.sampled_from([[], [{"name": "a", "input_schema": {}}], [{"type": "bash"}], None]),
    "tool_choice": st.sampled_from([{"type": "auto"}, {"type": "tool"}, {}, None]),
    "racer": _common["racer"],
}

_tokens = st.sampled_from(["one", ["one"], ["one", "two"], [1, 2], [[1], [2]], []])

BODIES: dict[str, tuple[Endpoint, Strategy]] = {
    "chat": (chat_completions, objects(_common | _chat)),
    "completions": (completions, objects(_common | {"prompt": st.one_of(_text, _tokens)})),
    "responses": (
        responses,
        objects(
            _common
            | {
                "input": st.one_of(_text, _items),
                "instructions": _text,
                "store": st.booleans(),
                "text": objects({"format": _form}),
            }
        ),
    ),
    "messages": (
        messages,
        objects(
            _messages_prompt
            | {
                "max_tokens": _common["max_tokens"],
                "stream": st.booleans(),
                "thinking": objects({"type": st.sampled_from(["enabled", "disabled"])}),
                "metadata": objects({"user_id": _text}),
            }
        ),
    ),
    "count_tokens": (count_tokens, objects(_messages_prompt)),
    "route": (
        route,
        st.one_of(
            objects(_options | {"query": _text, "execute": st.booleans()}),
            objects(_options | {"messages": _messages}),
            objects(_common | _chat | {"execute": st.booleans()}),
        ),
    ),
    "embeddings": (embeddings, objects(_common | {"input": _tokens})),
}


class _Reached(Exception):
    """A request passed validation and would reach the candidates."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


def _nothing(_: int) -> None:
    """No quota."""


class _Anyone:
    """A stand-in for a service: every method raises with its arguments."""

    def __getattr__(self, _: str) -> Endpoint:
        async def reached(*arguments: Any) -> None:
            raise _Reached(*arguments)

        return reached


class Door:
    """The endpoints without sockets and candidates."""

    def __init__(self, settings: Settings, runner: asyncio.Runner) -> None:
        self._services = SimpleNamespace(
            chats=SimpleNamespace(answer_caches=None),
            settings=settings,
            conditions=ConditionReader(settings.candidates),
            applications=Applications(settings),
            spending=None,
            chat=_Anyone(),
            named_candidates=_Anyone(),
            token_counter=_Anyone(),
        )
        self._runner = runner

    def ask(self, endpoint: Endpoint, data: bytes) -> tuple[Any, ...] | None:
        """The arguments of the call that reaches the service; None if the body is refused."""
        bodies = MemoryBudget(2**28, Overloaded, "full")
        ticket = SimpleNamespace(spend=_nothing, hold=_nothing, bodies=bodies)
        state = {"caller": LOCAL, "quota_ticket": ticket, "request_id": "r"}
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "headers": headers, "state": state}
        arrived: list[Arrival] = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Arrival:
            if arrived:
                return arrived.pop()
            return await asyncio.Future()  # the client waits

        try:
            self._runner.run(endpoint(Request(scope, receive), self._services))
        except _Reached as reached:
            return reached.arguments
        except RacerError as exc:
            refused = exc
        else:
            raise AssertionError("an endpoint answered by itself")
        status, body = envelope(refused)
        assert status < 500
        assert json.dumps(body, allow_nan=False).encode()
        return None

    def check(self, arguments: tuple[Any, ...]) -> None:
        """What the router reads is a text, and candidates can be sent what they are to be sent."""
        for each in arguments:
            if (query := getattr(each, "query", None)) is not None:
                assert query.text.encode()
                assert query.chars >= 0
            if (fields := getattr(each, "fields", None)) is not None:
                for candidate in self._services.settings.candidates:
                    sent = candidate_payload(fields, candidate)
                    assert json.loads(json.dumps(sent, allow_nan=False).encode()) == sent
