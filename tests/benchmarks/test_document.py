"""The pages of figures are what their results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.document import PAGES, RESULTS, filled, tables

DOCS = Path(__file__).parents[2] / "docs"
EMPTY = (
    "before\n<!-- results: one -->\n<!-- end -->\nbetween\n"
    "<!-- results: two -->\nold\n<!-- end -->\n"
)


def test_the_pages_are_made_from_the_results_that_are_here() -> None:
    """After a change of a result or a page, run `python benchmarks/document.py`."""
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert pages == filled(pages, tables(RESULTS))


def test_tables_stand_in_their_places_and_nothing_else_changes() -> None:
    """Backslashes too; a place whose result is not there says so."""
    (page,) = filled([EMPTY], {"one": "| a \\1 |"})
    assert page == (
        "before\n<!-- results: one -->\n\n| a \\1 |\n\n<!-- end -->\nbetween\n"
        "<!-- results: two -->\n\nNot measured yet.\n\n<!-- end -->\n"
    )
    assert filled([page], {"one": "| a \\1 |"}) == [page]


def test_a_result_without_a_place_is_an_error() -> None:
    """No page would show it."""
    with pytest.raises(ValueError, match="no page has a place for three"):
        filled([EMPTY], {"one": "", "three": ""})


def test_the_comparison_has_the_figures_of_the_measurement() -> None:
    """Row by row. Red when it was made again, and docs/comparison.md was not."""
    page, measured = (
        (DOCS / name).read_text("utf-8") for name in ("comparison.md", "performance.md")
    )
    plain = measured.partition("| plain answers |")[2]
    speed = page.partition("\n## Speed\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", speed, re.MULTILINE)[1:]
    assert len(rows) > 3
    for arm, throughput, added in rows:
        row = re.search(rf"^\| {re.escape(arm)} \| (.+) \|$", plain, re.MULTILINE)
        assert row is not None, arm
        cells = row[1].split(" | ")
        assert (throughput, added) == (cells[0], cells[-1]), arm
    version = re.search(r"LiteLLM (\d+\.\d+\.\d+)", page)
    assert version is not None
    assert version[0] in measured
