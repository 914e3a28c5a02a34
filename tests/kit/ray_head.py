"""``ray start`` and ``serve run`` from a shell, in a folder that has files of deploy/ray."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from tests.kit.network import free_port
from tests.kit.waiting import until

STARTED_S: Final = 90.0  # ten times what it takes here
ENVIRONMENT: Final = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "app.ray_serve.proxy:middlewares",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    # Instead of five seconds, in which a busy machine starts no proxy.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "50",
}

Serve = Callable[[str], None]


def change(file: Path, pattern: str, text: str) -> None:
    """Edit a file, in which the pattern stands."""
    edited, count = re.subn(pattern, text, file.read_text(encoding="utf-8"))
    assert count
    file.write_text(edited, encoding="utf-8")


@contextmanager
def ray_head(
    project: Path, environment: Mapping[str, str], *options: str
) -> Generator[tuple[psutil.Process, Serve]]:
    """``ray start --head`` in the folder; and ``serve run FILE`` there."""
    programs = Path(sys.executable).parent
    port = free_port()
    given = {**environment, **ENVIRONMENT, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = [programs / "ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=6"]
    ray += [f"--ray-client-server-port={free_port()}", "--include-dashboard=false"]
    serve = [programs / "serve", "run", "--non-blocking", f"--address=127.0.0.1:{port}"]

    def run(file: str) -> None:
        done = subprocess.run(
            [*serve, file], cwd=project, env=given, capture_output=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()[-4000:]

    folder = Path(tempfile.mkdtemp(prefix="racer-ray-"))  # short: sockets are below it
    with (folder / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*ray, f"--temp-dir={folder}", "--object-store-memory=100000000", *options],
            cwd=project, env=given, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        node = psutil.Process(process.pid)
        try:
            text = (folder / "log").read_text
            assert until(lambda: "Ray runtime started" in text(encoding="utf-8"), STARTED_S)
            yield node, run
        finally:
            ended = [*node.children(recursive=True), node]
            for each in ended:
                with suppress(psutil.NoSuchProcess):  # it went with its parent
                    each.kill()
            psutil.wait_procs(ended[:-1], timeout=10)
            process.wait(10)
            shutil.rmtree(folder, ignore_errors=True)
