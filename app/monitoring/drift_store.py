"""The watches as they are kept: one for each calibration, which every gateway feeds in its turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.json_output import dumped
from app.store import Store, now
from app.store.engine import begin_writing, insert_into, notify
from app.store.tables import WatchRow
from racer_core.calibration.monitoring import DriftState
from racer_core.errors import InputError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoredDriftState:
    """A watch and when it began, while nobody else may change it.

    Attributes:
        session: The transaction in which it is changed.
    """

    watch: DriftState
    since: str
    session: Session


class DriftStore:
    """Every method blocks and raises :class:`app.errors.StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def told(self, calibration_id: str) -> tuple[str, tuple[str, ...]] | None:
        """When the watch of a calibration began, and what alarmed; None: it is still to begin.

        Waits for nobody who changes it.
        """
        with self._store.transaction() as session:
            row = session.get(WatchRow, calibration_id)
            watch = None if row is None else _read(row)
            return None if row is None or watch is None else (row.since, tuple(watch.raised))

    @contextmanager
    def changing(
        self, calibration_id: str, begin: Callable[[], DriftState]
    ) -> Generator[StoredDriftState]:
        """The watch of a calibration, kept as it then is; of several callers one at a time.

        Args:
            calibration_id: Whose.
            begin: Makes a new one where none is kept, or what is kept cannot be read.
        """
        with self._store.transaction() as session:
            begin_writing(session)
            row = _locked(session, calibration_id) or _begun(session, calibration_id, begin())
            watch = _read(row)
            since = now() if watch is None else row.since
            kept = StoredDriftState(watch=watch or begin(), since=since, session=session)
            yield kept
            said = _said(kept.watch, kept.since)
            if (row.since, row.raised) != (said["since"], said["raised"]):
                notify(session)
            for name, value in said.items():
                setattr(row, name, value)


def _locked(session: Session, calibration_id: str) -> WatchRow | None:
    found = select(WatchRow).where(WatchRow.calibration_id == calibration_id)
    return session.scalar(found.with_for_update())


def _begun(session: Session, calibration_id: str, watch: DriftState) -> WatchRow:
    """A new one, unless another gateway began it at the same moment."""
    row = {"calibration_id": calibration_id, **_said(watch, now())}
    session.execute(insert_into(session, WatchRow).values(row).on_conflict_do_nothing())
    begun = _locked(session, calibration_id)
    assert begun is not None
    return begun


def _said(watch: DriftState, since: str) -> dict[str, str]:
    return {
        "since": since,
        "state": dumped(watch.to_state()).decode(),
        "raised": dumped(watch.raised).decode(),
    }


def _read(row: WatchRow) -> DriftState | None:
    try:
        return DriftState.from_state(orjson.loads(row.state))
    except (ValueError, InputError) as exc:
        log.warning("the watch of calibration %s begins again: %s", row.calibration_id, exc)
        return None
