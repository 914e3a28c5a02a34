"""Client disconnects: work for a client that has closed its connection is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from fastapi import Request

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client closed the connection: no response can reach it."""


class Disconnects(Protocol):
    """Tells of a disconnect by a callback; the gateway's server leaves one in a request's state."""

    def notify(self, on_disconnect: Callable[[], None] | None) -> None:
        """Call back when the client disconnects; None takes the callback back."""
        ...


async def unless_disconnected(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, but cancel it when the client disconnects. The body must have been read.

    Raises:
        ClientDisconnected: The work was cancelled.
    """
    client: Disconnects = http.scope["state"].get("exchange") or _Receiver(http)
    deadline = asyncio.timeout(None)
    try:
        async with deadline:
            client.notify(lambda: deadline.reschedule(0.0))  # in the past: cancels the work
            try:
                return await work
            finally:
                client.notify(None)
    except TimeoutError:
        if deadline.expired():
            raise ClientDisconnected from None
        raise


class _Receiver:
    """A task that waits for the disconnect, for other servers: Ray Serve's."""

    def __init__(self, http: Request) -> None:
        self._http = http
        self._task: asyncio.Task[None] | None = None

    def notify(self, on_disconnect: Callable[[], None] | None) -> None:
        if self._task is not None:
            self._task.cancel()
        if on_disconnect is not None:
            self._task = asyncio.create_task(self._wait(on_disconnect))

    async def _wait(self, on_disconnect: Callable[[], None]) -> None:
        while (await self._http.receive())["type"] != "http.disconnect":
            pass
        on_disconnect()
