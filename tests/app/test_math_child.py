"""The pool of math workers from outside: no reply is another task's, and no task delays others."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.judging.math_pool import MAX_WORKERS, MathPool

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
Story = Callable[[MathPool, list[Child]], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    """Run a story with a child and the processes that were started."""
    started: list[Child] = []
    start = subprocess.Popen

    def stub(_: list[str], **options: Any) -> Child:
        started.append(start([sys.executable, "-c", WORKER], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", stub)

    def run(story: Story) -> None:
        async def scene() -> None:
            pool = MathPool(1, message_bytes=100)
            try:
                async with asyncio.timeout(60):
                    await story(pool, started)
            finally:
                await pool.close()

        asyncio.run(scene())
        for process in started:
            assert process.returncode is not None, "a child was not waited for"

    return run


def test_the_rest_of_an_oversized_answer_is_not_the_next_tasks(
    play: Callable[[Story], None],
) -> None:
    """Fails when the bytes left in the pipe are read as the next task's answer."""

    async def story(pool: MathPool, _: list[Child]) -> None:
        assert await pool.form("1") == "1"
        assert await pool.form("long") is None
        assert [await pool.form(text) for text in "23456"] == ["2", "3", "4", "5", "6"]

    play(story)


def test_the_answer_of_a_cancelled_task_is_discarded(play: Callable[[Story], None]) -> None:
    """No other task gets it, and the queued tasks are done."""

    async def story(pool: MathPool, _: list[Child]) -> None:
        assert await pool.form("0") == "0"
        gone = [asyncio.create_task(pool.form(text)) for text in ("a", "hang", "b")]
        await asyncio.sleep(0.05)  # a worker has been told, or not yet
        waiting = [asyncio.create_task(pool.form(text)) for text in "12"]
        await asyncio.sleep(0)
        for each in gone:
            each.cancel()
        assert await asyncio.gather(*waiting) == ["1", "2"]
        assert [await pool.form(text) for text in "345678"] == list("345678")

    play(story)


def test_nothing_starts_before_the_first_task(play: Callable[[Story], None]) -> None:
    """One worker more than concurrent tasks, up to the limit, for any number of tasks."""

    async def story(pool: MathPool, started: list[Child]) -> None:
        assert started == []
        assert await pool.form("0") == "0"
        assert await until(lambda: len(started) == 2)
        tasks = [pool.form(str(number)) for number in range(50)]
        assert await asyncio.gather(*tasks) == [str(number) for number in range(50)]
        assert len(started) <= MAX_WORKERS

    play(story)


def test_hostile_formulas_delay_no_other_vote(play: Callable[[Story], None]) -> None:
    """Up to one less than the workers never end, and every other task is done meanwhile."""

    async def story(pool: MathPool, _: list[Child]) -> None:
        hostile = [asyncio.create_task(pool.form("hang")) for _ in range(MAX_WORKERS - 1)]
        assert await asyncio.gather(*(pool.form(text) for text in "123")) == ["1", "2", "3"]
        assert not any(task.done() for task in hostile)
        for task in hostile:
            task.cancel()

    play(story)


def test_a_child_that_has_ended_is_replaced_and_closed(play: Callable[[Story], None]) -> None:
    """Whatever ended it: one task has no answer, the next one has; and closing fails nowhere."""

    async def story(pool: MathPool, started: list[Child]) -> None:
        assert await pool.form("1") == "1"
        assert await until(lambda: len(started) == 2)
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

    play(story)


def test_workers_that_cannot_be_started_leave_no_task_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither where there is no process nor where it ends at once."""
    start = subprocess.Popen

    def refuse(_: list[str], **__: Any) -> Child:
        raise OSError(24, "Too many open files")

    def end(_: list[str], **options: Any) -> Child:
        return start([sys.executable, "-c", ""], **options)

    async def scene() -> list[str | None]:
        async with asyncio.timeout(60):
            pool = MathPool(1)
            forms = await asyncio.gather(*(pool.form("1") for _ in range(6)))
            await pool.close()
            return forms

    for stub in (refuse, end):
        monkeypatch.setattr(subprocess, "Popen", stub)
        assert asyncio.run(scene()) == [None] * 6


def test_the_math_worker_has_limits_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment holds none of the gateway's secrets, and its memory is limited."""
    pytest.importorskip("math_verify")
    monkeypatch.setenv("RACER_ADMIN_KEY", "CANARY-of-the-environment")

    async def scene() -> tuple[str, str]:
        pool = MathPool(10, max_workers=1)
        try:
            assert await pool.form("1/2") == "1/2"
            return _environment_and_limits("app.judging.math_worker")
        finally:
            await pool.close()

    environment, limits = asyncio.run(scene())
    assert "CANARY" not in environment
    assert re.search(rf"Max address space +{4 * 2**30} ", limits)
    assert re.search(r"Max core file size +0 ", limits)


def test_a_task_past_its_deadline_has_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline ends it while it computes; its worker does the next task, without a new start.

    So of one worker a task waits for one deadline, and of several for none.
    """
    pytest.importorskip("math_verify")
    started: list[Child] = []
    start = subprocess.Popen

    def counting(*args: Any, **options: Any) -> Child:
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", counting)

    async def scene() -> None:
        pool = MathPool(1.0, max_workers=1)
        try:
            assert await pool.form("1/2") == "1/2"  # loads the library
            for _ in range(2):
                began = time.monotonic()
                hostile = asyncio.create_task(pool.form("\\boxed{2^{10^{10}}}"))  # takes a minute
                await asyncio.sleep(0)
                assert await pool.form("0.5") == "1/2"
                assert hostile.done()
                assert await hostile is None
                assert 1.0 < time.monotonic() - began < 10
            assert len(started) == 1
        finally:
            await pool.close()

    asyncio.run(scene())
    assert started[0].returncode is not None


async def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within half a minute."""
    for _ in range(3000):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


def _environment_and_limits(module: str) -> tuple[str, str]:
    """Of the one child process that runs a module."""
    (process,) = (
        path
        for path in Path("/proc").glob("[0-9]*")
        if _has(path / "cmdline", module.encode())
        and _has(path / "stat", f" {os.getpid()} ".encode())
    )
    return (process / "environ").read_text(), (process / "limits").read_text()


def _has(file: Path, text: bytes) -> bool:
    try:
        return text in file.read_bytes()
    except OSError:
        return False
