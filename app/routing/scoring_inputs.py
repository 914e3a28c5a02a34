"""What decides scores beside the artifact: compared with what it was for calibration rows.

The files of a plug-in router are watched while the gateway runs. One that was replaced voids the
certificates until a restart reads it, and then until a calibration whose rows it scored.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final, Self

from app.concurrency.tasks import end
from app.errors import Conflict
from app.routing.reasons import Reason
from app.store.calibration_record import Population
from racer_core.artifacts import Artifact
from racer_core.routers import registry
from racer_core.routers.inputs import RouterInputs, differing

log = logging.getLogger(__name__)

EVERY_S: Final = 2.0  # between two looks at the files
UNREADABLE: Final = "unreadable_files"  # instead of the names of the inputs that differ

# Path, inode, size, and times of change of content and inode of each file.
_State = tuple[tuple[Path, int, int, int, int], ...]


class ScoringInputs:
    """The inputs of a loaded artifact; use it as a context, which watches their files.

    Args:
        artifact: The artifact.

    Attributes:
        changes: The inputs that differ from what was loaded.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._inputs = artifact.inputs
        self._files, self._loaded = registry.inputs_of(artifact.router)
        self._seen: _State | None = None
        self._task: asyncio.Task[None] | None = None
        self.changes: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        """Compare the files with what was loaded, and watch them."""
        if self._loaded:
            await self.look()
            self._task = asyncio.create_task(self._watch(), name="inputs of the router")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._task)

    def reasons(self, rows: Population) -> tuple[str, ...]:
        """Why rows were not scored as requests are."""
        names = {*differing(rows.scored_by, self._inputs), *self.changes}
        return tuple(Reason.ROUTER_CHANGED.of(name) for name in sorted(names))

    async def refuse_changed(self) -> None:
        """Refuse rows while they cannot be stored with what scores them.

        Raises:
            Conflict: The inputs are not what was loaded.
        """
        if self._loaded:
            await self.look()
        if self.changes:
            raise Conflict(
                "rows cannot be calibrated on: what decides the router's scores was changed since "
                f"it was loaded ({', '.join(self.changes)}); nothing was changed here: restart the "
                "gateway, which then reads it, and upload the rows again"
            )

    async def look(self) -> None:
        """Compare the inputs with what was loaded, if a file has changed since the last look."""
        try:
            state = await asyncio.to_thread(_state, self._files)
            if state == self._seen:
                return
            changes = differing(self._loaded, await asyncio.to_thread(self._files.digests))
        except Exception:  # whatever is on disk: what is unknown voids
            state, changes = None, (UNREADABLE,)
            if changes != self.changes:
                log.exception("the files of the router cannot be read")
        self._seen = state
        if changes != self.changes:
            self.changes = changes
            log.warning(
                "what decides the router's scores was changed: %s. Certificates are void until it "
                "is as before, or until a restart and a calibration",
                ", ".join(changes) or "nothing any more",
            )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()


def _state(files: RouterInputs) -> _State:
    """The files as the file system shows them."""
    found = ((file, file.stat()) for file in files.files())
    return tuple(
        (file, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for file, at in found
    )
