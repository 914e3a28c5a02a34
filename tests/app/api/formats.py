"""How each API format is called and read: chat, completions, responses, messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.kit.gateway import Gateway, user

WHOLE_POOL = {"alpha": 0.001, "explain": True}  # the whole pool is called, and waited for


@dataclass(frozen=True)
class Reply:
    """What a client got, whole or streamed."""

    text: str
    model: str
    id: str
    racer: dict[str, Any]  # empty of a named candidate
    headers: Mapping[str, str]
    whole: dict[str, Any]  # the body; empty of a stream
    events: list[dict[str, Any]]  # of a stream

    @property
    def reasons(self) -> list[str]:
        """Why the certificate does not hold; a small alpha aside, which voids nothing."""
        reasons: list[str] = self.racer["certificate"]["reasons"]
        return [each for each in reasons if not each.startswith("alpha_")]


@dataclass(frozen=True)
class Api:
    """Requests and responses of one API format."""

    path: str
    prefix: str
    asks: Callable[[str], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]  # of a whole answer
    delta: Callable[[dict[str, Any]], str]  # of one event
    inner: Callable[[dict[str, Any]], dict[str, Any]]  # where an event says id and model
    counts: tuple[str, ...]
    ends: bool  # its streams end with [DONE]
    upstream: str = ""  # where candidates are called, if not at the same path
    is_chat: bool = True  # rows are labelled by chat completions: others void the certificate
    keeps_fields: bool = True  # of candidates' answers that nobody knows
    closing: int = -1  # the place of the event with the racer object
    code: Callable[[dict[str, Any]], str] = lambda error: error["code"]

    def post(self, gateway: Gateway, text: str, /, **fields: Any) -> Any:
        """A whole answer of any status."""
        body = {"model": "auto", **self.asks(text), **fields}
        return gateway.post(f"/v1/{self.path}", json=body)

    def ask(self, gateway: Gateway, text: str, /, *, stream: bool, **fields: Any) -> Reply:
        """An answer, whole or streamed; a stream has one name and one id, and ends as it should."""
        if not stream:
            response = self.post(gateway, text, **fields)
            assert response.status_code == 200, response.text
            body = response.json()
            racer = body.get("racer", {})
            headers = response.headers
            return Reply(self.text(body), body["model"], body["id"], racer, headers, body, [])
        headers, events = self.stream(gateway, text, **fields)
        [(model, own)] = {(e["model"], e["id"]) for each in events if (e := self.inner(each))}
        assert self.is_finished(events[-1])
        is_routed = fields.get("model", "auto").startswith("auto")
        racer = self.racer(events) if is_routed else {}
        assert is_routed or not any("racer" in self.inner(each) for each in events)
        return Reply("".join(map(self.delta, events)), model, own, racer, headers, {}, events)

    def broken(self, gateway: Gateway, text: str, /, **fields: Any) -> tuple[Any, list[Any]]:
        """The response and the events of a stream that ends in an error."""
        body = {"model": "auto", **self.asks(text), "stream": True, **fields}
        with (
            gateway.http() as client,
            client.stream("POST", f"/v1/{self.path}", json=body) as response,
        ):
            data = _data(response)
        assert "data: [DONE]" not in data
        return response, [json.loads(each.removeprefix("data: ")) for each in data]

    def answer(self, gateway: Gateway, text: str, /, **fields: Any) -> dict[str, Any]:
        """A whole answer."""
        response = self.post(gateway, text, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(
        self, gateway: Gateway, text: str, /, **fields: Any
    ) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """Headers and events; that the stream ends as it should is checked."""
        body = {"model": "auto", **self.asks(text), "stream": True, **fields}
        with (
            gateway.http() as client,
            client.stream("POST", f"/v1/{self.path}", json=body) as response,
        ):
            lines = _data(response)
        assert response.status_code == 200, lines
        events = [line.removeprefix("data: ") for line in lines]
        assert (events[-1] == "[DONE]") is self.ends
        bodies = [json.loads(each) for each in events if each != "[DONE]"]
        assert len(bodies) == len(events) - self.ends
        return dict(response.headers), bodies

    def is_finished(self, event: dict[str, Any]) -> bool:
        """Whether an event says that the answer is complete."""
        if self.ends:
            return [choice["finish_reason"] for choice in event["choices"]] == ["stop"]
        return event["type"] in ("response.completed", "message_stop")

    def racer(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """The racer object of a stream; that no other event has one is checked."""
        carriers = [event.get("response", event) for event in events]
        assert [each for each in carriers if "racer" in each] == [carriers[self.closing]]
        return carriers[self.closing]["racer"]

    def usage(self, body: dict[str, Any]) -> tuple[int, ...]:
        """Prompt, completion and total tokens."""
        found = tuple(body["usage"][name] for name in self.counts)
        return found if len(found) == 3 else (*found, sum(found))

    @property
    def endpoint(self) -> list[str]:
        """The reason that every certificate of this API has."""
        return [] if self.is_chat else ["conditions_differ:endpoint"]

    @property
    def called(self) -> str:
        """The path at which candidates are called."""
        return f"/v1/{self.upstream or self.path}"


def _data(response: httpx2.Response) -> list[str]:
    # `iter_lines` would end a line at U+2028, too.
    return [each for each in response.read().decode().split("\n") if each.startswith("data: ")]


def _choice_text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def _itself(event: dict[str, Any]) -> dict[str, Any]:
    return event


CHAT_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
CHAT = Api(
    path="chat/completions",
    prefix="chatcmpl-",
    asks=lambda text: {"messages": user(text)},
    text=lambda body: body["choices"][0]["message"]["content"],
    delta=lambda event: "".join(_choice_text(each) for each in event["choices"]),
    inner=_itself,
    counts=CHAT_COUNTS,
    ends=True,
)
COMPLETIONS = Api(
    path="completions",
    prefix="cmpl-",
    asks=lambda text: {"prompt": text},
    text=lambda body: body["choices"][0]["text"],
    delta=CHAT.delta,
    inner=_itself,
    counts=CHAT_COUNTS,
    ends=True,
    is_chat=False,
)
RESPONSES = Api(
    path="responses",
    prefix="resp_",
    asks=lambda text: {"input": text},
    text=lambda body: body["output"][0]["content"][0]["text"],
    delta=lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    inner=lambda event: event.get("response", {}),
    counts=("input_tokens", "output_tokens", "total_tokens"),
    ends=False,
    is_chat=False,
)
MESSAGES = Api(
    path="messages",
    prefix="msg_",
    asks=CHAT.asks,
    text=lambda body: "".join(block["text"] for block in body["content"]),
    delta=lambda event: event.get("delta", {}).get("text", ""),
    inner=lambda event: event.get("message", {}),
    counts=("input_tokens", "output_tokens"),
    ends=False,
    upstream="chat/completions",
    keeps_fields=False,
    closing=-2,
    code=lambda error: error["details"]["error_code"],
)
EVERY_API = pytest.mark.parametrize(
    "api", [CHAT, COMPLETIONS, RESPONSES, MESSAGES], ids=lambda api: api.path
)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
CHUNKED_APIS = pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.path)
