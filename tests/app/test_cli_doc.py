"""The commands of the command reference run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.upstream import FakePool

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_its_commands_run(tmp_path: Path) -> None:
    """Word for word, but for addresses. Red when one fails or leaves something else behind."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(tmp_path), "PATH": path}

    def run(block: str) -> str:
        command = ["bash", "-euc", block]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)

    *completions, doctor, first = re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)
    with FakePool(models=["qwen"]) as one, FakePool(models=["llama"]) as two:
        for place, server in enumerate((one, two), 1):
            assert f"http://10.0.0.{place}:8000" in first
            first = first.replace(f"http://10.0.0.{place}:8000", server.url)
        run(first)
        config = tmp_path / "racer.yaml"
        text = config.read_text()
        config.write_text(text.replace("port: 8080", "port: 0"))  # 8080 may be in use
        assert json.loads(run(doctor))["healthy"] is True
    (modeline,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert text.startswith(modeline)
    assert len(completions) == 3
    for block in completions:
        run(block)
        written = tmp_path / block.partition("> ~/")[2].split()[0]
        assert "_RACER_COMPLETE" in written.read_text()
