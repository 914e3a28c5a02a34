"""Background tasks of a context: ended where it ends."""

from __future__ import annotations

import asyncio
import contextlib


async def end(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait until it has ended; None: it was never started.

    Raises:
        Exception: What ended it before.
    """
    if task is None:
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
