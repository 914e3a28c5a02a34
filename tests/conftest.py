"""Settings common to all tests: no network, no deadline, reproducible examples."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
import uvloop
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.kit.required", "tests.kit.fixtures"]
pytest.register_assert_rewrite("tests.kit")

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
# Threads of numpy and torch would compete with the other workers; before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No deadline: machines are shared. Derandomised: a failure repeats on every machine;
# `pytest --hypothesis-profile=search` looks for new examples.
settings.register_profile(
    "racer", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile("racer")

# What few tests need and every worker would import: one to six seconds of CPU time each.
HEAVY = {"matplotlib", "pandas", "scipy", "sympy", "torch", "transformers"}
COLLECTED = pytest.StashKey[set[str]]()  # those of them that the collection imported

# Files that need torch or transformers run in one worker: importing them takes 6 s of CPU time.
TORCH = (
    "app/test_cli.py",
    "app/test_doctor.py",
    "app/test_train_command.py",
    "benchmarks/test_encoder_gpu.py",
    "core/test_artifacts.py",
    "core/test_deberta.py",
    "core/test_evaluate.py",
    "core/test_fit.py",
    "core/test_gpu.py",
    "core/test_graphs.py",
    "core/test_hub.py",
    "core/test_huggingface.py",
    "core/test_hybrid.py",
    "core/test_near_copies.py",
    "core/test_offline.py",
    "core/test_onnx_encoder.py",
    "core/test_oracles.py",
    "core/test_pickled_weights.py",
    "core/test_resume.py",
    "core/test_router_dc.py",
    "core/test_routers.py",
    "core/test_selection.py",
    "core/test_sources.py",
    "core/test_tokens.py",
    "demo/test_shipped_pool.py",
)

# What `make test-fast` leaves out beside tests with these fixtures, each of which opens a socket.
NOT_FAST = Path(__file__).with_name("not_fast.txt")
SOCKETS = {"shared_pool", "postgres", "pgbouncer", "start"}
# Methods of uvloop that listen or start a process without Python's socket and subprocess.
UVLOOP = ("create_server", "create_unix_server", "subprocess_exec", "subprocess_shell")

# Files that take longest run first, so that no worker is left alone with one at the end. A folder
# stands for all of its files.
LONG = (
    *TORCH,
    "benchmarks/test_every_script.py",
    "faults",
    "fuzz",
    "core/test_groups.py",
    "core/test_report.py",
    "core/test_cover_laws.py",
    "core/test_monitoring.py",
    "app/test_certificate_machine.py",
    "app/test_jobs.py",
    "app/test_label.py",
    "app/test_leases.py",
    "app/test_options.py",
    "app/test_uploads.py",
    "app/test_encoder_worker.py",
    "deploy",
    "demo",
    "benchmarks",
    "core",
)


def pytest_configure(config: pytest.Config) -> None:
    """No event loop of this thread; temporary files of quick tests in memory, without a disk.

    Every gateway of a test commits a dozen times, and the store synchronises each with the disk.
    Slow tests may install whole environments: their files stay on the disk.
    """
    from tests.kit.memory import MEMORY, is_usable  # pytest rewrites the asserts of the kit

    # A library that asks for the thread's event loop would get a new one that it does not close.
    asyncio.set_event_loop(None)
    if "not slow" in config.option.markexpr and "TMPDIR" not in os.environ and is_usable():
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)  # of children, and of this process


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without garbage collections: next to nothing of what is created is garbage.

    Tests collect garbage rarely, as `racer serve` does: else it takes a tenth of their time.
    """
    gc.disable()
    before = HEAVY & sys.modules.keys()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()
        session.config.stash[COLLECTED] = (HEAVY & sys.modules.keys()) - before


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by expected duration, equally in every process of a run, and mark the fast tests."""
    items.sort(key=lambda item: _rank(item.path))
    left_out = {*NOT_FAST.read_text(encoding="utf-8").splitlines(), *TORCH}
    for item in items:
        if _is_fast(item, left_out):
            item.add_marker("fast")


def _is_fast(item: pytest.Item, left_out: set[str]) -> bool:
    """Whether `make test-fast` runs a test."""
    name = item.nodeid.partition("[")[0].removeprefix("tests/")
    if not name.startswith(("core/", "app/")) or {name, name.partition("::")[0]} & left_out:
        return False
    marks = {mark.name for mark in item.iter_markers()}
    opens = SOCKETS.intersection(getattr(item, "fixturenames", ()))
    return not opens and not marks & {"slow", "scale", "gpu"}


@pytest.fixture(autouse=True)
def _fast_tests_stay_in_the_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast test neither listens on a socket nor starts a process."""
    if request.node.get_closest_marker("fast") is None:
        return

    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(f"a fast test opened a socket or a process: list it in {NOT_FAST.name}")

    monkeypatch.setattr(socket.socket, "listen", refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    for name in UVLOOP:
        monkeypatch.setattr(uvloop.Loop, name, refuse)


@cache
def _rank(file: Path) -> int:
    """The place of a test file in ``LONG``; all others come after."""
    path = file.relative_to(Path(__file__).parent)
    places = (at for at, long in enumerate(LONG) if path.is_relative_to(long))
    return next(places, len(LONG))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` on a machine without a CUDA device."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadfile`` gives all files of ``TORCH`` to one worker."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class TorchInOneWorker(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "torch" if file.removeprefix("tests/") in TORCH else file

    return TorchInOneWorker(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``--numprocesses auto`` starts two workers per core, at least 4 and at most 16.

    The suite waits for more than half of its time. ``--numprocesses logical`` starts one per core.
    """
    if config.option.numprocesses != "auto":
        return None
    return min(max(4, 2 * (os.cpu_count() or 1)), 16)
