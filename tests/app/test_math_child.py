"""The math process from outside: whatever happens, no reply is taken for another task's."""

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

from app.answering import math_process
from app.answering.math_process import MathProcess

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
Story = Callable[[MathProcess, list[Child]], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    """Run a story with a child and the processes that were started."""
    started: list[Child] = []
    start = subprocess.Popen

    def stub(_: list[str], **options: Any) -> Child:
        started.append(start([sys.executable, "-c", WORKER], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", stub)
    monkeypatch.setattr(math_process, "_MESSAGE_BYTES", 100)

    def run(story: Story) -> None:
        async def scene() -> None:
            child = MathProcess(1)
            try:
                async with asyncio.timeout(20):
                    await story(child, started)
            finally:
                await child.close()

        asyncio.run(scene())
        for process in started:
            assert process.returncode is not None, "a child was not waited for"

    return run


def test_an_answer_that_is_too_long_is_none_and_nobody_elses(play: Callable[[Story], None]) -> None:
    """Red when what is left of it in the pipe is the next task's answer."""

    async def story(child: MathProcess, started: list[Child]) -> None:
        assert await child.form("1") == "1"
        assert await child.form("long") is None
        assert [await child.form(text) for text in "234"] == ["2", "3", "4"]
        assert len(started) == 2

    play(story)


def test_who_leaves_takes_the_answer_along(play: Callable[[Story], None]) -> None:
    """A task that is given up is told to nobody else, and those in line are done."""

    async def story(child: MathProcess, _: list[Child]) -> None:
        assert await child.form("0") == "0"
        gone = asyncio.create_task(child.form("hang"))
        await asyncio.sleep(0)  # the child has been told
        waiting = [asyncio.create_task(child.form(text)) for text in "12"]
        await asyncio.sleep(0)
        gone.cancel()
        assert await asyncio.gather(*waiting) == ["1", "2"]

    play(story)


def test_a_child_that_has_ended_is_replaced_and_closed(play: Callable[[Story], None]) -> None:
    """Whatever ended it: one task has no answer, the next one has; and closing fails nowhere."""

    async def story(child: MathProcess, started: list[Child]) -> None:
        assert await child.form("1") == "1"
        started[0].kill()
        started[0].wait()
        assert await child.form("2") is None
        assert await child.form("3") == "3"
        started[1].kill()
        started[1].wait()

    play(story)


def test_the_math_worker_has_limits_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment holds none of the gateway's secrets, and its memory is limited."""
    pytest.importorskip("math_verify")
    monkeypatch.setenv("RACER_ADMIN_KEY", "CANARY-of-the-environment")

    async def scene() -> tuple[str, str]:
        child = MathProcess(10)
        try:
            assert await child.form("1/2") == "1/2"
            return _environment_and_limits("app.answering.math_worker")
        finally:
            await child.close()

    environment, limits = asyncio.run(scene())
    assert "CANARY" not in environment
    assert re.search(rf"Max address space +{4 * 2**30} ", limits)
    assert re.search(r"Max core file size +0 ", limits)


def test_a_task_past_its_deadline_has_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline ends the process while it computes; the next task has its own reply."""
    pytest.importorskip("math_verify")

    async def scene() -> None:
        child = MathProcess(1)
        try:
            assert await child.form("1/2") == "1/2"  # loads the library
            began = time.monotonic()
            assert await child.form("\\boxed{2^{10^{10}}}") is None  # takes a minute
            assert time.monotonic() - began < 20
            assert await child.form("0.5") == "1/2"
        finally:
            await child.close()

    asyncio.run(scene())


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
