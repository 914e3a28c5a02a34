"""The benchmark of drift alarms runs and reports the delays of every stream."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[2]


def recorded(folder: Path, name: str, count: int) -> None:
    """Rows in the form of the recorded benchmarks: sums and capitals."""
    rng = np.random.default_rng(0)
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as lines:
        for i in range(count):
            kinds = (f"What is {i} plus {i % 7}?", f"Name the capital of country number {i}.")
            right = [each for each in "ab" if rng.random() < 0.7]
            row = {
                "query": kinds[i % 2],
                "scores": {"a": 0.5, "b": 0.5},
                "correct": right,
                "split": "train" if i < count // 2 else "test",
            }
            lines.write(json.dumps(row) + "\n")


@pytest.mark.slow
def test_a_small_run_says_everything(tmp_path: Path) -> None:
    """Simulated and recorded changes, with alarms and deciles of every stream."""
    recorded(tmp_path, "gsm8k", 2_400)
    recorded(tmp_path, "mmlu", 3_000)
    out = tmp_path / "drift.json"
    command = [sys.executable, "benchmarks/drift.py", "--runs", "1", "--judged", "300"]
    subprocess.run(
        [*command, "--data", str(tmp_path), "--json", str(out)],
        check=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    results = json.loads(out.read_text(encoding="utf-8"))["changes"]
    assert {"simulated, moved", "simulated, tail", "simulated, none"} < set(results)
    alike = results["mmlu, drawn alike (no change)"]["streams"]
    assert {"largest_score", "mean_score", "set_size", "embedding", "critical_score", "risk"} < set(
        alike
    )
    assert all(each["runs"] == 1 for each in alike.values())
