"""Bars of the command line: none claims what was not done."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from app.cli import console


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal shows of the error stream."""
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(console, "err", terminal)
    return stream


def test_work_of_unknown_length_is_counted_and_has_no_end(shown: io.StringIO) -> None:
    """Red when the count is its own total: that bar was full from the first row on."""
    with console.counter("rows", silent=False) as show:
        show(300)
    assert "rows" in shown.getvalue()
    assert "300" in shown.getvalue()
    assert "300/300" not in shown.getvalue()


def test_a_bar_stays_where_the_work_stopped(shown: io.StringIO) -> None:
    """Also when an error ends it; what is behind the comma of a stage changes no bar."""

    def stopped() -> None:
        with console.progress_bars(silent=False) as show:
            show("labelling", 1, 6)
            show("labelling, 2 failed", 1, 6)
            raise RuntimeError("it broke")

    with pytest.raises(RuntimeError, match="it broke"):
        stopped()
    assert "labelling, 2 failed" in shown.getvalue()
    assert "1/6" in shown.getvalue()
    assert "6/6" not in shown.getvalue()
