"""RACER_REQUIRE turns a skipped test into a failed one, where the program it lacks is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.required import PROGRAMS

from .dockerfile import ROOT


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_reason_for_skipping_names_the_program(program: str) -> None:
    """Red when a reason is written otherwise, and its tests are skipped for ever."""
    texts = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    reason = re.compile(
        rf'(?:skip\(f?|reason=|WHY_NOT: Final = |NO_POOLER: Final = )"[^"]*{program}', re.IGNORECASE
    )
    own = Path(__file__).read_text("utf-8")
    assert any(reason.search(text) for text in texts if text != own)


def test_ci_requires_what_it_installed() -> None:
    """Red when the script names a program that the tests do not know."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    named = re.findall(r"^require ([\w-]+) ", script, re.MULTILINE)
    assert {"docker-compose", "postgresql", "pgbouncer", "promtool", "chromium"} <= set(named)
    assert set(named) <= PROGRAMS
