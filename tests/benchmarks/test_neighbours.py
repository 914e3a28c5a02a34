"""The benchmark of neighbours: its samples, counts and output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

NEIGHBOURS = Path(__file__).parents[2] / "benchmarks" / "neighbours.py"


@pytest.mark.slow
def test_a_small_run_says_everything(tmp_path: Path) -> None:
    """Both of our searches on two thousand rows. Red when comparing with all is not exact."""
    out = tmp_path / "neighbours.json"
    sizes = {"rows": 2_000, "queries": 30, "centres": 40, "width": 16}
    options = [f"--{name}={value}" for name, value in sizes.items()]
    subprocess.run([sys.executable, str(NEIGHBOURS), *options, "--json", str(out)], check=True)
    document = json.loads(out.read_text(encoding="utf-8"))
    exact, lists = document["arms"]["all rows"], document["arms"]["inverted file"]
    assert exact["recall_40"] == exact["recall_200"] == 1.0
    assert 0.9 < lists["recall_200"] <= 1.0
    assert 1 <= lists["probes"] <= lists["lists"]
    assert len(lists["knn_s"]) == len(lists["cover_s"]) == 30
    assert all(np.array(lists["knn_s"] + lists["cover_s"]) > 0)
    assert document["encoder_s"] > 0
    for cell in ("| inverted file, p50 |", "| all rows |", "| inverted file |", "2,000 rows of 16"):
        assert cell in document["markdown"]
