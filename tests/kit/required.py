"""Programs that must be here: tests that are skipped for want of one fail instead.

``RACER_REQUIRE`` names them, such as ``postgresql,docker-compose``. Unset, what is not here is
skipped. A reason for skipping names its program, which is all that a test has to do.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Final

import pytest

VARIABLE: Final = "RACER_REQUIRE"
PROGRAMS: Final = frozenset(
    {
        "chromium", "docker-compose", "envoy", "kubectl", "litellm", "pgbouncer", "postgresql",
        "promtool", "vllm",
    }
)  # fmt: skip


def required() -> frozenset[str]:
    """The programs that must be here.

    Raises:
        pytest.UsageError: The variable names another one.
    """
    words = (word.strip().lower() for word in os.environ.get(VARIABLE, "").split(","))
    names = frozenset(filter(None, words))
    if unknown := names - PROGRAMS:
        raise pytest.UsageError(
            f"{VARIABLE}: {', '.join(sorted(unknown))}: unknown; known are "
            f"{', '.join(sorted(PROGRAMS))}"
        )
    return names


def pytest_configure() -> None:
    """Refuse a misspelt name before any test runs."""
    required()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that is skipped for want of a required program."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason: Any = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if missing := [name for name in required() if name in reason.lower()]:
            report.outcome = "failed"
            report.longrepr = f"{reason}; {VARIABLE} has {', '.join(missing)}"
    return report
