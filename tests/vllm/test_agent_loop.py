"""Agents that call tools for ten turns, by official clients, with vLLM behind the gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.kit.coding_agents import NAMES, harness_request
from tests.kit.gateway import Gateway

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

TURNS: Final = 10
ROOM: Final = 200  # tokens, for a call
# JSON may have spaces between its parts, and greedy toys would write nothing else.
LEAST_BLANKS: Final = {"temperature": 0, "frequency_penalty": 1.0}
STEPS: Final[Mapping[str, tuple[int, int]]] = {
    "north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0),
}  # fmt: skip
SYSTEM: Final = "You walk on a grid. Walk on, and look where you are."


class Walk:
    """Two tools, and the state that they share."""

    def __init__(self) -> None:
        self.place = (0, 0)
        self.calls = 0

    def walk(self, direction: str) -> str:
        """One step."""
        (x, y), (right, up) = self.place, STEPS[direction]
        self.place = (x + right, y + up)
        return self.look()

    def look(self) -> str:
        """Where it is."""
        return f"You are at {self.place[0]}, {self.place[1]}."

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run a tool."""
        self.calls += 1
        return {"walk": self.walk, "look": self.look}[name](**arguments)


DIRECTION: Final = {
    "type": "object",
    "properties": {"direction": {"type": "string", "enum": list(STEPS)}},
    "required": ["direction"],
    "additionalProperties": False,
}
NOTHING: Final = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: Final = {"walk": DIRECTION, "look": NOTHING}
FILES: Final = {"/a/1": "x = 3", "/a/2": "y = 4", "/a/3": "z = 5"}  # of the other agent


def checked(racer: dict[str, Any], *, turn: int, fields: tuple[str, ...] = ()) -> None:
    """The certificate is void, with the reasons that the documents name for such a request.

    ``fields``: what else the request has that the rows had not.
    """
    certificate = racer["certificate"]
    differ = ["messages.system", "tools", "tool_choice", "max_tokens", *fields]
    differ += ["messages.assistant", "messages.tool"] if turn else []
    reasons = {f"conditions_differ:{name}" for name in differ} | {"unlabelled_request_kind"}
    reasons |= {"multi_turn_uncalibrated"} if turn else set()
    assert certificate["holds"] is False
    # Whether the router abstains is its own affair.
    assert set(certificate["reasons"]) - {"abstained_strongest"} == reasons


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_of_openais_client(gateway: Gateway, stream: bool) -> None:
    """Ten turns with forced calls, whose results are those of real functions; then an answer."""
    world = Walk()
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Walk ten steps."},
    ]
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
        for name, schema in TOOLS.items()
    ]

    def ask(choice: Any) -> tuple[Any, dict[str, Any]]:
        request: dict[str, Any] = {
            "model": "auto", "messages": messages, "tools": tools, "tool_choice": choice,
            "max_tokens": ROOM, **LEAST_BLANKS,
        }  # fmt: skip
        if not stream:
            completion = gateway.openai().chat.completions.create(**request)
            return completion, completion.racer
        with gateway.openai().chat.completions.stream(**request) as events:
            *_, last = (event.chunk for event in events if event.type == "chunk")
            return events.get_final_completion(), last.racer

    for turn in range(TURNS):
        completion, racer = ask("required")
        message = completion.choices[0].message
        assert message.tool_calls
        messages.append(message.to_dict())
        for call in message.tool_calls:
            result = world.call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        checked(racer, turn=turn, fields=("frequency_penalty",))
    assert world.calls >= TURNS
    last, _ = ask("none")
    assert not last.choices[0].message.tool_calls


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_of_anthropics_client(gateway: Gateway, stream: bool) -> None:
    """As Claude Code asks: 4 kB of prompt, cache markers, twenty tools, results of parallel calls.

    Each turn forces some call, or that of a tool by name; then an answer.
    """
    request = harness_request(rules=180, max_tokens=ROOM)
    for name in ("stream", "temperature"):  # it sends the one itself, and knows the other no more
        del request[name]
    request["tools"] = [{**tool, "strict": True} for tool in request["tools"]]
    request["extra_body"] = dict(LEAST_BLANKS)
    messages = request["messages"]
    client = gateway.anthropic().beta.messages

    def ask(choice: Any) -> tuple[Any, dict[str, Any]]:
        if not stream:
            message = client.create(**request, tool_choice=choice)
            return message, message.racer
        with client.stream(**request, tool_choice=choice) as events:
            (last,) = (event for event in events if event.type == "message_delta")
            return events.get_final_message(), last.racer

    for turn in range(TURNS):
        named = NAMES[turn] if turn % 2 else None
        message, racer = ask({"type": "tool", "name": named} if named else {"type": "any"})
        calls = [block for block in message.content if block.type == "tool_use"]
        assert calls
        assert message.stop_reason == "tool_use"
        assert {call.name for call in calls} <= ({named} if named else set(NAMES))
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": FILES[call.input["path"]]}
            for call in calls
        ]
        messages.append({"role": "assistant", "content": message.content})
        messages.append({"role": "user", "content": results})
        checked(racer, turn=turn + 1, fields=("frequency_penalty",))
    last, _ = ask({"type": "none"})
    assert {block.type for block in last.content} == {"text"}
