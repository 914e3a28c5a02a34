"""Lets replicas back in: whoever is out is looked at in the background."""

from __future__ import annotations

import asyncio
import time

from app.upstream.http_client import UpstreamClient
from app.upstream.replicas import Replica, Target


class HealthChecks:
    """One task for every replica that is out."""

    def __init__(self, calls: UpstreamClient) -> None:
        self._calls = calls
        self._tasks: dict[Replica, asyncio.Task[None]] = {}

    def watch(self, target: Target, replica: Replica) -> None:
        """Probe a replica when its time is over, and again until it is in."""
        if replica not in self._tasks:
            self._tasks[replica] = asyncio.create_task(self._probe(target, replica))

    async def close(self) -> None:
        """Stop."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, target: Target, replica: Replica) -> None:
        try:
            while (until := replica.circuit.out_until) is not None:
                if (left := until - time.monotonic()) > 0:
                    await asyncio.sleep(left)
                elif await self._calls.is_alive(target, replica):
                    replica.circuit.let_in()
                else:
                    replica.circuit.wait_on(time.monotonic())
        finally:
            del self._tasks[replica]
