"""docs/security.md and docs/reliability.md: the tests that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "fewest"), [(TEXT, 50), (RELIABILITY, 20)], ids=["security", "reliability"]
)
def test_every_test_that_is_named_exists(text: str, fewest: int) -> None:
    """Red when a test is renamed or deleted and the promise stays."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = {name for source in sources for name in re.findall(r"def (test_\w+)", source)}
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > fewest
    assert named - defined == set()


def test_every_file_of_tests_that_is_named_exists() -> None:
    """Red when a file is renamed and the promise stays."""
    named = set(re.findall(r"\btests/[\w/]+\.py\b", RELIABILITY))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
