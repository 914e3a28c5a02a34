"""Benchmark scripts cited by documents: each runs at a small size to the end of its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# Arguments of a small run, and a key of the results.
SMALL = {
    "state.py": (["--seconds", "0.3", "--rows", "2000"], "stores"),
    "same_answer.py": (["--rows", "300", "--splits", "1"], "results"),
    "upstream_call.py": (["--calls", "32", "--rounds", "1"], "rounds"),
    "overload.py": (["--seconds", "12"], "kinds"),
    "slow_streams.py": (["--streams", "20", "--gap-ms", "10"], "passed"),
    "uncached.py": (["--tiny", "--rounds", "2", "--queries", "5"], "rounds"),
    "soak.py": (["--minutes", "0.1"], "samples"),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SMALL)
def test_a_small_run_writes_its_results(script: str, tmp_path: Path) -> None:
    """The exit status is 0, or 1 where a goal was missed: so small a run decides no goal."""
    arguments, key = SMALL[script]
    out = tmp_path / "results.json"
    command = [sys.executable, f"benchmarks/{script}", *arguments, "--json", str(out)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert key in json.loads(out.read_text(encoding="utf-8"))
