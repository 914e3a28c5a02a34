"""Drift store: the drift state of each application, shared and updated by all gateways."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.json_output import dump_json
from app.store import Alarms, Store, now
from app.store.engine import begin_writing, insert_into, notify
from app.store.tables import WatchRow
from racer_core.calibration.monitoring import DriftState
from racer_core.errors import InputError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoredDriftState:
    """A drift state within the transaction that locks it; assign to its fields to change it.

    Attributes:
        state: The tests.
        since: When they began; UTC, ISO 8601.
        session: The transaction.
    """

    state: DriftState
    since: str
    session: Session


class DriftStore:
    """Every method blocks and raises :class:`app.errors.StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def alarms(self, calibration_id: str) -> dict[str, Alarms]:
        """The alarms of a calibration by application.

        Does not wait for a transaction that updates them.
        """
        of_it = select(WatchRow).where(WatchRow.calibration_id == calibration_id)
        with self._store.transaction() as session:
            states = [(row, _read(row)) for row in session.scalars(of_it)]
            return {
                row.application: Alarms(since=row.since, raised=tuple(state.raised))
                for row, state in states
                if state is not None
            }

    @contextmanager
    def updating(
        self, calibration_id: str, application: str, new: Callable[[], DriftState]
    ) -> Generator[StoredDriftState]:
        """Lock a drift state for the block, and write it at the end.

        Args:
            calibration_id: The calibration.
            application: The application; empty for a calibration without applications.
            new: Makes a state if none is stored, or the stored one cannot be read.
        """
        with self._store.transaction() as session:
            begin_writing(session)
            key = (calibration_id, application)
            row = _locked(session, *key) or _insert(session, *key, new())
            state = _read(row)
            since = now() if state is None else row.since
            stored = StoredDriftState(state=state or new(), since=since, session=session)
            yield stored
            columns = _columns(stored.state, stored.since)
            if (row.since, row.raised) != (columns["since"], columns["raised"]):
                notify(session)
            for name, value in columns.items():
                setattr(row, name, value)


def _locked(session: Session, calibration_id: str, application: str) -> WatchRow | None:
    of_it = WatchRow.calibration_id == calibration_id, WatchRow.application == application
    return session.scalar(select(WatchRow).where(*of_it).with_for_update())


def _insert(session: Session, calibration_id: str, application: str, state: DriftState) -> WatchRow:
    """A new row, unless another gateway inserted one at the same moment."""
    row = {
        "calibration_id": calibration_id,
        "application": application,
        **_columns(state, now()),
    }
    session.execute(insert_into(session, WatchRow).values(row).on_conflict_do_nothing())
    inserted = _locked(session, calibration_id, application)
    assert inserted is not None
    return inserted


def _columns(state: DriftState, since: str) -> dict[str, str]:
    return {
        "since": since,
        "state": dump_json(state.to_state()).decode(),
        "raised": dump_json(state.raised).decode(),
    }


def _read(row: WatchRow) -> DriftState | None:
    try:
        return DriftState.from_state(orjson.loads(row.state))
    except (ValueError, InputError) as exc:
        log.warning("the drift alarms of calibration %s begin again: %s", row.calibration_id, exc)
        return None
