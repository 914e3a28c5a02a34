"""Local copy of the active calibration: what a gateway starts with while its database is away.

The copy is a backup of one calibration with its drift alarms, renewed with every change of either.
It is of one database, and decides only for the artifact and the candidates that it was made for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from pathlib import Path
from typing import Final, Self

from app.concurrency.tasks import end
from app.errors import SettingsError, StoreDamaged, StoreError
from app.store import Alarms, SharedState, Store
from app.store.backup.calibrations import save_copy
from app.store.backup.file import Backup, StoredCalibration
from app.store.calibration_record import CalibrationRecord
from app.store.calibration_rows import to_record
from app.store.engine import redacted_url
from racer_core.errors import InputError

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0  # after a copy could not be written


class CalibrationCopies:
    """The copies of one database in a folder of this machine, one for each artifact and fleet.

    Methods block.

    Args:
        cache: The folder; it need not exist.
        url: Of the database; copies of another one are not read.
    """

    def __init__(self, cache: Path, url: str) -> None:
        database = hashlib.sha256(redacted_url(url).encode()).hexdigest()[:16]
        self.folder = cache / "calibrations" / database

    def samples_key(self) -> bytes | None:
        """The database's key of the shadow sample; None: there is no copy."""
        newest_first = sorted(self.folder.glob("*.zip"), key=lambda path: -path.stat().st_mtime)
        for path in newest_first:
            try:
                with Backup(path) as backup:
                    key = backup.manifest.samples_key
            except InputError as exc:
                _log_damaged(exc)
            else:
                if key is not None:
                    return bytes.fromhex(key)
        return None

    def read(self, setup: str) -> tuple[CalibrationRecord, SharedState] | None:
        """The calibration that was active last, and its alarms; None: there is no whole copy.

        Args:
            setup: Digest of the artifact and of how candidates are served.
        """
        path = self._path(setup)
        if not path.exists():
            return None
        try:
            with Backup(path) as backup:
                for stored in backup.calibrations():
                    return to_record(stored.row), _state(stored)
        except (InputError, StoreDamaged) as exc:
            _log_damaged(exc)
        return None

    def write(self, store: Store, calibration_id: str) -> None:
        """Replace the copy. Raises StoreError, SettingsError, OSError."""
        setup = store.summary(calibration_id).artifact
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        save_copy(store, calibration_id, self._path(setup))

    def _path(self, setup: str) -> Path:
        return self.folder / f"{setup}.zip"


class CalibrationCopy:
    """Keeps a copy of what the store says is active; use it as a context.

    Args:
        store: The store.
        copies: Where the copy is.
    """

    def __init__(self, store: Store, copies: CalibrationCopies) -> None:
        self._store = store
        self._copies = copies
        self._seen: SharedState | None = None
        self._copied: SharedState | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="copy of the calibration")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._task)

    async def read(self, setup: str) -> tuple[CalibrationRecord, SharedState] | None:
        """As :meth:`CalibrationCopies.read`."""
        found = await asyncio.to_thread(self._copies.read, setup)
        if found is not None:
            _, self._copied = found
        return found

    def on_shared_state(self, state: SharedState) -> None:
        """Learn what is active, and its alarms; does not block."""
        self._seen = state
        if state.active_id is not None and state != self._copied:
            self._changed.set()

    async def _run(self) -> None:
        has_failed = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            state = self._seen
            assert state is not None  # what has changed was seen
            assert state.active_id is not None
            try:
                await self._store.run(self._copies.write, self._store, state.active_id)
            except (StoreError, SettingsError, OSError) as exc:
                if not has_failed:
                    log.warning(
                        "the active calibration is not copied to %s, and a start needs the "
                        "database: %s",
                        self._copies.folder,
                        exc,
                    )
                has_failed = True
                await asyncio.sleep(RETRY_S)  # the next shared state says again that it differs
            else:
                self._copied, has_failed = state, False


def _state(stored: StoredCalibration) -> SharedState:
    return SharedState(
        active_id=stored.row.id,
        is_chosen=stored.row.chosen_at is not None,
        alarms={
            each.application: Alarms(since=each.since, raised=tuple(json.loads(each.raised)))
            for each in stored.watches
        },
    )


def _log_damaged(exc: Exception) -> None:
    log.error("a copy of the active calibration is not used: %s", exc)
