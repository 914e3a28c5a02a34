"""Benchmark scripts cited by documents: each runs at a small size to the end of its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# Arguments of a small run, and a key of the results; FOLDER is a folder of the run.
SMALL = {
    "state.py": (["--seconds", "0.3", "--rows", "2000"], "stores"),
    "calibration_speed.py": (["--rows", "20000"], "manifest"),
    "answer_limits.py": (["--rows", "300", "--draws", "2"], "results"),
    "judge_correction.py": (["--rows", "400", "--people", "60", "--draws", "2"], "results"),
    "label_stopping.py": (["--draws", "1"], "results"),
    "same_answer.py": (["--rows", "300", "--splits", "1"], "results"),
    "firstpass.py": (["--splits", "1"], "results"),
    "checked_calls.py": (["--rows", "300", "--splits", "1"], "results"),
    "conversations.py": (
        ["--rows", "30", "--conversations", "6", "--evaluated", "60", "--splits", "2"],
        "offline",
    ),
    "policy_cpu.py": (["--requests", "20"], "microseconds_a_call"),
    "whole_requests.py": (["--rows", "8", "--requests", "1", "--alpha", "0.5"], "kinds"),
    "oracles.py": (["--largest", "12", "--rows", "100"], "compared"),
    "uncached.py": (["--tiny", "--rounds", "1", "--queries", "3"], "manifest"),
    "batching.py": (["--tiny", "--rounds", "1", "--seconds", "1"], "manifest"),
    "overload.py": (["--seconds", "12"], "kinds"),
    "slow_streams.py": (["--streams", "20", "--gap-ms", "10"], "passed"),
    "soak.py": (["--minutes", "0.1"], "samples"),
    "score_choice.py": (["--divisions", "1"], "power"),
    "router_dc_deviations.py": (["--steps", "2", "--seeds", "1"], "results"),
    "encoder_formats.py": (["--splits", "1"], "results"),
    "encoders.py": (["--divisions", "1"], "results"),
    "evaluator_votes.py": (["FOLDER"], "questions"),
    "encoder_gpu_loads.py": (
        ["--device", "cpu", "--quick", "--rounds", "1", "--queries", "40"],
        "fits",
    ),
    "encoder.py": (["--threads", "1", "--tokens", "16", "--seconds", "5"], "runs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SMALL)
def test_a_small_run_writes_its_results(script: str, tmp_path: Path) -> None:
    """The exit status is 0, or 1 where a goal was missed: so small a run decides no goal."""
    given, key = SMALL[script]
    arguments = [each.replace("FOLDER", str(tmp_path / "made")) for each in given]
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
