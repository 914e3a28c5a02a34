"""An agent that calls tools for ten turns, by the official client, with vLLM behind the gateway."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.kit.coding_agents import NAMES, harness_request
from tests.kit.gateway import Gateway

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

TURNS: Final = 10
ROOM: Final = 200  # tokens, for a call
# JSON may have spaces between its parts, and greedy toys would write nothing else.
LEAST_BLANKS: Final = {"temperature": 0, "frequency_penalty": 1.0}
FILES: Final = {"/a/1": "x = 3", "/a/2": "y = 4", "/a/3": "z = 5"}


def checked(racer: dict[str, Any], *, turn: int) -> None:
    """The certificate is void, with the reasons that the documents name for such a request."""
    certificate = racer["certificate"]
    differ = ["messages.system", "tools", "tool_choice", "max_tokens", "frequency_penalty"]
    differ += ["messages.assistant", "messages.tool"] if turn else []
    reasons = {f"conditions_differ:{name}" for name in differ} | {"unlabelled_request_kind"}
    reasons |= {"multi_turn_uncalibrated"} if turn else set()
    assert certificate["holds"] is False
    # Whether the router abstains is its own affair.
    assert set(certificate["reasons"]) - {"abstained_strongest"} == reasons


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_of_anthropics_client(gateway: Gateway, stream: bool) -> None:
    """As Claude Code asks: a long prompt, twenty tools, results of parallel calls."""
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
        checked(racer, turn=turn + 1)
    last, _ = ask({"type": "none"})
    assert {block.type for block in last.content} == {"text"}
