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


@pytest.mark.parametrize("step", BUILDER.all("COPY"), ids=lambda step: step.text)
def test_every_copied_file_exists_and_reaches_the_build(step):
    """Red when a source is gone, or .dockerignore keeps it out."""
    for source in step.words[:-1]:
        assert dockerfile.context_files(source), source


def test_the_image_copies_all_files_of_the_package():
    """Red when a package, or a file that its metadata names, is not copied."""
    copied = {source for step in BUILDER.all("COPY") for source in step.words[:-1]}
    assert copied == {
        "app",
        "racer_core",
        "racer_gateway.py",
        "pyproject.toml",
        "requirements.lock",
        "README.md",
        "LICENSE",
    }


@pytest.mark.parametrize(
    "path",
    [".env", "racer.db", ".git/config", "app/__pycache__/cli.pyc", ".venv/bin/racer", "x.py"],
)
def test_nothing_else_reaches_the_build(path):
    """Red when keys, stores or history could end up in an image."""
    assert path in dockerfile.Ignore.read()


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


def test_the_runtime_copies_just_the_environment():
    """Red when the build's tools or sources come along."""
    [step] = RUNTIME.all("COPY")
    assert step.words == ["--from=builder", "/opt/venv", "/opt/venv"]
    made = [each.text for each in BUILDER.all("RUN") if "-m venv" in each.text]
    assert made == ["python -m venv /opt/venv"]


def test_the_base_is_a_python_that_the_package_admits():
    """Red when the image's Python and pyproject's part ways; ours is the one of the pins."""
    assert {stage.base for stage in FILE.stages} == {"${PYTHON_IMAGE}"}
    assert FILE.arguments["PYTHON_IMAGE"].startswith("python:3.11-slim-")
    assert importlib.metadata.metadata("racer-gateway")["Requires-Python"] == ">=3.11"


def test_cpu_is_the_default_and_a_build_argument_makes_it_cuda():
    """Red when TORCH_INDEX is not what chooses torch's build, or its default is not small."""
    [argument] = BUILDER.all("ARG")
    assert argument.assignments == {"TORCH_INDEX": "https://download.pytorch.org/whl/cpu"}
    [install] = [step.text for step in BUILDER.all("RUN") if "torch==" in step.text]
    assert install.startswith('PIP_INDEX_URL="${TORCH_INDEX}" pip install ')


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


def test_downloads_go_to_the_writable_place():
    """Red when HF_HOME is no variable of the hub's library, or points where USER cannot write."""
    home = RUNTIME.one("ENV").assignments["HF_HOME"]
    program = "from huggingface_hub import constants as c; print(c.HF_HUB_CACHE)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HF_HOME": home},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{home}/hub"
    assert home.startswith(RUNTIME.one("VOLUME").text + "/")


def test_the_port_is_the_same_everywhere():
    """Red when EXPOSE, HEALTHCHECK and the settings' default differ."""
    assert RUNTIME.one("EXPOSE").text == str(PORT)
    assert f"'127.0.0.1', {PORT}," in dockerfile.health_command(RUNTIME)[1][-1]


def test_the_health_check_asks_for_a_path_that_exists():
    """Red when the route is renamed."""
    assert "/healthz" in {route.path for route in health.routes}
    assert "'GET', '/healthz'" in dockerfile.health_command(RUNTIME)[1][-1]


def test_the_health_check_gives_up_before_docker_does():
    """Red when its own timeout is not below the one that kills it."""
    options, words = dockerfile.health_command(RUNTIME)
    assert "timeout=4)" in words[-1]
    assert dockerfile.seconds(options["timeout"]) > 4
    assert dockerfile.seconds(options["start-period"]) > Limits().drain_delay_s + Limits().drain_s


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


def test_the_health_check_fails_on_a_closed_port():
    """Fails when a refused connection counts as healthy."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert ask(closed.getsockname()[1]) == 1
