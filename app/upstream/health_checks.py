"""Health checks of ejected replicas, in the background, until they are readmitted."""

from __future__ import annotations

import asyncio
import time

from app.upstream.http_client import UpstreamClient
from app.upstream.replicas import Replica, Target


class HealthChecks:
    """One task for every ejected replica."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        self._tasks: dict[Replica, asyncio.Task[None]] = {}

    def watch(self, target: Target, replica: Replica) -> None:
        """Check a replica when its pause is over, and again until a check passes.

        The pause of an earlier ejection, which a success ended, may be longer than this one.
        """
        if (earlier := self._tasks.get(replica)) is not None:
            earlier.cancel()
        task = asyncio.create_task(self._check(target, replica))
        self._tasks[replica] = task
        task.add_done_callback(lambda _: self._forget(replica, task))

    def forget(self, replica: Replica) -> None:
        """End the check of a replica that is called no more."""
        if (task := self._tasks.get(replica)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancel all checks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, target: Target, replica: Replica) -> None:
        while (until := replica.breaker.out_until) is not None:
            if (left := until - time.monotonic()) > 0:
                await asyncio.sleep(left)
            elif await self._client.is_alive(target, replica):
                replica.breaker.record_passed_check()
            else:
                replica.breaker.record_failed_check(time.monotonic())

    def _forget(self, replica: Replica, task: asyncio.Task[None]) -> None:
        if self._tasks.get(replica) is task:
            del self._tasks[replica]
