"""End to end: whole requests become rows and are certified, before real models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml

from tests.app.conftest import racer as racer
from tests.support.gateway import ADMIN_KEY, ENVIRONMENT, Command, running, user
from tests.support.lazy import LazyModule

run = LazyModule("app.tools.demo.run")

pytestmark = pytest.mark.slow

SYSTEM: Final = {"role": "system", "content": "Answer with one number."}
FIRST_ANSWER: Final = {"role": "assistant", "content": "42"}
TOOL: Final = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
PARAGRAPH: Final = "The parcel left Rome on Monday and was seen in Turin on Tuesday. " * 10
LONG: Final = PARAGRAPH * 31  # more than 20,000 characters
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
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The demo's pool, which reads a paragraph as one token.

    The models read single characters, and 20,000 tokens take 14 s a call on a CPU.
    """
    for source in (run.FOLDER / "pool").glob("*/"):
        folder = tmp_path / "pool" / source.name
        shutil.copytree(source, folder)
        file = folder / "tokenizer.json"
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        long = {"type": "Replace", "pattern": {"String": PARAGRAPH}, "content": "."}
        file.write_text(json.dumps(tokenizer | {"normalizer": long}), encoding="utf-8")
    demo = import_module("app.tools.demo.run")
    port, log = demo._free_port(), tmp_path / "pool.log"
    with ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(demo, "FOLDER", tmp_path)  # where the server looks for models
            process = stack.enter_context(demo._process(demo._pool_command(port), log))
        demo._wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"


def test_whole_requests_are_certified_after_label_and_calibrate(
    server: str, racer: Command, tmp_path: Path
) -> None:
    """By the command line and the official client. No model here calls a tool that it is given.

    A request with a system prompt without rows stays void.
    """
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


def configure(folder: Path, server: str) -> Path:
    """The demo's configuration with this pool and a store of its own."""
    values = yaml.safe_load((run.FOLDER / "racer.yaml").read_text(encoding="utf-8"))
    for each in values["candidates"]:
        each |= {"base_url": server, "timeout_s": 120}
    values |= {
        "artifact": str(run.FOLDER / "router"),
        "store": f"sqlite:///{folder / 'racer.db'}",
        "port": 0,
        "limits": {"deadline_s": 120},
    }
    path = folder / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


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
