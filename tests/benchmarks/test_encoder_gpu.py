"""The encoder's benchmark for GPUs: it runs anywhere, and its figures are computed rightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.lazy import LazyModule

encoder_gpu = LazyModule("benchmarks.encoder_gpu")


FILE = Path(__file__).parents[2] / "benchmarks/encoder_gpu.py"


@pytest.mark.slow
def test_a_rehearsal_on_the_cpu_gives_a_whole_document(tmp_path: Path) -> None:
    """Every arm and shape with its figures; what it says of itself; Markdown for the page."""
    out = tmp_path / "out.json"
    command = [sys.executable, str(FILE), "--device", "cpu", "--quick", "--json", str(out)]
    here = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(command, cwd=FILE.parents[1], env=here, capture_output=True, check=True)
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["markdown"] == done.stdout.decode().removesuffix("\n")
    arms = [encoder_gpu.EXACT, encoder_gpu.EAGER, encoder_gpu.LEAN, encoder_gpu.GRAPHS]
    assert [*document["figures"]] == [*document["agreement"]] == arms
    assert document["failed"] == {}
    for shapes in document["figures"].values():
        assert [*shapes] == [encoder_gpu.named(each) for each in encoder_gpu.QUICK.shapes]
        for of in shapes.values():
            assert 0 < of["p50_ms"] <= of["p95_ms"]
            assert of["queries_per_s"] > 0
            assert of["share_of_matrix_rate"] > 0
    assert document["agreement"][encoder_gpu.EXACT]["same_sets"] == 1.0
    assert document["agreement"][encoder_gpu.EXACT]["cosine_distance_max"] == 0.0
    for arm in (encoder_gpu.EAGER, encoder_gpu.LEAN, encoder_gpu.GRAPHS):
        assert 0 < document["agreement"][arm]["cosine_distance_mean"] < 1e-3
        assert document["agreement"][arm]["same_sets"] > 0.8
    assert [len(each["ms"]) for each in document["rounds"]] == [1, 2, 3, 4]
    assert all(each["flops_per_s"] > 0 for each in document["rounds"])
    last = document["rounds"][-1]["ms"]
    assert {len(calls) for of in last.values() for calls in of.values()} == {
        encoder_gpu.QUICK.calls
    }
    about = document["manifest"]
    assert about["rehearsal"]
    assert {*about["packages"]} == {"torch", "transformers", "numpy"}
    assert {"commit", "taken_at", "command", "device", "driver", "cuda"} <= about.keys()
    assert len(document["verdict"]) == 5
    assert "A rehearsal" in document["markdown"]
    for each in (*arms, *map(encoder_gpu.named, encoder_gpu.QUICK.shapes)):
        assert f"| {each} |" in document["markdown"]


def test_an_interrupted_run_leaves_the_figures_of_the_arms_before(
    monkeypatch: Any, tmp_path: Path
) -> None:
    """An arm that fails is named and left out; at the interruption the file is whole."""

    def opened(_embed: Any, shapes: Any, _device: str) -> Any:
        raise KeyboardInterrupt if shapes else RuntimeError("no kernel")

    out = tmp_path / "out.json"
    command = ["encoder_gpu.py", "--device", "cpu", "--quick", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr("benchmarks.encoder_gpu.recorded", opened)
    with pytest.raises(KeyboardInterrupt):
        encoder_gpu.main()
    document = json.loads(out.read_text(encoding="utf-8"))
    assert [*document["figures"]] == [encoder_gpu.EXACT, encoder_gpu.EAGER]
    assert document["failed"] == {encoder_gpu.LEAN: "RuntimeError: no kernel"}
    assert document["verdict"] == []
    assert "failed: RuntimeError: no kernel" in document["markdown"]


def a_round(rate: float, **ms: float) -> dict[str, Any]:
    """A round in which all shapes of an arm took equally long."""
    names = {
        "exact": encoder_gpu.EXACT,
        "eager": encoder_gpu.EAGER,
        "lean": encoder_gpu.LEAN,
        "graphs": encoder_gpu.GRAPHS,
    }
    took = {
        names[arm]: {encoder_gpu.named(each): [of] * 3 for each in encoder_gpu.FULL.shapes}
        for arm, of in ms.items()
    }
    return {"flops_per_s": rate, "ms": took}


def test_figures_by_hand() -> None:
    """Quantiles over all calls; a share is of the rate of its own round, and counts products."""
    million = 12 * 12 * 768**2 / 1e6  # weights of the linear layers: 84.9
    assert encoder_gpu.flops((2, 64), encoder_gpu.FULL) == pytest.approx(2 * 2 * 64 * million * 1e6)
    work = encoder_gpu.flops((256, 64), encoder_gpu.FULL)
    rounds = [a_round(work * 1e3, exact=2), a_round(work * 2e3, exact=1), a_round(work, exact=4)]
    of = encoder_gpu.figures(rounds, encoder_gpu.FULL)[encoder_gpu.EXACT]["256 x 64"]
    assert of["p50_ms"] == 2
    assert of["p95_ms"] == 4
    assert of["queries_per_s"] == pytest.approx(256 / 2e-3)
    assert of["share_of_matrix_rate"] == pytest.approx(0.5)  # of 0.5, 0.5 and 0.25


def verdicts_on(ms: Mapping[str, float], rate: float, distance: float, same: float) -> list[str]:
    """The verdict on a run of one round."""
    speed = encoder_gpu.figures([a_round(rate, **ms)], encoder_gpu.FULL)
    found = {encoder_gpu.GRAPHS: {"cosine_distance_max": distance, "same_sets": same}}
    return [each["said"] for each in encoder_gpu.verdict(speed, found, encoder_gpu.FULL)]


def test_an_aim_is_met_up_to_its_bound_and_missed_beyond() -> None:
    """Each by itself; the latency and its ratio to eager's, and the share, move with the time."""
    work = encoder_gpu.flops((256, 64), encoder_gpu.FULL)
    good = {"exact": 20.0, "eager": 10.0, "lean": 5.0, "graphs": 2.0}
    rate = work / 2e-3 / 0.35
    assert verdicts_on(good, rate * 0.999, 1e-4, 0.995) == ["met"] * 5
    assert verdicts_on(good | {"graphs": 2.1}, rate * 0.9, 1e-4, 0.995)[:3] == [
        "MISSED",
        "MISSED",
        "met",
    ]
    assert verdicts_on(good | {"eager": 9.9}, rate * 0.9, 1e-4, 0.995)[:2] == ["met", "MISSED"]
    assert verdicts_on(good, rate * 1.01, 1e-4, 0.995)[2] == "MISSED"
    assert verdicts_on(good, rate * 0.9, 1.1e-4, 0.994)[3:] == ["MISSED", "MISSED"]


def test_sets_are_the_same_where_embeddings_are_and_differ_where_they_do() -> None:
    """Of 1,000 queries: none, few and many differ, as embeddings err by nothing, little and all."""
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((2_000, 32)).astype(np.float32)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    noise = rng.standard_normal(exact.shape).astype(np.float32) / 32**0.5
    arms = {encoder_gpu.EXACT: exact, "near": exact + 1e-3 * noise, "far": noise}
    found = encoder_gpu.compared(arms, rng)
    assert found[encoder_gpu.EXACT]["same_sets"] == 1.0
    assert 0.95 < found["near"]["same_sets"] < 1.0
    assert found["far"]["same_sets"] < 0.5
    assert found["near"]["cosine_distance_mean"] == pytest.approx(5e-7, rel=0.2)
    assert 1.0 < found[encoder_gpu.EXACT]["size"] < encoder_gpu.CANDIDATES
