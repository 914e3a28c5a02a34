"""Benchmark scripts: each runs at a small size to its end, and every arm answers rightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.verdict import OURS, Arm

REPOSITORY = Path(__file__).parents[2]
# Arguments of a small run, and a key of the results.
SMALL = {
    "state.py": (["--seconds", "0.3", "--rows", "2000"], "stores"),
    "same_answer.py": (["--rows", "300", "--splits", "1"], "results"),
    "first_certificate.py": (["--samples", "2"], "results"),
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


COMPARE = Path(__file__).parents[2] / "benchmarks" / "compare.py"


@pytest.mark.slow
def test_every_arm_answers_rightly(tmp_path: Path) -> None:
    """Without LiteLLM, which the tables say; a wrong answer would be an exit code of 1."""
    command = [sys.executable, str(COMPARE), "--rounds", "1", "--seconds", "0.3", "--starts", "1"]
    ran = subprocess.run(
        [*command, "--requests", "100", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"RACER_LITELLM": "/none"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    document = json.loads((tmp_path / "gateway.json").read_text(encoding="utf-8"))
    assert document["wrong"] == {}
    assert set(document["arms"]) == set(Arm) - {Arm.LITELLM}
    for name, arm in document["arms"].items():
        (only,) = arm["rounds"]
        assert only["closed"]["rate"] > 0 < only["open"]["p50_ms"]
        streams = name not in (Arm.BARE_3, Arm.ROUTE)
        assert ("short" in only) == ("long" in only) == streams
        if streams:
            assert 0 < only["short"]["letters"] < only["long"]["letters"]
            assert only["short"]["first_p50_ms"] > 0
        assert (name == Arm.DIRECT) == ("beyond" not in arm)
    for arm in OURS:
        assert document["arms"][arm]["capacity"] > 0
    assert all(each["ready_s"] > 0 < each["rest_mib"] for each in document["starts"].values())
    assert "not measured" in document["markdown"]
    assert document["markdown"] in ran.stdout
    assert (tmp_path / "gateway.png").read_bytes().startswith(b"\x89PNG")
