"""RACER_REQUIRE turns a skipped test into a failed one, where the program it lacks is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.required import PROGRAMS, VARIABLE

from .dockerfile import ROOT

TESTS = """
import pytest

@pytest.fixture
def postgres():
    pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")

def test_of_the_database(postgres):
    pass

@pytest.mark.skip(reason="Chromium is not installed")
def test_of_the_page():
    pass

@pytest.mark.skipif(True, reason="this machine has a CUDA device")
def test_of_the_processor():
    pass

@pytest.mark.xfail(reason="PostgreSQL is slow")
def test_that_is_expected_to_fail():
    raise AssertionError
"""


@pytest.mark.parametrize(
    ("value", "code", "closing"),
    [
        ("", 0, "3 skipped, 1 xfailed"),
        ("postgresql", 1, "2 skipped, 1 xfailed, 1 error"),
        ("Chromium, postgresql", 1, "1 skipped, 1 xfailed, 2 errors"),
        ("postgres", 4, "postgres: unknown; known are chromium"),
    ],
)
def test_what_is_required_is_not_skipped(
    value: str, code: int, closing: str, tmp_path: Path
) -> None:
    """Red when a required program's test is skipped, or another program's test fails."""
    (tmp_path / "test_skips.py").write_text(TESTS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.kit.required", "-p",
         "no:cacheprovider", f"--rootdir={tmp_path}", "-c", os.devnull, tmp_path],
        cwd=ROOT, env=os.environ | {VARIABLE: value}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert closing in done.stdout + done.stderr


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
