"""The pages of the reference that follow from the code."""

from __future__ import annotations

import pytest

from docs.reference.generate import FOLDER, PAGES

from .blocks import ROOT


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_what_the_code_says(name: str) -> None:
    """`python docs/reference/generate.py` writes it."""
    assert FOLDER == ROOT / "docs" / "reference"
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]()
