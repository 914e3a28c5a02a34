"""The capacity model: by hand for round figures, and run on the results that are here."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BY_HAND = """
import sys
sys.path.insert(0, {folder!r})
import capacity
parts = capacity.Parts(
    gateway_per_s=100.0, encoder_per_s=10.0, gpu_per_s=1000.0, decisions_per_s=5000.0,
    bytes_a_decision=1000.0, watch_s=0.05, pulse_s=0.001,
)
import json
print(json.dumps({{
    "gateways": [parts.gateways(rate) for rate in (1, 70, 71, 700)],
    "cores": [parts.encoder_cores(rate, 0.5) for rate in (14, 15, 140)],
    "gpus": parts.gpus(7000, 0.2),
    "breaks": sorted((rate, what) for rate, what, _ in parts.breaks(0.5)),
}}))
"""


def test_the_capacity_model_by_hand() -> None:
    """At 70 % of each part; eight of 97 connections a gateway, the watch a settling each 5 s."""
    script = BY_HAND.format(folder=str(BENCHMARKS))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    result = json.loads(done.stdout)
    assert result["gateways"] == [1, 1, 2, 10]
    assert result["cores"] == [1, 2, 10]
    assert result["gpus"] == 2
    rates = [rate for rate, _ in result["breaks"]]
    by_hand = [14.0, 70.0, 70.0 * 12, 3_500.0, 70.0 * 0.7 * 5.0 / 0.05]
    assert rates == pytest.approx(sorted(by_hand))
    assert "encoder" in result["breaks"][0][1]


def test_the_model_reads_the_results(tmp_path: Path) -> None:
    """Red when a result changes its form: more of everything for more requests, and a picture."""
    for name in ("gateway", "encoder_cpu", "encoder_gpu_loads", "state"):
        shutil.copy(BENCHMARKS / "results" / f"{name}.json", tmp_path)
    subprocess.run(
        [sys.executable, BENCHMARKS / "capacity.py", "--results", tmp_path],
        capture_output=True,
        check=True,
        timeout=120,
    )
    document = json.loads((tmp_path / "capacity.json").read_text(encoding="utf-8"))
    assert all(math.isfinite(each) and each > 0 for each in document["parts"].values())
    assert "measured, an H200" in document["details"]
    assert "or GPUs" in document["markdown"]
    assert (tmp_path / "capacity.png").read_bytes().startswith(b"\x89PNG")
