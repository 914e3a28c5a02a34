"""Worker tasks of a long command, with a graceful stop at Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any


class Workers:
    """Runs tasks that take their work from one list.

    The first Ctrl-C sets ``interrupted``, after which a task ends with the item that it has begun.
    The second Ctrl-C cancels all tasks.

    Args:
        on_interrupt: Called at the first.
    """

    def __init__(self, on_interrupt: Callable[[], None] = lambda: None) -> None:
        self.interrupted = False
        self._on_interrupt = on_interrupt

    async def run(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run all; an error (a full disk) ends the others and is raised."""
        tasks = [asyncio.create_task(each) for each in works]
        if tasks:
            with self._interruptible(tasks):
                await _all_or_first_error(tasks)

    @contextmanager
    def _interruptible(self, tasks: Sequence[asyncio.Task[None]]) -> Generator[None]:
        def interrupt() -> None:
            if self.interrupted:
                for task in tasks:
                    task.cancel()
            self.interrupted = True
            self._on_interrupt()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)


async def _all_or_first_error(tasks: Sequence[asyncio.Task[None]]) -> None:
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
