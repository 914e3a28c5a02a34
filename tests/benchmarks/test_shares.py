"""The profile's arithmetic: own time by part, and C code counted for its callers."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which runs as a script beside its siblings."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("shares")


def test_time_without_a_file_belongs_to_its_callers(shares: Any) -> None:
    """By how much of it each caused; what belongs to no part is everything else."""
    front = ("/x/app/http/access_control.py", 1, "admit")
    http = ("/x/site-packages/aiohttp/client.py", 2, "post")
    stats: Any = SimpleNamespace(
        stats={
            front: (10, 10, 1.0, 9.0, {}),
            http: (5, 5, 2.0, 3.0, {front: (5, 5, 2.0, 3.0)}),
            ("/x/enum.py", 3, "__get__"): (4, 4, 0.5, 0.5, {}),
            ("~", 0, "<len>"): (
                30,
                30,
                3.0,
                3.0,
                {front: (20, 20, 1.0, 1.0), http: (10, 10, 2.0, 2.0)},
            ),
        }
    )
    assert shares.by_part(stats) == {
        "the server: deadlines, keys, quotas, request ids": (2.0, 30),
        "calls to candidates: aiohttp": (4.0, 15),
        shares.OTHER: (0.5, 4),
    }


def test_what_both_lengths_have_cancels_out(shares: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and stop; shares sum to one, and calls are of one request."""

    def profiled(_model: str, _size: int, requests: int) -> dict[str, tuple[float, float]]:
        return {
            "start": (5.0, 700.0),
            "a": (1.0 * requests, 3.0 * requests),
            "b": (3.0 * requests, 0.0),
        }

    monkeypatch.setattr(shares, "profiled", profiled)
    found = shares.shares("auto", 1, 300)
    assert found["a"] == {"share": pytest.approx(0.25), "calls": pytest.approx(3.0)}
    assert found["start"] == {"share": 0.0, "calls": 0.0}
    assert sum(each["share"] for each in found.values()) == pytest.approx(1.0)


def test_every_part_of_the_table_is_told(shares: Any) -> None:
    """Also one that only some ways of asking have."""
    document = {
        "manifest": {
            "command": "c", "commit": "x", "taken_at": "2026-01-01T00", "processor": "p",
            "cores": 2, "python": "3",
        },
        "parts": {
            "pinned model": {"a": {"share": 1.0, "calls": 7.0}},
            "set of one": {"a": {"share": 0.75, "calls": 7.0}, "b": {"share": 0.25, "calls": 2.0}},
        },
    }  # fmt: skip
    table = shares.markdown(document)
    assert "| a | 100% (7) | 75% (7) |" in table
    assert "| b | – | 25% (2) |" in table
    assert "| calls together | 7 | 9 |" in table
