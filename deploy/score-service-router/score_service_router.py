"""A router that asks another service for scores, with a deadline."""

import asyncio
import os
import threading

import aiohttp
import numpy as np

from racer_core.routers.base import Batch, RouterOutput


class ScoreServiceRouter:
    """POSTs {"queries": [...]} to a URL and reads {"scores": [{candidate: chance, ...}, ...]}."""

    def __init__(self, *, pool: tuple[str, ...], url: str, deadline_s: float = 0.5) -> None:
        self._pool, self._url, self._deadline_s = pool, url, deadline_s
        # From the environment: options are written into the artifact, in clear.
        self._headers = {"authorization": f"Bearer {os.environ.get('SCORE_SERVICE_KEY', '')}"}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def predict(self, batch: Batch) -> RouterOutput:
        """Scores (B, K). If the service fails or is late, it raises: the whole pool is called."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(list(batch.texts)), self._loop)
        try:
            rows = asked.result(self._deadline_s)  # of connecting, sending and reading together
        finally:
            asked.cancel()
        return RouterOutput(np.array([[row[name] for name in self._pool] for row in rows], float))

    async def _ask(self, queries: list[str]) -> list[dict[str, float]]:
        async with (
            aiohttp.ClientSession(headers=self._headers) as session,
            session.post(self._url, json={"queries": queries}) as response,
        ):
            response.raise_for_status()
            return (await response.json())["scores"]
