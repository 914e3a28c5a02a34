"""The demo, running: real models behind a real gateway."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from racer_core.records.reader import read_rows
from racer_core.types import LabelledRows
from tests.support.lazy import LazyModule

if TYPE_CHECKING:
    from app.tools.demo.run import RunningDemo

run = LazyModule("app.tools.demo.run")


@pytest.fixture(scope="session")
def running_demo() -> Iterator[RunningDemo]:
    """Five models and a calibrated gateway, started once for all tests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with run.start_demo(port, Console(quiet=True)) as running:
        yield running


@pytest.fixture(scope="session")
def test_rows() -> LabelledRows:
    """The shipped test rows."""
    return read_rows(run.FOLDER / "data" / "test.jsonl")
