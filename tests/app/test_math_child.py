"""The process that reads mathematics, from outside: whatever happens, no answer is another's."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
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

Story = Callable[[MathProcess, list[Process]], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    """Run a story with a child and the processes that were started."""
    started: list[Process] = []
    start = asyncio.create_subprocess_exec

    async def stub(python: str, *_: str, **options: Any) -> Process:
        started.append(await start(python, "-c", WORKER, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", stub)
    monkeypatch.setattr(math_process, "_LINE_BYTES", 100)

    def run(story: Story) -> None:
        async def scene() -> None:
            child = MathProcess(1)
            try:
                async with asyncio.timeout(20):
                    await story(child, started)
            finally:
                await child.close()
            for process in started:
                await process.wait()

        asyncio.run(scene())

    return run


def test_an_answer_that_is_too_long_is_none_and_nobody_elses(play: Callable[[Story], None]) -> None:
    """Red when what is left of it in the pipe is the next task's answer."""

    async def story(child: MathProcess, started: list[Process]) -> None:
        assert await child.form("1") == "1"
        assert await child.form("long") is None
        assert [await child.form(text) for text in "234"] == ["2", "3", "4"]
        assert len(started) == 2

    play(story)


def test_who_leaves_takes_the_answer_along(play: Callable[[Story], None]) -> None:
    """A task that is given up is told to nobody else, and those in line are done."""

    async def story(child: MathProcess, _: list[Process]) -> None:
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

    async def story(child: MathProcess, started: list[Process]) -> None:
        assert await child.form("1") == "1"
        started[0].kill()
        await started[0].wait()
        assert await child.form("2") is None
        assert await child.form("3") == "3"
        started[1].kill()
        await started[1].wait()

    play(story)
