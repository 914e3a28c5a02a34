"""Pytest plugin: which tests execute a line, how long each test takes, and a choice of tests.

``pytest -p tests.mutants.contexts --contexts=FOLDER`` measures ``app`` and ``racer_core`` with one
coverage context a test. Gateways run in threads of the test process, so the context is switched for
all threads at once; other processes are not measured. What a shared fixture executes counts for
the test that started it. Each process of the run writes a data file of its own.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[2]
MEASURED = ("app", "racer_core")
OUTCOMES = "tests.jsonl"  # in the folder of the contexts
TIMEOUT = "Timeout (>"  # in the text of a failure, by pytest-timeout


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, each of which switches a part of the plugin on."""
    parser.addoption("--contexts", metavar="FOLDER", help="measure which tests execute a line")
    parser.addoption("--outcomes", metavar="FILE", help="write a line of JSON for each test")
    parser.addoption("--only", metavar="FILE", help="run only the tests that this file names")


def pytest_configure(config: pytest.Config) -> None:
    """Measure where tests run; the controller of xdist runs none, and writes the outcomes."""
    folder, outcomes = config.getoption("--contexts"), config.getoption("--outcomes")
    is_worker = hasattr(config, "workerinput")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        outcomes = outcomes or Path(folder, OUTCOMES)
        for earlier in () if is_worker else Path(folder).glob("lines.*"):
            earlier.unlink()
        if is_worker or not config.getoption("numprocesses", None):
            config.pluginmanager.register(Contexts(Path(folder).absolute()))
    if outcomes is not None and not is_worker:
        config.pluginmanager.register(Outcomes(Path(outcomes)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all tests but the named ones."""
    if (only := config.getoption("--only")) is not None:
        names = set(Path(only).read_text(encoding="utf-8").splitlines())
        items[:] = [item for item in items if item.nodeid in names]


class Contexts:
    """Coverage of one process, with the running test as context."""

    def __init__(self, folder: Path) -> None:
        self._coverage = coverage.Coverage(
            data_file=folder / f"lines.{os.getpid()}",
            include=[f"{ROOT / name}/*" for name in MEASURED],
            config_file=False,
            messages=False,
        )
        self._coverage.set_option("run:relative_files", True)
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Count lines for this test, the start of its fixtures included."""
        self._coverage.switch_context(item.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the data file."""
        self._coverage.stop()
        self._coverage.save()


class Outcomes:
    """A line of JSON for each test: its name, outcome and seconds."""

    def __init__(self, file: Path) -> None:
        self._lines = file.open("w", encoding="utf-8")
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._written: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test. A failure is written at once: what follows it may hang."""
        test = report.nodeid
        self._seconds[test] += report.duration
        if test in self._written:
            return
        if report.failed:
            self._write(test, "timeout" if TIMEOUT in report.longreprtext else "failed")
        elif report.skipped:
            self._write(test, "skipped")
        elif report.when == "teardown":
            self._write(test, "passed")

    def _write(self, test: str, outcome: str) -> None:
        self._written.add(test)
        line = {"test": test, "outcome": outcome, "seconds": round(self._seconds[test], 3)}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
