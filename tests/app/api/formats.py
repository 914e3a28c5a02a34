"""How each API format is called and read: chat, completions, responses, messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.gateway import Gateway, user

WHOLE_POOL = {"alpha": 0.001, "explain": True}  # the whole pool is called, and waited for


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
    guarantee: str = "holds"  # the header of a plain request
    upstream: str = ""  # where candidates are called, if not at the same path
    keeps_fields: bool = True  # of candidates' answers that nobody knows
    closing: int = -1  # the place of the event with the racer object
    code: Callable[[dict[str, Any]], str] = lambda error: error["code"]

    def post(self, gateway: Gateway, text: str, /, **fields: Any) -> Any:
        """A whole answer of any status."""
        body = {"model": "auto", **self.asks(text), **fields}
        return gateway.post(f"/v1/{self.path}", json=body)

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
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
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
    def called(self) -> str:
        """The path at which candidates are called."""
        return f"/v1/{self.upstream or self.path}"


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
    guarantee="void; reason=conditions_differ:endpoint",  # rows are labelled by chat completions
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
    guarantee="void; reason=conditions_differ:endpoint",
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
CHUNKED_APIS = pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.path)
