"""End to end: whole requests become rows and are certified, before real models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.kit.demo import LONG, configure, long_pool
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, Command, running, user

pytestmark = pytest.mark.slow

SYSTEM: Final = {"role": "system", "content": "Answer with one number."}
FIRST_ANSWER: Final = {"role": "assistant", "content": "42"}
TOOL: Final = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
POOL: Final = ("abacus", "mirror", "sieve", "almanac", "tribune")
REQUESTS: Final = 4  # of each kind: alpha 0.2 needs four
KINDS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "system prompt": lambda query: {"messages": [SYSTEM, *user(query)]},
    "tools": lambda query: {"messages": user(query), "tools": [TOOL], "tool_choice": "auto"},
    "20,000 characters": lambda query: {"messages": user(LONG + query)},
    "five turns": lambda query: {
        "messages": [
            *user("What is 1 plus 1?"), FIRST_ANSWER, *user("And 2?"), FIRST_ANSWER, *user(query)
        ]
    },
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The demo's models; a paragraph of the long requests is one token."""
    with long_pool(tmp_path) as url:
        yield url


def test_whole_requests_are_certified_after_label_and_calibrate(
    server: str, racer: Command, tmp_path: Path
) -> None:
    """By the command line and the official client. No model here calls a tool that it is given."""
    questions = [
        {"request": body, "reference": first_text(server, body)}
        for make in KINDS.values()
        for body in (make(f"What is {number} plus 25?") for number in range(17, 17 + REQUESTS))
    ]
    config = configure(tmp_path, server)
    file, rows = tmp_path / "questions.jsonl", tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8")
    code, printed, error = racer(
        "label", file, "--config", config, "--out", rows, "--grade", "exact", "--json"
    )
    assert code == 0, error
    assert json.loads(printed)["calls"] == len(questions) * len(POOL)
    with running(config, ENVIRONMENT) as gateway:
        code, _, error = racer(
            "calibrate", rows, "--url", gateway.url, "--key", ADMIN_KEY,
            "--alpha", "0.2", "--rows", "traffic",
        )  # fmt: skip
        assert code == 0, error
        create: Any = gateway.openai().chat.completions.create
        for kind, make in KINDS.items():
            answer = create(model="auto", **make("What is 40 plus 2?"))
            certificate = answer.model_extra["racer"]["certificate"]
            assert certificate["holds"] is True, (kind, certificate["reasons"])
        unlabelled = {"role": "system", "content": "Answer with one word."}
        other = create(model="auto", messages=[unlabelled, *user("What is 40 plus 2?")])
        assert other.model_extra["racer"]["certificate"]["holds"] is False


def first_text(server: str, body: dict[str, Any]) -> str:
    """The first text that a candidate answers, so that each row has one that is right."""
    for name in POOL:
        sent = {"model": f"pool/{name}", "temperature": 0, "max_tokens": 16, **body}
        response = httpx2.post(
            f"{server}/chat/completions", json=sent, timeout=120, trust_env=False
        )
        assert response.status_code == 200, response.text
        if text := response.json()["choices"][0]["message"]["content"]:
            return text
    raise AssertionError("no candidate answers this request")
