"""Artifact watch: loads the configured artifact at the start, or once it appears.

From none to one, while requests go on: services of the router are opened beside the fallback and
then swapped in. A loaded artifact is never replaced, because the active calibration belongs to it:
a change on disk is reported and needs a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Final, Self

from app.concurrency.tasks import end
from app.services import RouterServices
from racer_core import artifacts
from racer_core.errors import RacerError

log = logging.getLogger(__name__)

EVERY_S: Final = 2.0  # between two looks at the files

# Inode, size and time of change of each file; None: it is absent.
_State = tuple[tuple[int, int, int] | None, ...]
_EMPTY: Final[_State] = (None,) * len(artifacts.FILES)


class ArtifactWatch:
    """Owns the services of the router; use it as a context.

    Args:
        folder: The configured artifact; None: there will be no router.
        open_router: Loads the artifact and opens its services.
    """

    def __init__(
        self,
        folder: Path | None,
        open_router: Callable[[], AbstractAsyncContextManager[RouterServices]],
    ) -> None:
        self._folder = folder
        self._open_router = open_router
        self._services = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._seen = _EMPTY  # the files at the last look
        self._tried = _EMPTY  # the files that were loaded, or refused
        self.router: RouterServices | None = None
        self.refusal: str | None = None  # why the artifact that is there is not used
        self.has_changed = False  # on disk, since it was loaded

    async def __aenter__(self) -> Self:
        """Load the artifact if it is there, and watch its files.

        Raises:
            ArtifactError: It does not fit the configuration or this machine.
            SettingsError: The configuration does not fit it.
        """
        if self._folder is not None:
            self._tried = await asyncio.to_thread(_state, self._folder)
            if self._tried != _EMPTY:
                await self._open()
            self._task = asyncio.create_task(self._watch(self._folder), name="artifact watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._task)
        await self._services.aclose()

    async def _watch(self, folder: Path) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self._look(folder)
            except Exception:
                log.exception("the artifact cannot be watched now")

    async def _look(self, folder: Path) -> None:
        before, self._seen = self._seen, await asyncio.to_thread(_state, folder)
        # Files that are still being written differ at the next look.
        if None in self._seen or self._seen != before or self._seen == self._tried:
            return
        self._tried = self._seen
        if self.router is None:
            await self._try(folder)
        else:
            await self._compare(folder, self.router.digest)

    async def _try(self, folder: Path) -> None:
        try:
            await self._open()
        except RacerError as exc:
            self.refusal = str(exc)
            log.error("the artifact is refused, and the fallback goes on answering: %s", exc)
        else:
            self.refusal = None
            log.warning("the artifact %s is loaded", folder)

    async def _compare(self, folder: Path, loaded: str) -> None:
        self.has_changed = await asyncio.to_thread(artifacts.digest, folder) != loaded
        if self.has_changed:
            log.warning("the artifact %s has changed: restart to load it", folder)

    async def _open(self) -> None:
        async with AsyncExitStack() as stack:
            router = await stack.enter_async_context(self._open_router())
            self._services = stack.pop_all()
        self.router = router  # from here on requests are routed


def _state(folder: Path) -> _State:
    """The files as the file system shows them."""
    return tuple(_state_of(folder / name) for name in artifacts.FILES)


def _state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
