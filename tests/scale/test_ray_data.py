"""Embeddings over a Ray cluster are those of this process, and are kept as they come."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import ROOT, Cluster

pytestmark = pytest.mark.scale

DEMO = ROOT / "deploy/demo"
LIMIT_S = 240.0


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`racer evaluate` on the demo's rows with its encoder, in a process of its own."""
    command = [sys.executable, "-m", "app", "evaluate", "--encoder", str(DEMO / "encoder")]
    command += ["--data", str(DEMO / "data/calibration.jsonl"), "--splits", "1", "--json"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def stored_embeddings(file: Path) -> dict[bytes, tuple[bytes, int]]:
    """Every embedding of a file."""
    with closing(sqlite3.connect(file)) as cache:
        rows = cache.execute("SELECT key, vector, truncated FROM embeddings")
        return {key: (vector, cut) for key, vector, cut in rows}


@pytest.mark.timeout(600)
def test_embeddings_over_the_cluster_are_those_of_this_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Bit for bit, and so is what is measured with them. What is kept is not asked for again."""
    here, there = tmp_path / "here.sqlite", tmp_path / "there.sqlite"
    alone = evaluate("--cache", str(here))
    assert alone.returncode == 0, alone.stderr
    spread = evaluate("--cache", str(there), "--ray", cluster.address)
    assert spread.returncode == 0, spread.stderr
    assert stored_embeddings(there) == stored_embeddings(here)
    assert json.loads(spread.stdout)["cells"] == json.loads(alone.stdout)["cells"]
    again = evaluate("--cache", str(there), "--ray", "127.0.0.1:1")  # no Ray node is there
    assert again.returncode == 0, again.stderr
