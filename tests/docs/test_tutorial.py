"""docs/tutorial.md runs from top to bottom and prints what it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.docs.tutorial import PAGE, PICTURE, ROOT, blocks, outputs, written


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


def test_from_a_csv_to_a_plot_takes_ten_lines() -> None:
    """The first block, without its blank line."""
    lines = [line for line in blocks(PAGE.read_text(encoding="utf-8"))[0][0].splitlines() if line]
    assert "read_rows" in lines[1]
    assert "savefig" in lines[-1]
    assert len(lines) <= 10


def test_outputs_are_written_where_the_page_shows_them() -> None:
    """A block that prints gets an output, a silent one loses its own."""
    text = "a\n```python\nprint(1)\n```\nb\n```python\nx = 2\n```\n\n```text\nold\n```\nc\n"
    assert blocks(text) == [("print(1)\n", ""), ("x = 2\n", "old\n")]
    assert written(text, ["1\n", ""]) == (
        "a\n```python\nprint(1)\n```\n\n```text\n1\n```\nb\n```python\nx = 2\n```\nc\n"
    )
