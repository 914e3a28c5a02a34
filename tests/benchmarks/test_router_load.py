"""The router under load: what the windows' figures come to, and both benchmarks end to end."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MANIFEST = {
    "command": "python benchmarks/router_load.py",
    "commit": "abc",
    "taken_at": "2026-02-01T00:00:00Z",
    "processor": "a processor",
    "cores": 2,
    "load_average": [0.1, 0.1, 0.1],
    "settings": {"rows": 10_000, "rounds": 3, "rate": 20.0, "window": 20.0},
}


@pytest.fixture
def router_load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which runs as a script beside its siblings."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("router_load")


def a_window(milliseconds: float) -> dict[str, float]:
    """Live queries that take so long."""
    times = {f"p{percent}_ms": percent / 50 * milliseconds for percent in (50, 95, 99)}
    return {"sent": 100, "failed": 0, "late_p99_ms": 0.1, **times}


def a_document(router_load: Any, *times: float, changed: int = 0) -> dict[str, Any]:
    """Rounds on a machine that is slower each time; ``times`` slower beside a calibration."""
    rounds = [
        {
            router_load.WITHOUT: a_window(2.0 + number),
            router_load.WITH: a_window(each * (2.0 + number)),
        }
        for number, each in enumerate(times)
    ]
    whole = a_window(2.0) | {"calibration_s": 30.0}
    return {
        "manifest": MANIFEST,
        "rounds": rounds,
        "whole": whole,
        "queries": 300,
        "changed": changed,
    }


def test_ratios_are_taken_within_a_round(router_load: Any) -> None:
    """The median of 1.1, 1.2 and 9 is met; the machine's own slowness is in none of them."""
    text = router_load.markdown(a_document(router_load, 1.1, 9.0, 1.2))
    assert "| live p50, beside a calibration / alone | 1.20 x | ≤ 1.2 x | met |" in text
    assert "| live p99, beside a calibration / alone | 1.20 x | ≤ 1.5 x | met |" in text
    assert "A calibration of 10,000 rows beside live traffic took 30 s" in text


def test_a_missed_target_is_reported(router_load: Any) -> None:
    """Each aim by its own figure."""
    text = router_load.markdown(a_document(router_load, 1.3, 1.3, 1.3))
    assert [line.count("MISSED") for line in text.splitlines() if "≤" in line] == [1, 0, 0]
    text = router_load.markdown(a_document(router_load, 1.6, 1.6, 1.6, changed=1))
    assert [line.count("MISSED") for line in text.splitlines() if "≤" in line] == [1, 1, 1]


def test_a_set_that_changes_is_seen(router_load: Any) -> None:
    """A query that had two sets counts; a decision that failed is no set."""
    sets = router_load.Sets()
    answers = [(200, b"adder"), (200, b"adder"), (200, b"speller"), (503, b"")]
    body = json.dumps({"error": {"code": "overloaded"}}).encode()
    for query, (status, selected) in zip(("one", "two", "one", "two"), answers, strict=True):
        headers = {b"x-racer-selected": selected, b"retry-after": b"1"}
        kind, _ = sets(
            router_load.Ask(query), router_load.Answer(status=status, headers=headers, body=body)
        )
        assert kind is (router_load.Kind.RIGHT if status == 200 else router_load.Kind.REFUSED)
    assert dict(sets.seen) == {"one": {"adder", "speller"}, "two": {"adder"}}


def ran(folder: Path, script: str, *arguments: str) -> dict[str, Any]:
    """What a benchmark wrote."""
    out = folder / "out.json"
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_live_queries_beside_a_calibration(tmp_path: Path) -> None:
    """Every query is answered, in both kinds of window, and has the set that it has alone."""
    document = ran(tmp_path, "router_load.py", "--rows", "400", "--rounds", "1", "--window", "0.5")
    (only,) = document["rounds"]
    for window in ("alone", "beside a calibration"):
        assert only[window]["sent"] > 0 == only[window]["failed"]
    assert document["changed"] == document["whole"]["failed"] == 0


@pytest.mark.slow
def test_queries_that_are_scored_together(tmp_path: Path) -> None:
    """At a small shape: every arm scores, and batching changes no set."""
    document = ran(tmp_path, "batching.py", "--tiny", "--rounds", "1", "--seconds", "0.001")
    (only,) = document["rounds"]
    assert all(rate > 0 for load in only.values() for rate in load.values())
    assert document["same"]["embedding"] <= 1e-5
    assert document["same"]["sets"] == 1.0


@pytest.mark.slow
def test_decisions_that_were_not_made_before(tmp_path: Path) -> None:
    """At a small shape: both are measured, in every round. Which is faster is for no test."""
    document = ran(tmp_path, "uncached.py", "--tiny", "--rounds", "2", "--queries", "5")
    assert len(document["rounds"]) == 2
    for measured in document["rounds"]:
        assert len(measured) == 2
        for took in measured.values():
            assert 0 < took["p50_ms"] <= took["p95_ms"]
