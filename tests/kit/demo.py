"""One demo for all processes of a test run.

A process of its own runs the shared demo. Every process of the run holds a shared lock while it
may use the demo; the demo stops when no process holds the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

from tests.kit.lazy import LazyModule
from tests.kit.network import free_port
from tests.kit.waiting import until

if TYPE_CHECKING:
    import pytest

run = LazyModule("app.tools.demo.run")

ROOT: Final = Path(__file__).parents[2]
START_LIMIT_S: Final = 500.0  # the machine may be busy


@dataclass(frozen=True, kw_only=True)
class DemoAddress:
    """Where the demo runs.

    Attributes:
        url: The gateway.
        pool_url: The server of its models.
        admin_key: The gateway's admin key; it needs no other.
    """

    url: str
    pool_url: str
    admin_key: str


class SharedDemo:
    """The demo of a test run.

    Args:
        folder: Of the run: all of its processes name the same one.
    """

    def __init__(self, folder: Path) -> None:
        self._state = folder / "address.json"
        self._log = folder / "demo.log"

    def address(self) -> DemoAddress:
        """The demo's address, as soon as it runs."""
        assert until(self._state.is_file, START_LIMIT_S, every_s=0.1), self._ended()
        found = json.loads(self._state.read_text(encoding="utf-8"))
        assert found, self._ended()
        return DemoAddress(**found)

    def _ended(self) -> str:
        return f"the demo did not start: {self._log.read_text(encoding='utf-8')[-2000:]}"


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of this test run name."""
    folder = factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "demo"


@contextmanager
def started_demo(folder: Path) -> Generator[SharedDemo]:
    """Start the demo, if no other process has, without waiting for it."""
    folder.mkdir(exist_ok=True)
    with (folder / "users").open("a") as users:
        with (folder / "starting").open("a") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # waits for a demo that is stopping
            if not (folder / "demo.log").exists():
                with (folder / "demo.log").open("w") as log:
                    command = [sys.executable, "-m", "tests.kit.demo", str(folder)]
                    subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=True)
        yield SharedDemo(folder)


def _run(folder: Path) -> None:
    """Run the demo until no process uses it."""
    from rich.console import Console

    from app.tools.demo import run

    found: dict[str, str] = {}
    try:
        with (
            mock.patch.object(run, "START_LIMIT_S", START_LIMIT_S),
            run.start_demo(free_port(), Console(quiet=True)) as demo,
        ):
            address = DemoAddress(url=demo.url, pool_url=demo.pool_url, admin_key=demo.admin_key)
            found = asdict(address)
            _write(folder, found)
            with (folder / "users").open("a") as users:
                fcntl.flock(users, fcntl.LOCK_EX)
                (folder / "address.json").unlink()
                (folder / "demo.log").unlink()
    finally:
        if not found:
            _write(folder, found)


def _write(folder: Path, found: dict[str, str]) -> None:
    """Tell who waits, all at once."""
    written = folder / "address.part"
    written.write_text(json.dumps(found), encoding="utf-8")
    written.rename(folder / "address.json")


if __name__ == "__main__" and os.fork() == 0:  # its caller does not wait
    os.setsid()
    _run(Path(sys.argv[1]))
