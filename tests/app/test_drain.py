"""Graceful shutdown: not ready at once, accepting during the delay, every request ended."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvloop

from app import server, settings
from tests.kit.gateway import (
    ENVIRONMENT,
    ONE,
    POOL,
    Command,
    as_json,
    candidates,
    configure,
    labelled,
    user,
)
from tests.kit.network import free_port
from tests.kit.processes import serving
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until, wait_while_running

CHAT = {"model": "auto", "messages": user(ONE)}


@contextlib.contextmanager
def process(
    folder: Path, artifact: Path, pool: FakePool, *, terminal: int | None = None, **limits: float
) -> Iterator[tuple[httpx2.Client, subprocess.Popen[bytes]]]:
    """``racer serve``, calibrated; on a terminal of its own if given one."""
    patient = candidates(pool.url, timeout_s=60)
    places = {"port": free_port(), "limits": limits}
    config = configure(folder, artifact, pool.url, candidates=patient, **places)
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    if terminal is not None:
        options = {"stdin": terminal, "start_new_session": True, "preexec_fn": take_terminal}
    # A child inherits that SIGHUP is ignored, as under ``nohup``; it inherits no handler.
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        with serving(config, **options) as (client, running):
            rows = {"rows": as_json(labelled(10_000, 60))}
            assert client.post("/calibrate", json=rows).status_code == 200
            yield client, running
    finally:
        signal.signal(signal.SIGHUP, before)


def take_terminal() -> None:
    """Make the standard input of a child the terminal of its session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def log_at_exit(running: subprocess.Popen[bytes]) -> bytes:
    """The log of a process that exits with 0; one that does not exit shows where it waits."""
    try:
        _, log = running.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGABRT)  # prints the stack of each thread
        _, log = running.communicate()
    assert running.returncode == 0, log.decode()
    return log


class RunningRequest:
    """A question under way."""

    def __init__(
        self,
        client: httpx2.Client,
        pool: FakePool,
        path: str = "/v1/chat/completions",
        **fields: Any,
    ) -> None:
        self.text = ""
        self.status = 0
        self.error: Exception | None = None
        before = len(pool.models_called())
        self._thread = threading.Thread(
            target=self._ask, args=(client, path, CHAT | fields), daemon=True
        )
        self._thread.start()
        wait_until(lambda: len(pool.models_called()) > before)

    def _ask(self, client: httpx2.Client, path: str, body: dict[str, Any]) -> None:
        try:
            with client.stream("POST", path, json=body) as response:
                self.status = response.status_code
                for part in response.iter_text():
                    self.text += part
        except httpx2.TransportError as exc:
            self.error = exc

    def ended(self) -> RunningRequest:
        """Once it is over."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self


def test_a_deploy_loses_nothing(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """After SIGTERM: not ready but accepting, then closed; running requests end; exit code 0."""
    with process(tmp_path, artifact, pool, drain_delay_s=5) as (client, running):
        for name in POOL:
            # Past the delay, when no connection is accepted any more.
            pool.say(name, "42", delay_s=6)
        running_request = RunningRequest(client, pool)
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/readyz").status_code != 200, 5)
        draining = client.get("/readyz")
        assert (draining.status_code, draining.json()) == (503, {"status": "draining"})
        assert client.get("/healthz").status_code == 200
        assert client.post("/route", json={"query": ONE}).status_code == 200
        assert client.get("/v1/models").status_code == 200
        assert running_request.ended().status == 200, running_request.error
        assert json.loads(running_request.text)["choices"][0]["message"]["content"] == "42"
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{client.base_url}/healthz", verify=False, trust_env=False)
        errors = log_at_exit(running)
    assert b"Traceback" not in errors
    written = [json.loads(line) for line in errors.splitlines()]
    assert {"/readyz", "/v1/chat/completions"} <= {line.get("route") for line in written}


def test_requests_past_the_drain_end_with_an_error(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Past the drain a stream ends with an error event and a plain answer is 503; exit 0."""
    with process(tmp_path, artifact, pool, drain_s=1.0, comment_every_s=0.2) as (client, running):
        for name in POOL:
            pool.say(name, "4 2 " * 200, pause_s=0.2)
        stream = RunningRequest(client, pool, stream=True, model="adder")
        events_api = RunningRequest(
            client, pool, "/v1/responses", stream=True, model="adder", input=ONE
        )
        messages_api = RunningRequest(client, pool, "/v1/messages", stream=True, model="adder")
        for name in POOL:
            pool.say(name, "42", delay_s=60)
        plain = RunningRequest(client, pool)
        plain_message = RunningRequest(client, pool, "/v1/messages")
        running.send_signal(signal.SIGTERM)
        log_at_exit(running)
        last = last_event(stream, name=None)
        assert last["error"]["code"] == "shutting_down"
        assert "[DONE]" not in stream.text
        assert stream.text.count('"error"') == 1
        last = last_event(events_api, name="error")
        assert (last["type"], last["code"]) == ("error", "shutting_down")
        for each in (plain, plain_message):
            assert each.ended().status == 503, each.error
        assert json.loads(plain.text)["error"]["code"] == "shutting_down"
        for last in (last_event(messages_api, name="error"), json.loads(plain_message.text)):
            assert last["error"]["type"] == "overloaded_error"
            assert last["error"]["details"]["error_code"] == "shutting_down"


