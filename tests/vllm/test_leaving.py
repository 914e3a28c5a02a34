"""Cancelled requests: vLLM's own metrics show that it aborts them."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.kit.gateway import DATA_KEY, Gateway, user
from tests.kit.waiting import until

from .conftest import ENDLESS, POOL, WHOLE_POOL, Serve, Servers, rows_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

WITHIN_S: Final = 60.0  # on a machine that others share; an abort takes a fraction of a second
LONELY: Final = "What is 17 plus 25?"  # for which one candidate is selected


class Work:
    """What servers do with one request each, since this was made.

    A request that ends otherwise than as stopped or at its length was aborted: vLLM counts those
    under no finish reason.
    """

    def __init__(self, servers: Servers, names: tuple[str, ...]) -> None:
        self._servers = [servers[name] for name in names]
        self._before = self._ended()

    def _ended(self) -> list[int]:
        return [each.finished("length") + each.finished("stop") for each in self._servers]

    @property
    def is_under_way(self) -> bool:
        """Each works on its request."""
        return all(each.running() == 1 for each in self._servers)

    @property
    def is_aborted(self) -> bool:
        """No server generates any more, and none has finished its request."""
        return not any(each.running() for each in self._servers) and self._ended() == self._before


def streaming(gateway: Gateway, model: str, racer: dict[str, Any]) -> Any:
    """A stream of an answer without end, as the official client reads it."""
    return gateway.openai().chat.completions.create(
        model=model,
        messages=user(LONELY),
        stream=True,
        extra_body={**ENDLESS, "racer": racer},
    )


@pytest.mark.parametrize("model", ["abacus", "auto"])
def test_leaving_in_mid_stream_aborts_the_answer(
    gateway: Gateway, servers: Servers, model: str
) -> None:
    """One candidate streams live, named or selected; the client reads a little and leaves."""
    work = Work(servers, ("abacus",))
    with streaming(gateway, model, {}) as stream:
        chunks = iter(stream)
        assert [next(chunks).model for _ in range(5)] == ["abacus"] * 5
        assert work.is_under_way
    assert until(lambda: work.is_aborted, WITHIN_S, every_s=0.05)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_several_candidates_answer_aborts_them_all(
    gateway: Gateway, servers: Servers, stream: bool
) -> None:
    """The vote waits for all three; no word of an answer was sent yet when the client leaves."""
    work = Work(servers, POOL)
    fields = {"messages": user(LONELY), "stream": stream, "racer": WHOLE_POOL, **ENDLESS}
    headers = {"content-type": "application/json", "authorization": f"Bearer {DATA_KEY}"}
    client = HTTPConnection(urlsplit(gateway.url).netloc)
    with closing(client):
        body = json.dumps({"model": "auto", **fields})
        client.request("POST", "/v1/chat/completions", body, headers)
        assert until(lambda: work.is_under_way, WITHIN_S, every_s=0.05)
    assert until(lambda: work.is_aborted, WITHIN_S, every_s=0.05)


def test_a_decided_vote_aborts_running_generations(serve: Serve, servers: Servers) -> None:
    """Two agree and the third never ends: the answer is theirs, at once, and vLLM stops."""
    row = next(
        row
        for row in rows_of("test", 400).rows
        if {"abacus", "tribune"} <= row.correct and "mirror" not in row.correct
    )
    work = Work(servers, ("mirror",))
    answer = serve(parameters={"mirror": ENDLESS}).chat(row.query, WHOLE_POOL)
    racer = answer["racer"]
    assert answer["choices"][0]["message"]["content"] == row.reference
    assert racer["served_by"] in {"abacus", "tribune"}
    assert {"candidate": "mirror", "cancelled": "vote_decided"} in racer["calls"]
    assert racer["usage_incomplete"] is True
    assert racer["certificate"]["holds"] is True
    assert until(lambda: work.is_aborted, WITHIN_S, every_s=0.05)
