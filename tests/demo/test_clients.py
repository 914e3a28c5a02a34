"""The client libraries that people use, unchanged, before the demo and its real models."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest

from racer_core.types import LabelledRows
from tests.kit.clients import CLIENTS, Ask, SdkClient
from tests.kit.demo import DemoAddress
from tests.kit.lazy import LazyModule

anthropic = LazyModule("anthropic")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a busy machine starts the demo late

EACH_CLIENT = pytest.mark.parametrize("name", CLIENTS)


@pytest.fixture(scope="module")
def asks(running_demo: DemoAddress, test_rows: LabelledRows) -> dict[int, Ask]:
    """Questions that one candidate answers, and two, by their number."""
    found: dict[int, Ask] = {}
    with httpx2.Client(base_url=running_demo.url, trust_env=False, timeout=60) as client:
        for row in test_rows.rows:
            ask = Ask(url=running_demo.url, key="unused", text=row.query)
            body = {"query": ask.text, "execute": False}
            size = len(client.post("/route", json=body).json()["selected"])
            found.setdefault(size, ask)
            if found.keys() >= {1, 2}:
                return found
    raise AssertionError(f"no question of the demo has one candidate, or two: {found}")


@EACH_CLIENT
@pytest.mark.parametrize("size", [1, 2])
def test_a_client_gets_a_candidates_answer(asks: dict[int, Ask], name: str, size: int) -> None:
    """Whole and streamed: its text, its name, and the certificate where the library keeps it."""
    client: SdkClient = CLIENTS[name]
    answer, streamed = client.ask(asks[size]), client.stream(asks[size])
    direct = CLIENTS["openai"].create(replace(asks[size], model=answer.model))
    assert answer.text == direct.choices[0].message.content
    assert (streamed.text, streamed.model) == (answer.text, answer.model)
    # The demo's rows were labelled by chat.
    void = ["conditions_differ:endpoint"] if name == "openai-responses" else []
    is_dropped = name in ("langchain-openai", "langchain-anthropic")
    assert answer.reasons == void
    assert streamed.reasons == (None if is_dropped else void)


@EACH_CLIENT
def test_another_limit_on_tokens_voids(asks: dict[int, Ask], name: str) -> None:
    """And is named."""
    is_chat = name != "openai-responses"
    differ = ("max_tokens",) if is_chat else ("endpoint", "max_output_tokens")
    answer = CLIENTS[name].ask(replace(asks[1], fields={differ[-1]: 64}))
    assert answer.reasons == [f"conditions_differ:{each}" for each in differ]
