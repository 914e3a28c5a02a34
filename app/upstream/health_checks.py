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
        """Check a replica when its pause is over, and again until a check passes."""
        if replica not in self._tasks:
            self._tasks[replica] = asyncio.create_task(self._check(target, replica))

    async def close(self) -> None:
        """Cancel all checks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, target: Target, replica: Replica) -> None:
        try:
            while (until := replica.breaker.out_until) is not None:
                if (left := until - time.monotonic()) > 0:
                    await asyncio.sleep(left)
                elif await self._client.is_alive(target, replica):
                    replica.breaker.record_passed_check()
                else:
                    replica.breaker.record_failed_check(time.monotonic())
        finally:
            del self._tasks[replica]
