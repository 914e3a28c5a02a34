"""LISTEN/NOTIFY of PostgreSQL: wakes a gateway when another gateway changed the shared state.

Behind a pooler such as PgBouncer the store is polled alone: in transaction mode a notification
reaches the client that has the server's session at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from sqlalchemy import make_url

from app.concurrency.tasks import end
from app.store.engine import CHANNEL, CONNECT_S

if TYPE_CHECKING:
    from psycopg import AsyncConnection

log = logging.getLogger(__name__)

POLL_S: Final = 0.5  # a wait ends after this time even without a notification


class NotificationListener:
    """Waits for PostgreSQL's notifications, or for the poll interval.

    With SQLite, or behind a pooler, it waits for the poll interval alone.

    Args:
        url: The store's.
    """

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._notified = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._url.get_backend_name() == "postgresql":
            self._listener = asyncio.create_task(self._listen(), name="notifications of the store")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await end(self._listener)

    async def wait(self) -> None:
        """Return after a notification or the poll interval."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._notified.wait()
        self._notified.clear()

    async def _listen(self) -> None:
        import psycopg

        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    url,
                    autocommit=True,
                    connect_timeout=CONNECT_S,
                    application_name="racer listener",
                ) as connection:
                    if await _is_pooled(connection):
                        log.info("the store is behind a pooler: it is polled every %s s", POLL_S)
                        return
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._notified.set()  # for changes before the LISTEN
                    async for _ in connection.notifies():
                        self._notified.set()
            except psycopg.Error as exc:
                log.info("the store sends no notifications, it is polled: %s", type(exc).__name__)
            await asyncio.sleep(POLL_S)


async def _is_pooled(connection: AsyncConnection[Any]) -> bool:
    """Whether the process at the other end is not the server's, as it is told at the login."""
    cursor = await connection.execute("SELECT pg_backend_pid()")
    return await cursor.fetchone() != (connection.info.backend_pid,)
