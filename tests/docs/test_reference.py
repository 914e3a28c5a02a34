"""The pages of the reference that follow from the code."""

from __future__ import annotations

import pytest

from app.settings.reloading import all_settings
from docs.reference.generate import FOLDER, PAGES

from .blocks import ROOT


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_what_the_code_says(name: str) -> None:
    """`python -m docs.reference.generate` writes it."""
    assert FOLDER == ROOT / "docs" / "reference"
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_setting_has_a_description() -> None:
    """Red when a field has no docstring, so that the reference and editors say nothing of it."""
    found = {each.name: each.field for each in all_settings()}
    assert "candidates[].capabilities.tools" in found, "the walk finds nested fields"
    assert [name for name, field in found.items() if not field.description] == []
