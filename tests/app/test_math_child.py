"""The pool of math workers from outside: no reply is another task's, and no task delays others."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.judging.math_pool import MAX_WORKERS, MathPool
from tests.kit.waiting import eventually

# Gives back what it is told, a hundred times over where it is told so, or never answers.
WORKER = """
import json, sys, time
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "hang":
        time.sleep(600)
    print(json.dumps({"form": text * (100 if text == "long" else 1)}), flush=True)
"""

Child = subprocess.Popen[bytes]
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float = 1, **options: Any
) -> AsyncGenerator[tuple[MathPool, list[Child]]]:
    """A pool, and the processes that it starts: of `WORKER`, or of its own with ``max_workers``."""
    started: list[Child] = []
    start = subprocess.Popen

    def stub(command: list[str], **given: Any) -> Child:
        own = command if "max_workers" in options else [sys.executable, "-c", WORKER]
        started.append(start(own, **given))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", stub)
    pool = MathPool(timeout_s, **{"message_bytes": 100, **options})
    try:
        async with asyncio.timeout(60):
            yield pool, started
    finally:
        await pool.close()
    for process in started:
        assert process.returncode is not None, "a child was not waited for"


async def test_the_rest_of_an_oversized_answer_is_not_the_next_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails when the bytes left in the pipe are read as the next task's answer."""
    async with opened(monkeypatch) as (pool, _):
        assert await pool.form("1") == "1"
        assert await pool.form("long") is None
        assert [await pool.form(text) for text in "23456"] == ["2", "3", "4", "5", "6"]


async def test_the_answer_of_a_cancelled_task_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other task gets it, and the queued tasks are done."""
    async with opened(monkeypatch) as (pool, _):
        assert await pool.form("0") == "0"
        gone = [asyncio.create_task(pool.form(text)) for text in ("a", "hang", "b")]
        await asyncio.sleep(0.05)  # a worker has been told, or not yet
        waiting = [asyncio.create_task(pool.form(text)) for text in "12"]
        await asyncio.sleep(0)
        for each in gone:
            each.cancel()
        assert await asyncio.gather(*waiting) == ["1", "2"]
        assert [await pool.form(text) for text in "345678"] == list("345678")


async def test_nothing_starts_before_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker more than concurrent tasks, up to the limit, for any number of tasks."""
    async with opened(monkeypatch) as (pool, started):
        assert started == []
        assert await pool.form("0") == "0"
        await eventually(lambda: len(started) == 2)
        tasks = [pool.form(str(number)) for number in range(50)]
        assert await asyncio.gather(*tasks) == [str(number) for number in range(50)]
        assert len(started) <= MAX_WORKERS


async def test_hostile_formulas_delay_no_other_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to one less than the workers never end, and every other task is done meanwhile."""
    async with opened(monkeypatch) as (pool, _):
        hostile = [asyncio.create_task(pool.form("hang")) for _ in range(MAX_WORKERS - 1)]
        assert await asyncio.gather(*(pool.form(text) for text in "123")) == ["1", "2", "3"]
        assert not any(task.done() for task in hostile)
        for task in hostile:
            task.cancel()


async def test_a_child_that_has_ended_is_replaced_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever ended it: one task has no answer, the next one has; and closing fails nowhere."""
    async with opened(monkeypatch) as (pool, started):
        assert await pool.form("1") == "1"
        await eventually(lambda: len(started) == 2)
        assert await pool.form("2") == "2"
        for each in started:
            each.kill()
            each.wait()
        forms = [await pool.form("3") for _ in range(4)]
        assert forms[-1] == "3"
        assert set(forms) <= {None, "3"}
        for each in started:
            each.kill()
            each.wait()


async def test_workers_that_cannot_be_started_leave_no_task_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither where there is no process nor where it ends at once."""
    start = subprocess.Popen

    def refuse(_: list[str], **__: Any) -> Child:
        raise OSError(24, "Too many open files")

    def end(_: list[str], **options: Any) -> Child:
        return start([sys.executable, "-c", ""], **options)

    for stub in (refuse, end):
        monkeypatch.setattr(subprocess, "Popen", stub)
        async with asyncio.timeout(60):
            pool = MathPool(1)
            assert await asyncio.gather(*(pool.form("1") for _ in range(6))) == [None] * 6
            await pool.close()


async def test_the_math_worker_has_limits_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment holds none of the gateway's secrets, and its memory is limited."""
    pytest.importorskip("math_verify")
    monkeypatch.setenv("RACER_ADMIN_KEY", "CANARY-of-the-environment")
    options = {"max_workers": 1, "message_bytes": 2**20}
    async with opened(monkeypatch, 10, **options) as (pool, started):
        assert await pool.form("1/2") == "1/2"
        (worker,) = (Path("/proc") / str(each.pid) for each in started)
        environment, limits = ((worker / name).read_text() for name in ("environ", "limits"))
    assert "CANARY" not in environment
    assert re.search(rf"Max address space +{4 * 2**30} ", limits)
    assert re.search(r"Max core file size +0 ", limits)


async def test_a_task_past_its_deadline_has_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline ends it while it computes, and its worker does the next task."""
    pytest.importorskip("math_verify")
    options = {"max_workers": 1, "message_bytes": 2**20}
    async with opened(monkeypatch, **options) as (pool, started):
        assert await pool.form("1/2") == "1/2"  # loads the library
        for _ in range(2):
            began = time.monotonic()
            hostile = asyncio.create_task(pool.form("\\boxed{2^{10^{10}}}"))  # takes a minute
            await asyncio.sleep(0)
            assert await pool.form("0.5") == "1/2"
            assert hostile.done()
            assert await hostile is None
            assert time.monotonic() - began > 1.0
        assert len(started) == 1
