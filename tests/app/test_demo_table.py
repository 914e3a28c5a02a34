"""The terminal table of `racer demo`."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from app.cli import tables


def _result() -> dict[str, Any]:
    risk = {"risk": 0.034, "expected_range": [0.004, 0.038]}
    row = {
        "alpha": 0.02,
        "answerable": risk,
        "paper": risk,
        "mean_size": 1.95,
        "fixed_order_size": 3.75,
        "calls_saved": 0.61,
        "abstain": 0.063,
        "accuracy": 0.81,
    }
    controls = {
        "best_single": {"name": "almanac", "accuracy": 0.697},
        "router_top1": 0.8,
        "full_vote": 0.807,
    }
    return {
        "queries": 300,
        "pool_size": 5,
        "n_calibration": 2_000,
        "alphas": [row],
        "controls": controls,
    }


def test_brackets_are_named_an_expected_range() -> None:
    """Both columns of risks name it, and a footnote says what it holds: brackets are no markup."""
    console = Console(width=160, record=True, file=StringIO())
    console.print(*tables.demo(_result()))
    text = console.export_text()
    assert text.count("[expected range]") == 2
    assert "0.034 [0.004, 0.038]" in text
    assert "by the exact law of the bound" in text
