"""The script that compares embedding here and over a cluster, with few rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.scale, pytest.mark.timeout(400)]


def test_both_ways_embed_the_same(tmp_path: Path) -> None:
    """More pieces than processes; a difference is exit code 1. No time is asserted."""
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/ray_embedding.py", "--rows", "700", "--json", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["equal"] is True
    assert document["rows"] == 700
    assert all(seconds > 0 for seconds in document["seconds"].values())
    assert document["manifest"]["settings"] == {"rows": 700, "nodes": 2}
    assert "bit for bit the same" in document["markdown"]
    assert document["markdown"] in done.stdout
