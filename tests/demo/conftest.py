"""The demo, running: real models behind a real gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from racer_core.records.reader import read_rows
from racer_core.types import LabelledRows
from tests.kit.demo import DemoAddress, folder_of_run, started_demo
from tests.kit.lazy import LazyModule

run = LazyModule("app.tools.demo.run")


@pytest.fixture(scope="session")
def running_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoAddress]:
    """Five models and a calibrated gateway, started once for all tests."""
    with started_demo(folder_of_run(tmp_path_factory)) as demo:
        yield demo.address()


@pytest.fixture(scope="session")
def test_rows() -> LabelledRows:
    """The shipped test rows."""
    return read_rows(run.FOLDER / "data" / "test.jsonl")
