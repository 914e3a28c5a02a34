"""What servers serve: `model` is filled at the start, and a base URL without `/v1` has its cure."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from app.settings import Secrets, load
from app.upstream.served_models import ServedModels
from tests.kit.gateway import Command
from tests.kit.network import free_port
from tests.kit.upstream import FakePool
from tests.kit.waiting import until


@pytest.fixture
def servers() -> Iterator[list[FakePool]]:
    """Three servers, each with one model whose name is no candidate's."""
    models = ("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "phi")
    with ExitStack() as stack:
        yield [stack.enter_context(FakePool(models=[model])) for model in models]


def configured(folder: Path, servers: list[FakePool], *, root: str = "/v1") -> Path:
    """A configuration with nothing but candidates, as the README prints it."""
    candidates = [
        {"name": name, "base_url": f"{server.url.removesuffix('/v1')}{root}"}
        for name, server in zip(("qwen", "llama", "phi"), servers, strict=True)
    ]
    path = folder / "racer.yaml"
    path.write_text(yaml.safe_dump({"schema_version": 1, "candidates": candidates}), "utf-8")
    return path


def started(config: Path, *options: str) -> subprocess.Popen[str]:
    """`racer serve` with nothing in the environment, on a port of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--config", str(config), *options],
        stderr=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip


def asked_once(config: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """The log of a gateway that answered one question, and its progress."""
    port = free_port()
    process = started(config, "--port", str(port), *options)
    url = f"http://127.0.0.1:{port}"

    def answered() -> httpx2.Response | None:
        try:
            return httpx2.get(f"{url}/healthz", trust_env=False)
        except httpx2.TransportError:
            return None

    try:
        assert until(lambda: answered() is not None, 60)
        body = {"model": "auto", "messages": [{"role": "user", "content": "What is 17 plus 25?"}]}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
        progress = httpx2.get(f"{url}/same-answer/progress", trust_env=False)
    finally:
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=30)
    assert answer.status_code == 200, answer.text + log
    return log, progress.json()


def test_the_readme_s_example_answers_with_the_models_that_are_served(
    tmp_path: Path, servers: list[FakePool]
) -> None:
    """No `model`, no key: the one model of each server is called, and progress is shown."""
    log, progress = asked_once(configured(tmp_path, servers), "--calibrate-from-traffic")
    assert servers[0].models_called() == ["Qwen/Qwen2.5-7B-Instruct"]
    assert f"candidate qwen: {servers[0].url} serves Qwen/Qwen2.5-7B-Instruct" in log
    assert "candidate phi" not in log  # its server lists it
    assert progress["applications"][""]["rows"] in (0, 1)  # one request in twenty is sampled
    assert "/same-answer/progress" in log


def filled(config: Path, caplog: pytest.LogCaptureFixture) -> tuple[list[str | None], str]:
    """The models of a start, and its log."""
    configured, _ = load(config, {})
    caplog.clear()
    with caplog.at_level(logging.INFO):
        served = ServedModels()
        found = served.filled(configured, Secrets())
        served.log()
    return [each.model for each in found.candidates], caplog.text


def test_what_a_server_answers_otherwise_is_said(
    tmp_path: Path, servers: list[FakePool], caplog: pytest.LogCaptureFixture
) -> None:
    """Several models, none of the name; a server that is down. A start is not stopped by either."""
    servers[0].models = ["one", "two"]
    config = configured(tmp_path, servers)
    text = config.read_text("utf-8").replace(servers[2].url, f"http://127.0.0.1:{free_port()}/v1")
    config.write_text(text, "utf-8")
    models, log = filled(config, caplog)
    assert models == [None, "meta-llama/Llama-3.1-8B-Instruct", None]
    assert "serves one, two, not qwen: set `model` to a name that the server lists" in log
    assert "candidate phi: " in log
    assert "cannot be reached" in log
    assert "it is asked for the model phi" in log


def test_a_reload_asks_no_server_again(tmp_path: Path, servers: list[FakePool]) -> None:
    """Else a server that restarts at that moment would change the configuration."""
    configured_, secrets = load(configured(tmp_path, servers), {})
    served = ServedModels()
    first = served.filled(configured_, secrets)
    for server in servers:
        server.models_status = 500
    assert served.filled(configured_, secrets) == first


def test_commands_call_and_bind_the_models_that_the_gateway_calls(
    tmp_path: Path, servers: list[FakePool], racer: Command
) -> None:
    """Else rows and routers would be of other candidates than those that are served."""
    config = configured(tmp_path, servers)
    (tmp_path / "questions.jsonl").write_text(
        "".join(f'{{"query": "What is {n} plus 1?", "reference": "42"}}\n' for n in range(20))
    )
    servers[0].answer = lambda body: "42" if "1" in body["messages"][0]["content"][8:10] else "7"
    rows, router = tmp_path / "rows.jsonl", tmp_path / "router"
    asked = ("label", tmp_path / "questions.jsonl", "--config", config, "--out", rows)
    code, _, err = racer(*asked)
    assert code == 0, err
    named = [each.models[0] for each in servers]
    assert [set(each.models_called()) for each in servers] == [{each} for each in named]
    trained = ("train", "--config", config, "--data", rows, "--out", router, "--encoder")
    code, _, err = racer(*trained, "char-ngrams")
    assert code == 0, err
    manifest = json.loads((router / "manifest.json").read_text())
    assert named == [each["model"] for each in manifest["candidates"]]


def test_a_base_url_without_v1_has_its_cure(
    tmp_path: Path, servers: list[FakePool], racer: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line each: at the start, by `racer validate`, and by `racer doctor`."""
    config = configured(tmp_path, servers, root="")
    cure = f"set `base_url: {servers[0].url}`"
    _, log = filled(config, caplog)
    assert cure in log
    code, _, problem = racer("validate", "--config", str(config))
    assert code != 0
    assert cure in " ".join(problem.split())
    code, out, _ = racer("doctor", "--config", str(config), "--json")
    assert code == 1
    found = {each["check"]: each for each in json.loads(out)["findings"]}["endpoint qwen"]
    assert (found["state"], found["cure"]) == ("failed", cure)
    code, _, problem = racer("validate", "--config", str(configured(tmp_path, servers)))
    assert code == 0, problem
