"""docs/security.md and docs/reliability.md: the tests that they name exist.

What security.md calls built names a test, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.catalogue import GROUPS, PLACES
from tests.kit.hostile.server import MODES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
BUILT = TEXT.partition("## Built")[2].partition("\n## ")[0]
LINES = re.findall(r"^- .*(?:\n  .*)*", BUILT, re.MULTILINE)


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


def test_the_matrix_has_the_modes_and_variants_that_it_says() -> None:
    """Red when a fault is added and the figures above the table are not written anew."""
    found = re.search(
        r"upstream of (\d+) modes.* in (\d+) variants.*, and (\d+) places", RELIABILITY
    )
    assert found is not None
    variants = sum(len(rows) for rows in GROUPS.values())
    assert tuple(map(int, found.groups())) == (len(MODES), variants, len(PLACES))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[2:50])
def test_every_promise_names_a_test(line: str) -> None:
    """Red when something is called built that nothing would notice the loss of."""
    assert re.search(r"`test_\w+`", line)
