"""The demo: its pool for long requests, and one demo for all processes of a test run.

A process of its own runs the shared demo. Every process of the run holds a shared lock while it
may use the demo; the demo stops when no process holds the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import yaml

from tests.kit.lazy import LazyModule
from tests.kit.network import free_port
from tests.kit.waiting import until

if TYPE_CHECKING:
    import pytest

run = LazyModule("app.tools.demo.run")

PARAGRAPH: Final = "The parcel left Rome on Monday and was seen in Turin on Tuesday. " * 10
LONG: Final = PARAGRAPH * 31  # more than 20,000 characters


@contextmanager
def long_pool(folder: Path) -> Generator[str]:
    """Serve copies of the demo's checkpoints, which differ in the tokenizer; yields their URL.

    The demo's models read single characters, and 20,000 tokens take 14 s a call on a CPU.
    """
    for source in (run.FOLDER / "pool").glob("*/"):
        copy = folder / "pool" / source.name
        shutil.copytree(source, copy)
        file = copy / "tokenizer.json"
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        long = {"type": "Replace", "pattern": {"String": PARAGRAPH}, "content": "."}
        file.write_text(json.dumps(tokenizer | {"normalizer": long}), encoding="utf-8")
    demo = import_module("app.tools.demo.run")
    port, log = free_port(), folder / "pool.log"
    with ExitStack() as stack:
        with mock.patch.object(demo, "FOLDER", folder):  # where the server looks for models
            process = stack.enter_context(demo.child_process(demo.pool_command(port), log))
        demo.wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"


def configure(folder: Path, server: str) -> Path:
    """The demo's configuration with this pool, a store, and a router that refuses no request.

    The router was trained on single questions, and what it refuses of other requests is chance.
    """
    for name in ("encoder", "router"):
        shutil.copytree(run.FOLDER / name, folder / name)
    manifest = folder / "router" / "manifest.json"
    trained = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(trained | {"null_threshold": 1.0}), encoding="utf-8")
    values = yaml.safe_load((run.FOLDER / "racer.yaml").read_text(encoding="utf-8"))
    for each in values["candidates"]:
        each |= {"base_url": server, "timeout_s": 120}
    values |= {
        "artifact": str(folder / "router"),
        "store": f"sqlite:///{folder / 'racer.db'}",
        "port": 0,
        "limits": {"deadline_s": 120},
    }
    path = folder / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


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
