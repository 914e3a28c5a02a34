"""A vLLM server dies: what was under way says so, and the others answer with a guarantee."""

from __future__ import annotations

import pytest

from tests.kit.gateway import Gateway, user
from tests.kit.lazy import LazyModule

from .conftest import ENDLESS, WHOLE_POOL, Serve, Servers

openai = LazyModule("openai")

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

VICTIM = "tribune"
SURVIVORS = ["abacus", "mirror"]
QUESTIONS = [f"What is {n} plus 25?" for n in range(11, 17)]


def is_up(gateway: Gateway) -> bool:
    """What the gateway's metrics say of the victim."""
    return f'racer_candidate_up{{candidate="{VICTIM}"}} 1.0' in gateway.get("/metrics").text


def test_a_killed_server_leaves_the_pool(serve: Serve, servers: Servers) -> None:
    """Killed in mid-stream: that stream ends with an error, and its candidate's circuit opens.

    While it is not yet known to be down, the others' answer comes with its failure as a reason;
    from then on no request waits for it, and the certificate is about the two that are left.
    """
    gateway = serve()
    whole_pool = gateway.chat(QUESTIONS[0], WHOLE_POOL)["racer"]
    assert whole_pool["certificate"]["guarantee"]["pool"] == ["abacus", "mirror", VICTIM]
    assert is_up(gateway)

    stream = gateway.openai().chat.completions.create(
        model=VICTIM,
        messages=user(QUESTIONS[0]),
        stream=True,
        extra_body=ENDLESS,
    )
    with stream:
        chunks = iter(stream)
        assert next(chunks).model == VICTIM
        servers[VICTIM].kill()
        with pytest.raises(openai.APIError):
            list(chunks)

    answers = [gateway.chat(question, WHOLE_POOL) for question in QUESTIONS]
    reasons = [set(answer["racer"]["certificate"]["reasons"]) for answer in answers]
    assert all(answer["model"] in SURVIVORS for answer in answers)
    last = answers[-1]["racer"]
    assert sorted(last["selected"]) == SURVIVORS
    assert last["certificate"]["guarantee"]["pool"] == SURVIVORS
    assert f"candidate_down:{VICTIM}" in last["certificate"]["reasons"]
    assert last["certificate"]["holds"] is True
    assert {call["candidate"] for call in last["calls"]} <= set(SURVIVORS)
    assert not is_up(gateway)
    for message in reasons:  # at no time did it just go missing
        assert any(VICTIM in reason for reason in message)
