"""An agent that calls tools for ten turns, by the official client, with vLLM behind the gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.support.gateway import Gateway

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

TURNS: Final = 10
ROOM: Final = 200  # tokens, for a call
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


def checked(racer: dict[str, Any], *, turn: int) -> None:
    """The certificate is void, with the reasons that the documents name for such a request."""
    certificate = racer["certificate"]
    assert certificate["holds"] is False
    assert "unlabelled_request_kind" in certificate["reasons"]
    assert "conditions_differ:tools" in certificate["reasons"]
    assert ("multi_turn_uncalibrated" in certificate["reasons"]) == (turn > 0)


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

    def ask(choice: Any) -> Any:
        request: dict[str, Any] = {
            "model": "auto", "messages": messages, "tools": tools, "tool_choice": choice,
            "temperature": 0, "max_tokens": ROOM,
        }  # fmt: skip
        if not stream:
            return gateway.openai().chat.completions.create(**request)
        with gateway.openai().chat.completions.stream(**request) as events:
            return events.get_final_completion()

    for turn in range(TURNS):
        completion = ask("required")
        message = completion.choices[0].message
        assert message.tool_calls
        messages.append(message.to_dict())
        for call in message.tool_calls:
            result = world.call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not stream:  # the helper drops it
            checked(completion.racer, turn=turn)
    assert world.calls >= TURNS
    last = ask("none")
    assert not last.choices[0].message.tool_calls
