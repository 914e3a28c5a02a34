"""Progress bars of `racer label`, recorded instead of shown."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from app.tools.gateway_client import Progress


def recorded_bars(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What the bars will show: stage, done, total."""
    shown: list[tuple[str, int, int]] = []

    @contextmanager
    def record(_silent: bool) -> Generator[Progress]:
        yield lambda stage, done, total: shown.append((stage, done, total))

    monkeypatch.setattr("app.cli.label.progress_bars", record)
    return shown
