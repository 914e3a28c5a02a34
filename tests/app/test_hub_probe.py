"""An encoder that only a hub has: an unreachable hub is named at once, with what to do instead."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.tools import hub_probe
from racer_core.errors import ArtifactError
from tests.kit.command_results import failed, write
from tests.kit.gateway import Command, labelled

NAME = "somebody/an-encoder-that-is-nowhere"


@pytest.fixture(autouse=True)
def _no_model_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is cached, and no proxy is in the way."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(hub_probe, "is_cached", lambda _: False)


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """A server on a free port that gives one answer to every connection, or none at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    if answer is not None:
                        connection.recv(4096)
                        connection.sendall(answer)
            except OSError:
                return  # the test is over

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for each in connections:
            each.close()


@pytest.mark.parametrize(
    "answer",
    [
        "200 OK\r\nX-Repo-Commit: 0123",
        "307 Temporary Redirect\r\nLocation: /other/name",
        "302 Found\r\nLocation: https://127.0.0.1/name",
        "302 Found\r\nLocation: https://files.example/name\r\nX-Repo-Commit: 0123",
        "401 Unauthorized\r\nX-Error-Code: RepoNotFound",
        "401 Unauthorized\r\nWWW-Authenticate: Bearer",
        "403 Forbidden\r\nX-Error-Code: GatedRepo",
        "404 Not Found\r\nX-Error-Code: RepoNotFound",
    ],
)
def test_a_hub_that_answers_is_used(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Whatever it says: the loader knows more. A mirror may want a key, which no probe sends."""
    with listening(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode()) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        hub_probe.check_hub(NAME)
        hub_probe.check_hub(f"{NAME}@0123")


@pytest.mark.parametrize(
    "answer",
    [
        "200 OK",
        "302 Found\r\nLocation: http://login.example/portal",
        "302 Found\r\nLocation: http://[",
        "302 Found",
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "502 Bad Gateway",
    ],
)
def test_a_proxy_or_a_login_page_is_no_hub(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A network's login redirects to its own host, and a proxy's refusal has no hub's header."""
    with listening(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode()) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(ArtifactError, match=f"is no hub .it answers {answer[:3]}"):
            hub_probe.check_hub(NAME)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1", "cannot be reached"),
        ("http://no-such-hub.invalid", "cannot be reached"),
        ("nonsense", "cannot be reached"),
    ],
)
def test_a_hub_that_is_not_there_is_named(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    """By `racer train` and `racer evaluate`: one line, exit code 2, three ways to go on."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    data = write(tmp_path / "rows.jsonl", labelled(0, 40))
    train = ["train", "--data", data, "--validation", data, "--out", tmp_path / "a"]
    ways = ("--encoder wordllama", "--encoder FOLDER", "--encoder auto", "$HF_ENDPOINT")
    failed(racer(*train, "--backend", "cuda"), 2, "mdeberta-v3-base", url, reason, *ways)
    failed(racer(*train, "--encoder", NAME), 2, NAME, *ways)
    failed(racer("evaluate", "--data", data, "--encoder", NAME, "--json"), 2, url, *ways)
    assert not (tmp_path / "a").exists()


def test_a_hub_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that drops every packet looks like this: the command goes on at the limit."""
    monkeypatch.setattr(hub_probe, "TIMEOUT_S", 60.0)
    clock = iter([0.0, 60.0])  # the limit passes while the probe still waits
    monkeypatch.setattr(hub_probe, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    before = {*threading.enumerate()}
    with socket.create_server(("127.0.0.1", 0)) as server:  # which accepts no connection
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(ArtifactError, match=r"did not answer within 60 s"):
            hub_probe.check_hub(NAME)
        (probe,) = {*threading.enumerate()} - before
        assert probe.is_alive(), "the command waited for it"
    probe.join()


def test_name_service_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no limit of its own. Red when the probe waits for it in the command's thread."""
    free = threading.Event()

    def hangs(*_: object, **__: object) -> None:
        free.wait(60)
        raise socket.gaierror("no such host")

    monkeypatch.setattr(hub_probe, "TIMEOUT_S", 0.2)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    try:
        with pytest.raises(ArtifactError, match="did not answer"):
            hub_probe.check_hub(NAME)
    finally:
        free.set()


def test_what_is_here_asks_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder, or a model in the hub's cache."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    Path("encoder").mkdir()
    hub_probe.check_hub("encoder")
    monkeypatch.setattr(hub_probe, "is_cached", lambda _: True)
    hub_probe.check_hub(NAME)


def test_a_hub_that_is_switched_off_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of the hub's own library says so."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ArtifactError, match=r"switched off by \$HF_HUB_OFFLINE"):
        hub_probe.check_hub(NAME)
