"""One of the vLLM servers rates answers: P(True) from its logprobs, verbal from its words."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest

from app.judging.rater import prompt

from .conftest import POOL, WHOLE_POOL, Serve, Servers, rows_of
from .servers import VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

PROMPT_CHARS: Final = 400
# Of these models only the tribune often continues the prompt with a 1.
JUDGE: Final = "tribune"
# Here it gives two of three different answers a 1, and the third an 8.
SPOKEN: Final = "Calculate 42 + 43."


def disagreed() -> str:
    """The first test query that every candidate answers differently."""
    rows = rows_of("test", 100).rows
    return next(row.query for row in rows if len(set(row.answers.values())) == len(POOL))


def rated(serve: Serve, judge: str, weight: str, query: str) -> dict[str, Any]:
    """The ``racer`` object of an answer by the whole pool, whose votes the judge weighs."""
    evaluator = {"candidate": judge, "prompt_chars": PROMPT_CHARS, "timeout_s": 60}
    gateway = serve(aggregation={"method": "weighted", "weight": weight, "evaluator": evaluator})
    return gateway.chat(query, WHOLE_POOL | {"explain": True})["racer"]


def verdicts(
    judge: VllmServer, query: str, answers: dict[str, str], **fields: Any
) -> dict[str, Any]:
    """What the judge says of each candidate's answer when it is asked without a gateway."""
    return {
        name: judge.ask(
            "completions", prompt=prompt(query, text, PROMPT_CHARS), max_tokens=1, **fields
        )["choices"][0]
        for name, text in answers.items()
    }


def test_p_true_is_the_judges_own_probability(serve: Serve, servers: Servers) -> None:
    """Of "1" among vLLM's twenty likeliest tokens; the highest weight wins the vote."""
    query = disagreed()
    racer = rated(serve, JUDGE, "p_true", query)
    verdict_texts = verdicts(servers[JUDGE], query, racer["answers"], logprobs=20)
    tops = {name: choice["logprobs"]["top_logprobs"][0] for name, choice in verdict_texts.items()}
    chances = {name: math.exp(top.get("1", -math.inf)) for name, top in tops.items()}
    assert any(chances.values())
    assert racer["weights"] == pytest.approx(chances, rel=1e-3)
    assert racer["evaluation"]["calls"] == len(POOL)
    assert racer["evaluation"]["failures"] == {}
    assert racer["evaluation"]["usage"]["completion_tokens"] == len(POOL)
    assert chances[racer["served_by"]] == max(chances.values())
    assert racer["certificate"]["holds"] is True


def test_verbal_confidence_is_the_judges_token(serve: Serve, servers: Servers) -> None:
    """A token that is neither 0 nor 1 is a failure; its answer counts as one of mean weight."""
    racer = rated(serve, JUDGE, "verbal", SPOKEN)
    verdict_texts = verdicts(servers[JUDGE], SPOKEN, racer["answers"])
    words = {name: choice["text"].strip() for name, choice in verdict_texts.items()}
    weights = {name: float(word) if word in ("0", "1") else None for name, word in words.items()}
    assert racer["weights"] == weights
    assert set(racer["evaluation"]["failures"]) == {n for n, w in weights.items() if w is None}
    assert racer["evaluation"]["calls"] == len(POOL)
    assert 1.0 in weights.values()
    assert list(racer["votes"].values()) == pytest.approx([1 / 3] * 3)
    assert racer["certificate"]["holds"] is True
