"""The task by which a gateway reports its shares and renews their leases.

It runs in the background, so that a request waits for the store only if its share is too small.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Self

from app.access import lease_store
from app.access.lease import DRAW_EVERY_S, Clock, Grant, Need, Place, Report, Share
from app.concurrency.tasks import end
from app.errors import StoreError, StoreUnavailable
from app.store import Store

log = logging.getLogger(__name__)

LATE_S: Final = 1.0  # then shares of a minute fill themselves
STORE_TIMEOUT_S: Final = 5.0  # longer: without the store a request may be refused
_AWAY: Final = "the store of the budgets does not respond, and more was asked than is leased"


class Leases:
    """All leases of a gateway, and the task that renews them; a context manager.

    Args:
        store: Has the limits.
        clock: Monotonic time in seconds.
        late_s: Seconds without an answer after which shares fill themselves.
        store_timeout_s: Seconds after which the store counts as unreachable.
        draw_every_s: Seconds between two draws.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock = time.monotonic,
        late_s: float = LATE_S,
        store_timeout_s: float = STORE_TIMEOUT_S,
        draw_every_s: float = DRAW_EVERY_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._late_s = late_s
        self._store_timeout_s = store_timeout_s
        self._draw_every_s = draw_every_s
        self._sources = list[Callable[[], Iterable[Share]]]()
        self._is_cut_off = False  # from the store
        self._next_draw = asyncio.Event()  # set when it is over
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def follow(self, shares: Callable[[], Iterable[Share]]) -> None:
        """Renew these shares too, which may change."""
        self._sources.append(shares)

    async def enlarge(self, shares: Sequence[Share], amount: int) -> None:
        """Have this amount leased beyond what each of these shares uses, or of none of them.

        Raises:
            StoreUnavailable: The store does not respond, or cannot read one of the limits.
        """
        self._check(shares)
        drawn, need = self._next_draw, Need(amount)
        for share in shares:
            share.waiting.append(need)
        self._wake.set()
        try:
            async with asyncio.timeout(self._store_timeout_s):
                await drawn.wait()
        except TimeoutError:
            raise StoreUnavailable(_AWAY) from None
        finally:
            for share in shares:
                share.waiting.remove(need)
        self._check(shares)

    def _check(self, shares: Sequence[Share]) -> None:
        if self._is_cut_off or any([share.is_lost for share in shares]):
            raise StoreUnavailable(_AWAY)

    async def __aenter__(self) -> Self:
        await self._draw()
        self._task = asyncio.create_task(self._run(), name="leases")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the leases back."""
        if self._task is None:
            return
        await end(self._task)
        reports = {share.limit.place: share.report(is_final=True) for share in self._shares()}
        try:
            if reports:
                await self._store.run(partial(lease_store.sync, self._store, reports))
        except StoreError as exc:
            log.info("leases could not be given back; they expire: %s", exc)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._draw_every_s):
                    await self._wake.wait()
            await self._draw()

    async def _draw(self) -> None:
        self._wake.clear()
        drawn, self._next_draw = self._next_draw, asyncio.Event()
        try:
            await self._sync()
        except Exception:  # a draw that fails must not end the draws
            log.exception("leases cannot be renewed")
            self._cut_off("see above")
        finally:
            drawn.set()
        await asyncio.sleep(0)  # requests that waited reserve first: a draw gives back what is left

    async def _sync(self) -> None:
        shares = {share.limit.place: share for share in self._shares()}
        due = {place: each for place, each in shares.items() if self._is_cut_off or each.is_due()}
        if not due:
            return
        reported_at = self._clock()
        grants = await self._granted({place: share.report() for place, share in due.items()})
        if grants is None:
            return
        for place, share in due.items():
            if place in grants:
                share.take(grants[place], reported_at)
            else:
                share.lose()

    async def _granted(self, reports: dict[Place, Report]) -> dict[Place, Grant] | None:
        """What the store grants; None if it failed.

        Work that takes too long is still awaited, so that one thread at most hangs with the store.
        """
        work = partial(lease_store.sync, self._store, reports)
        drawing = asyncio.ensure_future(self._store.run_short(work))
        await asyncio.wait([drawing], timeout=self._late_s)
        if not drawing.done():
            self._fill_themselves()
            await asyncio.wait([drawing], timeout=self._store_timeout_s - self._late_s)
        if not drawing.done():
            self._cut_off("no response in time")
        try:
            grants = await drawing
        except StoreError as exc:
            self._cut_off(str(exc))
            return None
        self._is_cut_off = False
        return grants

    def _cut_off(self, why: str) -> None:
        if not self._is_cut_off:
            log.warning(
                "limits and budgets continue within their shares without the store: %s", why
            )
        self._is_cut_off = True
        self._fill_themselves()

    def _fill_themselves(self) -> None:
        for share in self._shares():
            share.fill_itself()

    def _shares(self) -> Sequence[Share]:
        return [share for source in self._sources for share in source()]
