"""The pages of figures are what their results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.document import PAGES, RESULTS, filled, tables

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


def test_details_have_a_place_of_their_own(tmp_path: Path) -> None:
    """So that a long table need not stand beside the short one; other results have no place."""
    (tmp_path / "one.json").write_text('{"markdown": "short", "details": "long"}')
    (tmp_path / "two.json").write_text('{"rounds": []}')
    assert tables(tmp_path) == {"one": "short", "one.details": "long"}


def test_a_result_without_a_place_is_an_error() -> None:
    """No page would show it."""
    with pytest.raises(ValueError, match="no page has a place for three"):
        filled([EMPTY], {"one": "", "three": ""})
