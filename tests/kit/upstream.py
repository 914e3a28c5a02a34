"""The scripted upstream: candidates that answer as a test says, in each API format."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Self

from aiohttp import web

from tests.kit.hostile import answers
from tests.kit.hostile.answers import DONE, event
from tests.kit.hostile.exchange import WORDS as UPSTREAM_WORDS
from tests.kit.waiting import eventually


@dataclass
class Script:
    """How one candidate behaves."""

    text: str = "42"
    delay_s: float = 0.0
    gate: threading.Event | None = None  # no answer before it is set
    pause_s: float = 0.0  # between the chunks of a stream
    fault: str | None = None
    error: dict[str, Any] | None = None  # the document of a status that is a fault
    message: dict[str, Any] | None = None  # instead of a plain text
    fields: dict[str, Any] = field(default_factory=dict)  # of the completion, over the usual ones
    choices: list[dict[str, Any]] | None = None  # of a stream, a chunk each, instead of the text
    members: dict[str, Any] = field(default_factory=dict)  # of every object, at every depth
    headers: dict[str, str] = field(default_factory=dict)  # of the answer, beside the usual ones


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


__all__ = ["UPSTREAM_WORDS", "FakePool", "Rater", "Script", "proposed", "usage_of"]


SETTLE_S = 2.0  # for requests under way when the pool is reset; some are scripted to hang
# Of the event loop, from a connection in the backlog to its request in ``requests``: about ten.
SETTLE_ITERATIONS = 40


@dataclass
class Rater:
    """How sure one model is of proposed answers."""

    chances: dict[str, float] = field(default_factory=dict)  # of "1", by the answer's text
    spelling: str = "{}"  # of a verdict's token
    logprobs: bool = True  # whether the server sends them
    max_logprobs: int = 20
    max_chars: int = 100_000  # of a prompt
    delay_s: float = 0.0
    fault: str | None = None
    only: str | None = None  # the answer that delay and fault are kept to
    choice: dict[str, Any] | None = None  # instead of the usual one


# What vLLM says of a prompt that does not fit, and of a model that it does not serve.
REJECTIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "too_long": (
        400,
        {
            "error": {
                "message": "This model's maximum context length is 4096 tokens. However, your "
                "request has 5120 input tokens. Please reduce the length of the input messages.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        },
    ),
    "lost_model": (
        404,
        {
            "error": {
                "message": "The model `adder` does not exist.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            }
        },
    ),
}
# Answers with status 200 that are not chat completions.
_BROKEN_BODIES = {
    "not_openai": b'{"result": "42"}',
    "no_choices": b'{"choices": [], "output": [], "status": "completed"}',  # chat, responses
    "odd_choice": b'{"choices": ["42"]}',
    "content_is_a_number": b'{"choices": [{"index": 0, "message": {"content": 42}}]}',
    "empty": b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}',
    "nan": b'{"choices": [{"index": 0, "message": {"content": "42"}}], "usage": {"a": NaN}}',
    "surrogate": b'{"choices": [{"index": 0, "message": {"content": "\\ud800"}}]}',
    "twice": b'{"choices": [], "choices": [{"index": 0, "message": {"content": "42"}}]}',
    "half": b'{"choices": [{"index": 0, "mess',
    "latin1": b'{"choices": [{"index": 0, "message": {"content": "\xe9"}}]}',
    "deep": b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}
# Streams with status 200 that no client should be handed on.
_BROKEN_STREAMS = {
    "stream_error": b'data: {"error": {"message": "' + UPSTREAM_WORDS.encode() + b'"}}\n\n',
    "stream_odd_choice": b'data: {"choices": ["4"]}\n\ndata: [DONE]\n\n',
    "stream_not_json": b"data: 42\n\ndata: [DONE]\n\n",
    "stream_no_end": b"",
    "stream_empty": b"data: [DONE]\n\n",
}


@dataclass
class FakePool:
    """Runs in a thread of its own; ``requests`` holds every body that arrived."""

    scripts: dict[str, Script] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)  # of the same requests
    paths: list[str] = field(default_factory=list)  # of the same requests
    raters: dict[str, Rater] = field(default_factory=dict)
    rated: list[dict[str, Any]] = field(default_factory=list)  # every body asked of an evaluator
    cancelled: list[str] = field(default_factory=list)
    trapped: list[str] = field(default_factory=list)  # paths that must not be requested
    seen: list[str] = field(default_factory=list)  # method and path of every request with a reply
    running: list[str] = field(default_factory=list)
    peak: int = 0  # candidates that were answering at the same time
    answer: Callable[[dict[str, Any]], str] = lambda _: "42"  # of a candidate without a script
    # The list of models, which ``racer init`` and ``racer doctor`` read.
    models: list[Any] = field(default_factory=list)
    models_status: int = 200
    models_body: bytes | None = None  # instead of the list
    key: str | None = None  # that the list wants
    tokens: dict[str, int] = field(default_factory=dict)  # of any prompt; others count none
    tokenized: list[dict[str, Any]] = field(default_factory=list)  # every body that was counted
    ahead_s: float | None = 0.0  # the ``Date`` header, against this machine's clock; None for none

    def say(self, name: str, text: str, **behaviour: Any) -> None:
        """Let a candidate answer ``text``; see :class:`Script` for the rest."""
        self.scripts[name] = Script(text=text, **behaviour)

    def fail(self, name: str, fault: str, error: dict[str, Any] | None = None) -> None:
        """Let a candidate break: a status code, with its document, or a word of ``reply``."""
        self.scripts[name] = Script(fault=fault, error=error)

    def rate(self, name: str, chances: dict[str, float], **behaviour: Any) -> None:
        """Let a model be so sure of these answers, 0.5 of others; see :class:`Rater`."""
        self.raters[name] = Rater(chances=chances, **behaviour)

    def delay(self, seconds: float) -> None:
        """Let the server do nothing for some time: what arrives waits in its sockets."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def reset(self) -> None:
        """Forget scripts and requests, also those that are sent already and not yet received.

        A gateway gives up calls that it needs no longer: the test that made them may be over
        before this server has read them.
        """
        asyncio.run_coroutine_threadsafe(self._settle(), self._loop).result()
        kept = (self.scripts, self.requests, self.headers, self.paths)
        for each in (*kept, self.cancelled, self.trapped, self.seen):
            each.clear()
        self.tokens.clear()
        self.tokenized.clear()
        self.raters.clear()
        self.rated.clear()
        self.peak = 0

    def models_called(self) -> list[str]:
        """The model name of every request, sorted."""
        return sorted(body["model"] for body in self.requests)

    def calls(self) -> Counter[tuple[str, str]]:
        """How often each candidate was called with each question."""
        return Counter((body["model"], body["messages"][0]["content"]) for body in self.requests)

    def __enter__(self) -> Self:
        """Serve on a free port of the loopback interface."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        """Close every connection and the port."""
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)

    async def _serve(self, ready: threading.Event) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._continue)
        app.router.add_post("/v1/responses", self._answer)
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_get("/v1/models", self._list)  # what a probe asks for
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_route("*", "/{path:.*}", self._trap)
        app.on_response_prepare.append(self._prepare)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        ready.set()
        await self._done.wait()
        await runner.cleanup()

    async def _settle(self) -> None:
        """Wait until all requests in the sockets are received and answered; see ``SETTLE_S``."""
        until = time.monotonic() + SETTLE_S
        while True:
            for _ in range(SETTLE_ITERATIONS):
                await asyncio.sleep(0)
            if not self.running or time.monotonic() > until:
                return
            await asyncio.sleep(0.005)

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        self.seen.append(f"{request.method} {request.path}")
        if self.ahead_s is None:
            del response.headers["date"]
        else:
            response.headers["date"] = formatdate(time.time() + self.ahead_s, usegmt=True)

    async def _trap(self, request: web.Request) -> web.Response:
        self.trapped.append(request.path)
        return web.Response(text="<html>not here</html>", status=404, content_type="text/html")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.requests.append(body)
        self.paths.append(request.path)
        script = self.scripts.get(body["model"]) or Script(text=self.answer(body))
        self.running.append(body["model"])
        self.peak = max(self.peak, len(self.running))
        try:
            await asyncio.sleep(script.delay_s)
            if script.gate is not None:
                await eventually(script.gate.is_set, 120)
            return await self.reply(request, body, script)
        except asyncio.CancelledError:
            self.cancelled.append(body["model"])
            raise
        finally:
            self.running.remove(body["model"])

    async def _continue(self, request: web.Request) -> web.StreamResponse:
        """A prompt; one that shows an answer is a question to an evaluator."""
        prompt = (await request.json())["prompt"]
        asked_to_rate = isinstance(prompt, str) and "Proposed Answer: " in prompt
        return await (self._rate if asked_to_rate else self._answer)(request)

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.requests.append(body)
        self.paths.append(request.path)
        script = self.scripts.get(body["model"], Script())
        answer = answers.with_members(embeddings(body), script.members)
        return _json(json.dumps(answer).encode(), script.headers)

    async def _tokenize(self, request: web.Request) -> web.Response:
        """As vLLM; 404 for a model without a number of tokens, as a server without the endpoint."""
        body = await request.json()
        self.tokenized.append(body)
        count = self.tokens.get(body["model"])
        if count is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"count": count, "max_model_len": 4096, "tokens": [7] * count})

    async def _list(self, request: web.Request) -> web.Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({}, status=401)
        models = {"object": "list", "data": [{"id": model} for model in self.models]}
        body = json.dumps(models).encode() if self.models_body is None else self.models_body
        return web.Response(body=body, status=self.models_status, content_type="application/json")

    async def _rate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.rated.append(body)
        rater = self.raters.get(body["model"], Rater())
        self.running.append(body["model"])
        self.peak = max(self.peak, len(self.running))
        try:
            hit = rater.only in (None, proposed(body))
            await asyncio.sleep(rater.delay_s if hit else 0)
            if rater.fault is not None and hit:
                return await self.reply(request, body, Script(fault=rater.fault))
            refused = body.get("logprobs", 0) > rater.max_logprobs
            if refused or len(body["prompt"]) > rater.max_chars:
                return web.json_response({"error": {"message": UPSTREAM_WORDS}}, status=400)
            return _json(json.dumps(rating(body, rater)).encode())
        except asyncio.CancelledError:
            self.cancelled.append(body["model"])
            raise
        finally:
            self.running.remove(body["model"])

    async def reply(
        self, request: web.Request, body: dict[str, Any], script: Script
    ) -> web.StreamResponse:
        """Answer as the script says; subclasses change the script for each request."""
        shape = SHAPES[request.path]
        match script.fault:
            case None:
                pass
            case "hang":
                await asyncio.sleep(60)
            case "html":
                return web.Response(text="<html>it works</html>", content_type="text/html")
            case "redirect":
                raise web.HTTPTemporaryRedirect(f"{self.url}/trap")
            case "huge":
                script = Script(text="4" * 1_000_000)
            case "gzip":
                packed = gzip.compress(json.dumps(shape.whole(body["model"], script)).encode())
                return _json(packed, {"content-encoding": "gzip"})
            case "reset":
                assert request.transport is not None
                request.transport.close()
            case "not_http":
                assert request.transport is not None
                request.transport.write(b"220 mail.example ESMTP\r\n\r\n")
                request.transport.close()
            case "cut" if body.get("stream"):
                return await self._stream(request, body, script, cut=True)
            case rejected if rejected in REJECTIONS:
                status, said = REJECTIONS[rejected]
                return web.json_response(said, status=status)
            case broken if broken in _BROKEN_BODIES:
                return _json(_BROKEN_BODIES[broken])
            case broken if broken in _BROKEN_STREAMS:
                return await self._stream(request, body, script, ending=_BROKEN_STREAMS[broken])
            case status:
                said = script.error or {"error": {"message": UPSTREAM_WORDS}}
                return web.json_response(said, status=int(status))
        if body.get("stream"):
            return await self._stream(request, body, script)
        whole = answers.with_members(shape.whole(body["model"], script), script.members)
        return _json(json.dumps(whole).encode(), script.headers)

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        script: Script,
        *,
        cut: bool = False,
        ending: bytes | None = None,
    ) -> web.StreamResponse:
        """The text, a character an event; then the usual end, ``ending`` instead, or a cut."""
        kind = {"content-type": "text/event-stream"}
        response = web.StreamResponse(headers=kind | script.headers)
        await response.prepare(request)
        shape = SHAPES[request.path]
        for said in [] if ending in _NOTHING_BEFORE else shape.spoken(body, script):
            await response.write(_event_with_members(said, script.members))
            await asyncio.sleep(script.pause_s)
        if cut:
            assert request.transport is not None
            request.transport.close()
            return response
        for last in shape.ending(body, script) if ending is None else [ending]:
            await response.write(_event_with_members(last, script.members))
        return response


def _event_with_members(said: bytes, members: dict[str, Any]) -> bytes:
    """The event with these members in every object."""
    before, _, data = said.partition(b"data: ")
    if not members or not data.startswith(b"{"):
        return said
    return before + event(answers.with_members(json.loads(data), members))


_NOTHING_BEFORE = (_BROKEN_STREAMS["stream_odd_choice"], _BROKEN_STREAMS["stream_empty"])


def proposed(body: dict[str, Any]) -> str:
    """The answer that an evaluator is asked about."""
    found = re.search(r"^Proposed Answer: (.*)$", body["prompt"], re.MULTILINE)
    assert found
    return found[1]


def rating(body: dict[str, Any], rater: Rater) -> dict[str, Any]:
    """A text completion of one token, as vLLM 0.32 sends it: the likelier of the two verdicts."""
    chance = rater.chances.get(proposed(body), 0.5)
    chances = {rater.spelling.format(1): chance, rater.spelling.format(0): 1.0 - chance}
    # vLLM writes -9999 for an impossible token.
    top = {token: math.log(p) if p else -9999.0 for token, p in chances.items()}
    token = max(top, key=top.__getitem__)
    asked = rater.logprobs and body.get("logprobs") is not None
    logprobs = {
        "text_offset": [0],
        "tokens": [token],
        "token_logprobs": [top[token]],
        "top_logprobs": [top],
    }
    usual = {"index": 0, "text": token, "finish_reason": "length"}
    choice = usual | {"logprobs": logprobs if asked else None}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": f"{body['model']} at its server",
        "choices": [rater.choice or choice],
        "usage": {"prompt_tokens": 30, "completion_tokens": 1, "total_tokens": 31},
    }


def _json(data: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=data, content_type="application/json", headers=headers)
