"""`racer serve` says where it listens: in lines on a terminal, in a JSON line elsewhere."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from app import server, settings
from app.cli import announcement
from app.services import Services
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ENVIRONMENT, POOL, configure, running
from tests.kit.upstream import FakePool


def served(config: Path, stderr: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """``racer serve`` with its error stream elsewhere."""
    return subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--config", str(config)],
        env={**os.environ, "COLUMNS": "140", "TERM": "dumb", **environment},
        stderr=stderr,
    )


def read_until(descriptor: int, end: bytes) -> str:
    """What was written up to some last words."""
    text = b""
    while end not in text:
        found = os.read(descriptor, 4096)
        assert found, text
        text += found
    return text.decode()


def ended(process: subprocess.Popen[bytes]) -> None:
    """Stop the gateway as an operator does."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_on_a_terminal_a_few_lines_say_what_an_operator_needs(
    tmp_path: Path, pool: FakePool
) -> None:
    """Addresses, pool, what is missing and which command comes next; the log is text there."""
    config = configure(tmp_path, tmp_path / "artifact", pool.url)
    mine, its = pty.openpty()
    process = served(config, its, {"RACER_DATA_KEY": DATA_KEY})
    os.close(its)
    try:
        shown = read_until(mine, b"admin key")
        ended(process)
    finally:
        process.kill()
        os.close(mine)
    lines = {line[:11].strip(): line[11:].strip() for line in shown.splitlines()}
    url = lines["listens at"]
    assert url.startswith("http://127.0.0.1:")
    assert lines["page"] == f"{url}/ui"
    assert lines["pool"] == ", ".join(POOL)
    assert "no artifact is at" in lines["artifact"]
    assert "racer label" in " ".join(shown.split())
    assert "adder, not certified" in lines["until then"]
    assert not any(line.startswith("{") for line in shown.splitlines())


def test_elsewhere_it_is_one_line_of_json(tmp_path: Path, pool: FakePool) -> None:
    """With the same facts, for programs that read the log."""
    config = configure(tmp_path, tmp_path / "artifact", pool.url)
    mine, its = os.pipe()
    process = served(config, its, ENVIRONMENT)
    os.close(its)
    try:
        text = read_until(mine, b'"page"')
        while not text.endswith("\n"):
            text += os.read(mine, 4096).decode()
        ended(process)
    finally:
        process.kill()
        os.close(mine)
    (line,) = [each for each in map(json.loads, text.splitlines()) if "page" in each]
    assert (line["logger"], line["level"], line["pool"]) == ("app.cli.serve", "info", list(POOL))
    assert line["admin_endpoints"] == line["url"]
    assert [each["part"] for each in line["missing"]] == ["artifact", "calibration"]
    assert "HOST:PORT" not in line["missing"][1]["next"]


@pytest.mark.parametrize("calibrated", [False, True])
def test_what_is_there_is_named(
    tmp_path: Path, artifact: Path, pool: FakePool, calibrated: bool
) -> None:
    """Artifact, and the calibration with its terms or the command that makes one; no key."""
    config = configure(tmp_path, artifact, pool.url)
    if calibrated:
        with running(config, ENVIRONMENT) as gateway:
            gateway.calibrate(60)
    lines = announced(config)
    assert lines["artifact"] == str(artifact)
    assert ("until then" in lines) is not calibrated
    if calibrated:
        assert lines["calibration"].startswith("cal-")
        assert lines["calibration"].endswith("(alpha 0.1, 45 rows)")  # the answerable ones
    else:
        assert (
            f"racer calibrate calibration.jsonl --url {lines['listens at']}"
            in (lines["calibration"])
        )
    assert ADMIN_KEY not in str(lines)


def test_a_fetched_artifact_is_named_by_its_url(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Not by its folder in the cache, and without the signature in its query."""
    digest = "0" * 64
    shutil.copytree(artifact, tmp_path / "cache" / "artifacts" / digest)
    url = "https://files.example/artifact.tar.gz"
    config = configure(tmp_path, Path("none"), pool.url)
    text = config.read_text(encoding="utf-8")
    config.write_text(
        text.replace("artifact: none", f"artifact: {url}?signature=s#sha256={digest}"),
        encoding="utf-8",
    )
    assert announced(config)["artifact"] == url


def announced(config: Path) -> dict[str, str]:
    """What a gateway says once it accepts requests; then it is stopped."""
    configured, secrets = settings.load(config, ENVIRONMENT)
    noted: dict[str, str] = {}
    with server.bind(configured) as listener:
        host, port = listener.getsockname()[:2]

        def note(services: Services) -> None:
            noted.update(announcement.lines(announcement.facts(services, host, port), services))
            gateway.stop()

        gateway = server.Server(configured, secrets, listener, announce=note)
        uvloop.run(gateway.serve())
    return noted
