"""docs/tutorial.md runs from top to bottom and prints what it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.docs.tutorial import PAGE, PICTURE, ROOT, blocks, outputs


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    """Red when a name, a default or a figure changes: `python -m tests.docs.tutorial` rewrites."""
    (tmp_path / PICTURE).parent.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "tutorial.csv", tmp_path / "docs")
    text = PAGE.read_text(encoding="utf-8")
    printed = outputs(text, tmp_path)
    assert printed == [shown for _, shown in blocks(text)]
    drawn, stored = (tmp_path / PICTURE).stat().st_size, (ROOT / PICTURE).stat().st_size
    assert 0.5 < drawn / stored < 2.0
    assert stored < 40_000
