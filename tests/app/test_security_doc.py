"""docs/security.md: what it calls built names tests, and tests and settings that it names exist."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
BUILT = TEXT.partition("## Built")[2].partition("\n## ")[0]
LINES = re.findall(r"^- .*(?:\n  .*)*", BUILT, re.MULTILINE)


def test_every_test_that_is_named_exists() -> None:
    """Red when a test is renamed or deleted and the promise stays."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = {name for text in sources for name in re.findall(r"def (test_\w+)", text)}
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 50
    assert named - defined == set()


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[2:50])
def test_every_promise_names_a_test(line: str) -> None:
    """Red when something is called built that nothing would notice the loss of."""
    assert re.search(r"`test_\w+`", line)


def test_every_limit_that_is_named_is_a_setting() -> None:
    """Red when a setting is renamed and the table is not."""
    named = set(re.findall(r"`((?:limits|access)\.[a-z_.]+)`", TEXT))
    assert len(named) > 10
    for name in named:
        reduce(_field, name.split("."), Settings)


def _field(model: Any, name: str) -> Any:
    """What a section holds under this name: another section, or a type."""
    return model.model_fields[name].annotation
