"""Rings when a gateway changed something that the others must know."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Final, Self

from sqlalchemy import make_url

from app.store.engine import CHANNEL, CONNECT_S

log = logging.getLogger(__name__)

POLL_S: Final = 0.5  # it rings so often in any case


class NotificationListener:
    """PostgreSQL's notifications, and a clock behind them; with SQLite the clock alone.

    Args:
        url: The store's.
    """

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._rung = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._url.get_backend_name() == "postgresql":
            self._listening = asyncio.create_task(self._listen(), name="notifications of the store")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening

    async def wait(self) -> None:
        """Return when it rings."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._rung.wait()
        self._rung.clear()

    async def _listen(self) -> None:
        import psycopg

        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    url, autocommit=True, connect_timeout=CONNECT_S, application_name="racer bell"
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._rung.set()  # for what was said before
                    async for _ in connection.notifies():
                        self._rung.set()
            except psycopg.Error as exc:
                log.info("the store notifies nobody now: %s", type(exc).__name__)
            await asyncio.sleep(POLL_S)
