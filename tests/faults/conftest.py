"""The bench, once for all tests of faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .bench import Bench, open_bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[Bench]:
    """An upstream that breaks on purpose, and gateways to put in front of it."""
    with open_bench(tmp_path_factory.mktemp("faults"), artifact) as opened:
        yield opened