def last_event(request: RunningRequest, name: str | None) -> dict[str, Any]:
    """What a stream ends with, under this name."""
    *names, data = request.ended().text.strip().split("\n\n")[-1].split("\n")
    assert request.error is None
    assert names == ([] if name is None else [f"event: {name}"])
    return json.loads(data.removeprefix("data: "))


def test_a_closed_terminal_drains(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """SIGHUP is then a SIGTERM that may come twice: a terminal and its shell both send it."""
    terminal, child_side = os.openpty()
    with process(tmp_path, artifact, pool, terminal=child_side, comment_every_s=0.2) as (
        client,
        running,
    ):
        os.close(child_side)
        for name in POOL:
            pool.say(name, "4 2 " * 5, pause_s=0.2)
        stream = RunningRequest(client, pool, stream=True, model="adder")
        os.close(terminal)
        time.sleep(0.2)
        running.send_signal(signal.SIGHUP)
        log_at_exit(running)
        assert stream.ended().text.rstrip().endswith("data: [DONE]"), stream.error
        assert '"error"' not in stream.text


def test_sighup_reloads(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """The log says what changed, or why nothing did; a stream goes on, and SIGTERM still drains."""
    with process(tmp_path, artifact, pool) as (client, running):
        for name in POOL:
            pool.say(name, "4 2 " * 5, pause_s=0.2)
        stream = RunningRequest(client, pool, stream=True, model="adder")
        path = tmp_path / "racer.yaml"
        before = path.read_text(encoding="utf-8")
        path.write_text(f"{before}pools: {{small: {{candidates: [adder]}}}}\n", encoding="utf-8")
        running.send_signal(signal.SIGHUP)
        wait_while_running(lambda: "auto/small" in client.get("/v1/models").text, running)
        path.write_text(f"{before}host: 127.0.0.2\n", encoding="utf-8")
        running.send_signal(signal.SIGHUP)
        assert stream.ended().text.rstrip().endswith("data: [DONE]"), stream.error
        assert "auto/small" in client.get("/v1/models").text
        running.send_signal(signal.SIGTERM)
        log = log_at_exit(running)
    assert b"the configuration was reloaded; changed: pools.small" in log
    assert b"is not reloaded: host: cannot be changed without a restart" in log


@pytest.mark.parametrize("ignored", [True, False])
def test_the_start_sets_the_interpreter_and_heeds_nohup(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    """A SIGHUP that the parent ignores stays ignored; the loop waits little for other threads."""
    found: list[tuple[bool, float]] = []

    async def serve(_: server.Server, **__: Any) -> None:
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        found.append((is_ignored, sys.getswitchinterval()))

    monkeypatch.setattr(server.Server, "serve", serve)
    before, interval = signal.getsignal(signal.SIGHUP), sys.getswitchinterval()
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    config = configure(tmp_path, artifact, "http://127.0.0.1:9/v1")
    configured, secrets = settings.load(config, ENVIRONMENT)
    try:
        with socket.socket() as listener:
            uvloop.run(server.Server(configured, secrets, listener).serve_until_signalled())
    finally:
        gc.enable()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGHUP, before)
    assert found == [(ignored, pytest.approx(0.0005))]


def test_a_late_second_hangup_leaves_the_exit_code(
    tmp_path: Path, artifact: Path, racer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come when the event loop is closed: then the last log lines are being written."""
    config = configure(tmp_path, artifact, "http://127.0.0.1:9/v1")
    monkeypatch.setattr(uvloop, "run", lambda serving: serving.close())
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as the closed loop leaves it
    try:
        assert racer("serve", "--config", config)[0] == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_does_not_wait(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """Neither for the delay nor for what is in flight."""
    with process(tmp_path, artifact, pool, drain_delay_s=600, drain_s=600) as (client, running):
        for name in POOL:
            pool.say(name, "42", delay_s=600)
        running_request = RunningRequest(client, pool)
        running.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=120)
        assert running_request.ended().status in (0, 503)
