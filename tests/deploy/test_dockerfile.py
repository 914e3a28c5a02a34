"""What the Dockerfile names exists in the code. `test_replay.py` carries its steps out."""

import http.server
import importlib.metadata
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import racer_gateway
from app.api import health
from app.settings import Limits, Settings
from tests.kit.commands import parsed

from . import dockerfile
from .dockerfile import ROOT

FILE = dockerfile.read()
BUILDER, RUNTIME = FILE["builder"], FILE["runtime"]
PORT = Settings.model_fields["port"].default


def serve_arguments():
    """CMD as click reads it; ENTRYPOINT must be the console script in front of it."""
    assert RUNTIME.one("ENTRYPOINT").words == ["racer"]
    name, *words = RUNTIME.one("CMD").words
    return parsed(name, words)


def test_hadolint_has_no_complaint():
    """The linter, without an ignored rule. Red on any finding, and when the linter is missing."""
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [str(linter), "--no-color", "--failure-threshold=style", "--disable-ignore-pragma",
         "Dockerfile"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_every_package_is_installed_by_its_hash():
    """Red when pip may take a file that the lock does not know; what is in it: test_lock.py."""
    installs = [step.text for step in BUILDER.all("RUN") if "pip install" in step.text]
    torch, locked, own = installs
    assert torch.endswith("pip install torch==2.13.0")
    assert locked.split() == [
        "pip", "install", "--no-deps", "--require-hashes", "--requirement", "requirements.lock",
    ]  # fmt: skip
    assert own.startswith("pip install --no-deps --no-build-isolation . ")
    assert "pip check" in own


def test_the_command_is_one_that_the_code_has():
    """Red when the console script, the subcommand or an option of CMD does not exist."""
    scripts = importlib.metadata.entry_points(group="console_scripts", name="racer")
    assert {script.load() for script in scripts} == {racer_gateway.main}
    given = serve_arguments()
    assert (given["host"], given["port"]) == ("0.0.0.0", PORT)
    assert given["config"] == Path("/etc/racer/racer.yaml")


def test_the_user_is_not_root_and_owns_the_one_writable_place():
    """Red when USER is root, has no fixed number, or cannot write where the store goes."""
    user = RUNTIME.one("USER").text
    number, _, group = user.partition(":")
    assert int(number) >= 10_000
    [setup] = [step.text for step in RUNTIME.all("RUN")]
    [volume] = RUNTIME.one("VOLUME").words
    assert f"groupadd --gid {group} " in setup
    assert f"useradd --uid {number} --gid {group} --home-dir {volume} " in setup
    assert f"chown {user} {volume}" in setup
    assert RUNTIME.one("WORKDIR").text == volume
    order = [step.keyword for step in RUNTIME.steps]
    assert order.index("USER") > order.index("RUN")


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server on a free port that answers /healthz with one status, and all else with 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/healthz" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(port: int) -> int:
    """The HEALTHCHECK command's exit status; it must ignore the proxy variables."""
    _, [python, *words] = dockerfile.health_command(RUNTIME)
    assert python == "python"
    return subprocess.run(
        [sys.executable, *(word.replace(str(PORT), str(port)) for word in words)],
        env={"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"},
        stderr=subprocess.DEVNULL,
        timeout=30,
        check=False,
    ).returncode


@pytest.mark.parametrize(("status", "code"), [(200, 0), (404, 1), (500, 1), (503, 1)])
def test_the_health_check_fails_for_an_unhealthy_gateway(status, code):
    """Docker knows 0 and 1 only. Red when another status than 200 passes."""
    with answering(status) as port:
        assert ask(port) == code


def test_a_closed_port_is_unhealthy():
    """Fails when a refused connection counts as healthy."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert ask(closed.getsockname()[1]) == 1


def test_the_health_check_asks_the_port_and_gives_up_before_docker_does():
    """Red when a port, the route or a patience is changed in one place alone."""
    options, words = dockerfile.health_command(RUNTIME)
    assert RUNTIME.one("EXPOSE").text == str(PORT)
    assert "/healthz" in {route.path for route in health.routes}
    assert f"'127.0.0.1', {PORT}, timeout=4)" in words[-1]
    assert "'GET', '/healthz'" in words[-1]
    assert dockerfile.seconds(options["timeout"]) > 4
    assert dockerfile.seconds(options["start-period"]) > Limits().drain_delay_s + Limits().drain_s


def test_the_package_reaches_the_build_and_its_environment_the_image():
    """Red when a source is not copied or is ignored, or keys, stores or tools come along."""
    copied = {source for step in BUILDER.all("COPY") for source in step.words[:-1]}
    assert copied == {
        "app", "racer_core", "racer_gateway.py", "pyproject.toml", "requirements.lock",
        "README.md", "LICENSE",
    }  # fmt: skip
    assert all(dockerfile.context_files(source) for source in copied)
    ignored = (".env", "racer.db", ".git/config", "app/__pycache__/cli.pyc", ".venv/bin/racer")
    assert all(path in dockerfile.Ignore.read() for path in (*ignored, "x.py"))
    assert RUNTIME.one("COPY").words == ["--from=builder", "/opt/venv", "/opt/venv"]
    made = [each.text for each in BUILDER.all("RUN") if "-m venv" in each.text]
    assert made == ["python -m venv /opt/venv"]
    assert {stage.base for stage in FILE.stages} == {"${PYTHON_IMAGE}"}
    assert FILE.arguments["PYTHON_IMAGE"].startswith("python:3.11-slim-")
    index = {"TORCH_INDEX": "https://download.pytorch.org/whl/cpu"}
    assert BUILDER.one("ARG").assignments == index
    [install] = [step.text for step in BUILDER.all("RUN") if "torch==" in step.text]
    assert install.startswith('PIP_INDEX_URL="${TORCH_INDEX}" pip install ')
