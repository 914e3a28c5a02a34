"""Words of a candidate's rejection reach the client, in every API format, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from app.upstream.circuit_breaker import UNREACHABLE
from tests.kit.gateway import ONE, POOL, TWO, Gateway, Serve
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

from .formats import CHAT, EVERY_API, MESSAGES, STREAMED, WHOLE_POOL, Api

NO_TOOLS = {
    "object": "error",
    "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser',
    "type": "BadRequestError",
    "param": "tools",
    "code": 400,
}
ASKED = pytest.mark.parametrize(
    ("model", "text", "racer"),
    [("adder", ONE, {}), ("auto", ONE, {}), ("auto", TWO, WHOLE_POOL)],
    ids=["named", "set of one", "set"],
)


def refused(api: Api, gateway: Gateway, text: str, status: int, **fields: Any) -> dict[str, Any]:
    """The error of a refused request."""
    response = api.post(gateway, text, **fields)
    assert response.status_code == status, response.text
    return response.json()["error"]


@EVERY_API
@STREAMED
@ASKED
def test_a_prompt_that_does_not_fit_is_named_so(
    gateway: Gateway,
    pool: FakePool,
    api: Api,
    stream: bool,
    model: str,
    text: str,
    racer: dict[str, Any],
) -> None:
    """With OpenAI's code, and the words of both vendors: agents shorten the conversation then."""
    for name in POOL:
        pool.fail(name, "too_long")
    error = refused(api, gateway, text, 400, model=model, stream=stream, racer=racer)
    assert api.code(error) == "context_length_exceeded"
    assert "prompt is too long: 5120 tokens > 4096 maximum" in error["message"]
    assert "maximum context length is 4096 tokens" in error["message"]


@EVERY_API
@STREAMED
@ASKED
def test_the_words_of_a_fault_reach_the_client(
    gateway: Gateway,
    pool: FakePool,
    api: Api,
    stream: bool,
    model: str,
    text: str,
    racer: dict[str, Any],
) -> None:
    """They name the cure: here a flag of the server."""
    for name in POOL:
        pool.fail(name, "400", NO_TOOLS)
    error = refused(api, gateway, text, 400, model=model, stream=stream, racer=racer)
    assert error["message"] == f"adder: {NO_TOOLS['message']}"
    assert (error if api is not MESSAGES else error["details"])["param"] == "tools"


def test_of_a_set_the_best_ranked_speaks(gateway: Gateway, pool: FakePool) -> None:
    """Whoever answered first."""
    for name, delay_s in zip(POOL, (0.2, 0.1, 0.0), strict=True):
        pool.say(name, "", fault="400", error={"error": f"{name} says no"}, delay_s=delay_s)
    error = refused(CHAT, gateway, ONE, 400, racer=WHOLE_POOL)
    assert error["message"] == "adder: adder says no"


def test_a_retired_model_is_down_and_its_set_is_widened(serve: Serve, pool: FakePool) -> None:
    """As for any outage: its breaker opens, and what holds is about the surviving pool."""
    gateway = serve()
    pool.fail("adder", "lost_model")
    error = refused(CHAT, gateway, ONE, 503, model="adder")
    assert (error["code"], "adder" in error["message"]) == ("upstream_model_missing", True)
    for _ in range(UNREACHABLE - 1):
        assert gateway.chat(TWO)["model"] == "speller"
    pool.requests.clear()
    wait_until(lambda: gateway.chat(TWO)["racer"]["certificate"]["holds"])
    assert gateway.chat(TWO)["racer"]["certificate"]["guarantee"]["pool"] == ["speller", "poet"]
    assert "adder" not in pool.models_called()


def test_a_model_that_is_listed_again_is_called_again(serve: Serve, pool: FakePool) -> None:
    """A health check passes only when the server lists it: the server itself was never down."""
    gateway = serve(fleet={"eject_s": 0.05})
    pool.models = ["speller"]
    pool.fail("adder", "lost_model")
    for _ in range(UNREACHABLE):
        gateway.chat(TWO)
    pool.requests.clear()
    pool.seen.clear()
    wait_until(lambda: pool.seen.count("GET /v1/models") > 2)
    gateway.chat(TWO)
    assert "adder" not in pool.models_called()
    pool.models = ["adder:latest", "speller"]
    pool.say("adder", "7")
    wait_until(lambda: gateway.chat(TWO) and "adder" in pool.models_called())
