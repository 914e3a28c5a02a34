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
from app.monitoring.drift.sequence import JudgedSequence
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
        sequence: The tests of judged decisions, up to the first that may still get a label.
    """

    state: DriftState
    since: str
    session: Session
    sequence: JudgedSequence


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
            found = [(row, _read(row)) for row in session.scalars(of_it)]
            return {
                row.application: Alarms(since=row.since, raised=tuple(read[0].raised))
                for row, read in found
                if read is not None
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
            read = _read(row)
            if read is None:
                since, state = now(), new()
                read = state, JudgedSequence.begin(state, since)
            else:
                since = row.since
            stored = StoredDriftState(state=read[0], since=since, session=session, sequence=read[1])
            yield stored
            columns = _columns(stored.state, stored.since, stored.sequence)
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
        **_columns(state, now(), JudgedSequence.begin(state)),
    }
    session.execute(insert_into(session, WatchRow).values(row).on_conflict_do_nothing())
    inserted = _locked(session, calibration_id, application)
    assert inserted is not None
    return inserted


def _columns(state: DriftState, since: str, sequence: JudgedSequence) -> dict[str, str]:
    document = state.to_state() | {"sequence": sequence.to_state()}
    return {
        "since": since,
        "state": dump_json(document).decode(),
        "raised": dump_json(state.raised).decode(),
    }


def _read(row: WatchRow) -> tuple[DriftState, JudgedSequence] | None:
    try:
        document = orjson.loads(row.state)
        state = DriftState.from_state(document)
        return state, JudgedSequence.from_state(document["sequence"])
    except (KeyError, TypeError, ValueError, InputError) as exc:
        log.warning("the drift alarms of calibration %s begin again: %s", row.calibration_id, exc)
        return None
