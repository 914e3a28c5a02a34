"""Calls of named candidates: the tokens charged for every end of a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from app.answering.named_candidate import NamedCandidateRequest, NamedCandidateService
from app.settings import Secrets
from app.telemetry.metrics import Metrics
from app.upstream.fleet import Fleet
from tests.kit.fleets import CHAT, configured
from tests.kit.hostile.exchange import Behaviour, Exchange
from tests.kit.hostile.replicas import hangs, replicas
from tests.kit.loops import on_loop
from tests.kit.waiting import eventually

FORTY = "a" * 40  # ten tokens by the gateway's estimate
Spend = Callable[[int], None]
Work = Callable[[NamedCandidateService, Spend], Coroutine[Any, Any, Any]]


def _answer(direct: NamedCandidateService, spend: Spend) -> Coroutine[Any, Any, Any]:
    return direct.answer(
        NamedCandidateRequest(name="m", api_format=CHAT, fields={"prompt": FORTY}, spend=spend)
    )


def _embeddings(direct: NamedCandidateService, spend: Spend) -> Coroutine[Any, Any, Any]:
    return direct.embeddings("m", {"input": [FORTY]}, spend)


async def uncounted(exchange: Exchange) -> None:
    """Forty letters, and no word of tokens."""
    message = {"role": "assistant", "content": FORTY}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    await exchange.answer(json.dumps({"choices": choices, "data": [], "usage": None}).encode())


async def counted(exchange: Exchange) -> None:
    """A count that differs from the gateway's estimate."""
    message = {"role": "assistant", "content": FORTY}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    answer = {"choices": choices, "usage": {"total_tokens": 77}}
    await exchange.answer(json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("work", "play", "tokens"),
    [(_answer, hangs, 10), (_answer, uncounted, 20), (_answer, counted, 77),
     (_embeddings, hangs, 10), (_embeddings, uncounted, 10), (_embeddings, counted, 77)],
)  # fmt: skip
@on_loop
async def test_a_call_by_name_is_charged_once(work: Work, play: Behaviour, tokens: int) -> None:
    """By the candidate's usage; without it by an estimate of prompt and written text."""
    counts: list[int] = []
    async with replicas(play) as [one]:
        settings = configured({"m": [one]})
        async with Fleet(settings, Secrets(), metrics=Metrics()) as fleet:
            task = asyncio.create_task(work(NamedCandidateService(settings, fleet), counts.append))
            await eventually(lambda: len(one.asked) == 1)
            if play is hangs:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert counts == [tokens]
