"""`racer serve` in a child process, as an operator runs it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT
from tests.kit.waiting import wait_while_running

PROGRAM = (sys.executable, "-m", "app")


@contextlib.contextmanager
def serving(
    config: Path, program: Sequence[str] = PROGRAM, **options: Any
) -> Iterator[tuple[httpx2.Client, subprocess.Popen[bytes]]]:
    """A client with the admin key, and the process once it answers; it is killed in the end.

    ``options`` are those of `Popen`; the port is the configuration's.
    """
    port = yaml.safe_load(config.read_bytes())["port"]
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    command = [*program, "serve", "--config", str(config)]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONFAULTHANDLER": "1"}
    options = {"stderr": subprocess.PIPE, **options}
    url = f"http://127.0.0.1:{port}"
    with (
        subprocess.Popen(command, env=environment, **options) as running,
        httpx2.Client(
            base_url=url, headers=headers, timeout=30, verify=False, trust_env=False
        ) as client,
    ):

        def answers() -> bool:
            with contextlib.suppress(httpx2.TransportError):
                return client.get("/healthz").status_code == 200
            return False

        try:
            wait_while_running(answers, running, within_s=60)
            yield client, running
        finally:
            running.kill()
            running.communicate()
