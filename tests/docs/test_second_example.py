"""README's second example, word for word in an empty folder: it starts, and says what it costs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.kit.network import free_port
from tests.kit.waiting import until

from .blocks import DOCUMENTS, blocks


@pytest.mark.slow
def test_nothing_but_candidates_serves(tmp_path: Path) -> None:
    """The port and the folder of `racer` are this test's own."""
    configuration, command = [
        each.text
        for each in blocks(DOCUMENTS[:1])
        if each.run_by == "tests/docs/test_second_example.py"
    ]
    assert yaml.safe_load(configuration).keys() == {"schema_version", "candidates"}
    (tmp_path / "racer.yaml").write_text(configuration, encoding="utf-8")
    port = free_port()
    words = shlex.split(command.replace(".venv/bin/racer", f"{Path(sys.executable).parent}/racer"))
    environment = {name: value for name, value in os.environ.items() if "RACER" not in name}
    process = subprocess.Popen(
        [*words, "--port", str(port)], cwd=tmp_path, env=environment,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/healthz"

    def is_up() -> bool:
        with suppress(httpx2.TransportError):
            return httpx2.get(url, timeout=5, verify=False, trust_env=False).status_code == 200
        return False

    try:
        is_healthy = until(is_up, 60)
    finally:
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=30)
    assert is_healthy, log
    assert "all 3 candidates answer a share of 0.05 of the requests" in log
    assert "adds at most 5,000 calls a day" in log
    assert "from 119 sampled requests or more" in log
