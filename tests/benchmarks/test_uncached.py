"""The benchmark of uncached decisions, end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "uncached.py"


@pytest.mark.slow
def test_decisions_that_were_not_made_before(tmp_path: Path) -> None:
    """At a small shape: both are measured, in every round. Which is faster is for no test."""
    out = tmp_path / "out.json"
    arguments = ["--tiny", "--rounds", "2", "--queries", "5", "--json", str(out)]
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text(encoding="utf-8"))
    assert len(document["rounds"]) == 2
    for measured in document["rounds"]:
        assert len(measured) == 2
        for took in measured.values():
            assert 0 < took["p50_ms"] <= took["p95_ms"]
