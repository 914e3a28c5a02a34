"""Leases: shares of a limit that a gateway draws from the store and spends without asking again.

A background task renews them, so that the path of a request does not wait for the store. A lease
that is not renewed expires: its gateway counts as gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Self, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.errors import StoreError
from app.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAW_EVERY_S: Final = 0.25
STORE_TIMEOUT_S: Final = 1.0
RENEW_S: Final = 10.0  # an idle gateway renews its leases this often
LEASE_S: Final = 30.0  # without renewal a lease expires
LEASES_PER_SHARE: Final = 4  # a lease is this part of a gateway's share


class Leases(ABC):
    """Background task that renews a gateway's leases; a context manager.

    Args:
        store: Has what is leased.
        name: Of the leases, in logs.
        store_timeout_s: Seconds after which the store counts as unreachable.
        draw_every_s: Seconds between two draws.
        renew_s: Seconds after which an idle gateway renews its leases.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        store_timeout_s: float = STORE_TIMEOUT_S,
        draw_every_s: float = DRAW_EVERY_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self._store = store
        self._name = name
        self._gateway = secrets.token_hex(16)
        self._store_timeout_s = store_timeout_s
        self._draw_every_s = draw_every_s
        self._renew_s = renew_s
        self._is_cut_off = False  # from the store
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._draw()
        self._task = asyncio.create_task(self._run(), name=self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the leases back."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        try:
            await self._store.run(self._give_back)
        except StoreError as exc:
            log.info("%s could not be given back; they expire: %s", self._name, exc)

    async def _run(self) -> None:
        while True:
            await self._pause()
            await self._draw()

    async def _pause(self) -> None:
        """Wait until the next draw."""
        await asyncio.sleep(self._draw_every_s)

    @abstractmethod
    async def _draw(self) -> None:
        """Renew the leases that are due."""

    @abstractmethod
    def _give_back(self) -> None:
        """End the leases. Blocks, and raises :class:`StoreError`."""

    @abstractmethod
    def _continue_without_store(self, why: str) -> None:
        """Called when the store does not respond, once or twice for each draw."""

    def _is_renewed(self, renewed_at: float) -> bool:
        """Whether a lease that was renewed then, by :func:`time.monotonic`, needs no renewal."""
        return time.monotonic() - renewed_at <= self._renew_s

    async def _from_store(self, work: Callable[[], T]) -> T | None:
        """What blocking work on the store returns; None if it failed.

        Work that takes too long is still awaited, so that one thread at most hangs with the store.
        """
        drawing = asyncio.ensure_future(self._store.run_short(work))
        await asyncio.wait([drawing], timeout=self._store_timeout_s)
        if not drawing.done():
            self._cut_off("no response in time")
        try:
            drawn = await drawing
        except StoreError as exc:
            self._cut_off(str(exc))
            return None
        except Exception:
            log.exception("%s cannot be drawn", self._name)
            self._cut_off("see above")
            return None
        self._is_cut_off = False
        return drawn

    def _cut_off(self, why: str) -> None:
        self._continue_without_store(why)
        self._is_cut_off = True


def store_clock(session: Session) -> float:
    """Seconds by the clock of the database server, which all gateways share."""
    if session.connection().dialect.name == "sqlite":
        return time.time()
    seconds = session.scalar(text("SELECT EXTRACT(EPOCH FROM clock_timestamp())"))
    return float(seconds or 0.0)
