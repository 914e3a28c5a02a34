"""Stored calibrations: reads, writes, and which one is active; one transaction per change.

Whenever the process dies, the store opens with the old state or the new one.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from sqlalchemy import Engine, ExceptionContext, event, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from app.errors import (
    Conflict,
    NotFound,
    SettingsError,
    StoreDamaged,
    StoreError,
    StoreFileDamaged,
    StoreUnavailable,
)
from app.store import canaries, engine, schema
from app.store.calibration_record import CalibrationRecord
from app.store.calibration_rows import Summary, summarised, to_record, to_row
from app.store.canaries import Alarms, StoredCanary
from app.store.engine import ServerConnections, Transaction
from app.store.store_keys import KeyPurpose, all_keys, own_key
from app.store.tables import ActiveRow, CalibrationRow, WatchRow
from app.utc import now

log = logging.getLogger(__name__)

AWAY_S: Final = 1.0  # before a database that was away when the store was opened is tried again

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """The state that all gateways share: the active calibration, its alarms, and the canary."""

    active_id: str | None
    alarms: Mapping[str, Alarms]  # of that calibration, by application
    is_chosen: bool = False  # that calibration's figures had a part in its activation
    takes_writes: bool = True  # False: the database is a standby, or read-only
    canary: StoredCanary | None = None


class Store:
    """Opened once; every method is one transaction and may block: call it with :meth:`run`.

    Args:
        url: Of the database.
        may_be_away: Open it also while the database cannot be reached; its tables are then made, or
            their version checked, before they are first used.

    Raises:
        SettingsError: The URL cannot be opened or written.

    Attributes:
        is_damaged: An error said that the database itself is damaged. From then on no transaction
            begins: what is read could be wrong, and writing could destroy more.
    """

    def __init__(self, url: str, *, may_be_away: bool = False) -> None:
        self._engine: Engine = engine.open_engine(url)
        event.listen(self._engine, "handle_error", self._failed)
        self.is_damaged = False
        self._is_prepared = False
        self._retry_at = 0.0  # monotonic
        self._took_writes = True  # whether the database did when the shared state was read last
        try:
            self._prepare()
        except SQLAlchemyError as exc:
            if not (may_be_away and isinstance(engine.fault(exc, "used"), StoreUnavailable)):
                raise engine.unusable(url, exc) from exc
        finally:
            self._engine.dispose()  # the store begins without a connection
        self._connections = ServerConnections(self._engine)
        self._threads = ThreadPoolExecutor(engine.THREADS, thread_name_prefix="racer-store")
        # Threads of their own, so that long work does not delay the shared state.
        self._shared_state_threads = ThreadPoolExecutor(
            engine.SHARED_STATE_THREADS, thread_name_prefix="racer-store-state"
        )
        self.url = url
        self.is_shared = self._engine.dialect.name != "sqlite"  # other gateways may use it, too

    @property
    def is_away(self) -> bool:
        """Whether its database could not be reached since the store was opened."""
        return not self._is_prepared

    def close(self) -> None:
        """End the threads, and return the connections."""
        for threads in (self._shared_state_threads, self._threads):
            threads.shutdown(cancel_futures=True)
        self._engine.dispose()

    def cut(self) -> None:
        """Cut all connections to a server that does not answer; waiting threads get an error."""
        self._connections.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that uses the store on a thread: a locked store blocks no event loop."""
        call = partial(contextvars.copy_context().run, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def run_short(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a short, frequent function on the threads for the shared state."""
        call = partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._shared_state_threads, call)

    def add(
        self, record: CalibrationRecord, *, activate: bool, expected_active_id: str | None = None
    ) -> None:
        """Store a record, and activate it in the same transaction if requested.

        Raises:
            Conflict: ``expected_active_id`` is given and another one is active; an empty one
                expects none.
        """
        row = to_row(record)
        with self.transaction() as session:
            session.add(row)
            session.flush()
            if activate:
                set_active(session, record.id, record.artifact, expected_active_id)
                inherit_alarms(session, record)

    def activate(
        self,
        calibration_id: str,
        expected_active_id: str | None,
        artifact: str,
        share: float | None = None,
        *,
        is_chosen: bool = True,
    ) -> CalibrationRecord:
        """Activate a stored record for all requests or, as a canary, for a share; return it.

        Args:
            calibration_id: The record.
            expected_active_id: As :meth:`add` takes it.
            artifact: Digest of the artifact and of how candidates are served.
            share: Of the requests that it decides as a canary; None: all, and a canary ends.
            is_chosen: Its figures could be seen before, which marks it, unless it is active.

        Raises:
            NotFound: No such record.
            Conflict: ``expected_active_id`` is given and another one is active, the record was
                made with another artifact than the one with this digest, or it cannot be a canary.
        """
        with self.transaction() as session:
            engine.begin_writing(session)
            record = to_record(_find(session, calibration_id))
            if record.artifact != artifact:
                raise Conflict(
                    f"calibration {calibration_id} was made for another artifact or fleet; "
                    "upload its rows again to POST /calibrate"
                )
            of_artifact = select(ActiveRow.calibration_id).where(ActiveRow.artifact == artifact)
            if is_chosen and session.scalar(of_artifact) != calibration_id:
                mark_chosen(session, calibration_id)
                record = record.chosen()
            if share is not None:
                inherit_alarms(session, record)
                canaries.begin(session, calibration_id, artifact, share, expected_active_id)
            else:
                set_active(session, calibration_id, artifact, expected_active_id)
                inherit_alarms(session, record)
        return record

    def end_canary(self, artifact: str, canary: StoredCanary) -> bool:
        """As :func:`app.store.canaries.end_by_alarm`."""
        with self.transaction() as session:
            return canaries.end_by_alarm(session, artifact, canary)

    def shared_state(self, artifact: str) -> SharedState:
        """Return what is active for the artifact and fleet with this digest, and its alarms.

        Where the database takes no writes, the next transactions look for one that does, on new
        connections. So do those after the first read that finds writes again: a pooled session may
        be of the time without writes.
        """
        statement = (
            select(
                ActiveRow.calibration_id,
                CalibrationRow.chosen_at,
                WatchRow.application,
                WatchRow.since,
                WatchRow.raised,
            )
            .join(CalibrationRow, CalibrationRow.id == ActiveRow.calibration_id)
            .join(WatchRow, WatchRow.calibration_id == ActiveRow.calibration_id, isouter=True)
            .where(ActiveRow.artifact == artifact)
        )
        with self.transaction() as session:
            found: list[tuple[Any, ...]] = [tuple(row) for row in session.execute(statement)]
            canary = canaries.find(session, artifact)
            takes_writes = engine.takes_writes(session)
        if not (takes_writes and self._took_writes):
            self._connections.replace()
        self._took_writes = takes_writes
        alarms = {
            application: Alarms(since=since, raised=tuple(json.loads(raised)))
            for _, _, application, since, raised in found
            if application is not None  # an outer join: it has no drift state yet
        }
        return SharedState(
            active_id=found[0][0] if found else None,
            is_chosen=bool(found) and found[0][1] is not None,
            alarms=alarms,
            takes_writes=takes_writes,
            canary=canary,
        )

    def record(self, calibration_id: str) -> CalibrationRecord:
        """One record with its rows. Raises :class:`NotFound`."""
        with self.transaction() as session:
            return to_record(_find(session, calibration_id))

    def ids(self, artifact: str) -> list[str]:
        """The records that were made for an artifact and fleet with this digest."""
        with self.transaction() as session:
            made = CalibrationRow.artifact == artifact
            return list(session.scalars(select(CalibrationRow.id).where(made)))

    def ids_scored_by(self, artifact: str, inputs: Mapping[str, str]) -> list[str]:
        """Those of :meth:`ids` whose rows were scored as queries are now.

        Args:
            artifact: Digest of the loaded artifact and the fleet.
            inputs: What decides its scores beside it: ``Artifact.inputs``.
        """
        columns = select(CalibrationRow.id, CalibrationRow.document)
        with self.transaction() as session:
            found = session.execute(columns.where(CalibrationRow.artifact == artifact)).all()
        return [
            calibration_id
            for calibration_id, document in found
            if all(each["scored_by"] == inputs for each in json.loads(document)["populations"])
        ]

    def others(self, artifact: str) -> str | None:
        """The newest record that decides for another artifact or fleet; None: there is none."""
        newest = (
            select(CalibrationRow.id)
            .join(ActiveRow, ActiveRow.calibration_id == CalibrationRow.id)
            .where(ActiveRow.artifact != artifact)
            .order_by(CalibrationRow.created_at.desc())
            .limit(1)
        )
        with self.transaction() as session:
            return session.scalar(newest)

    def summaries(self) -> list[Summary]:
        """All records, newest first, without those whose document is damaged."""
        with self.transaction() as session:
            active = set(session.scalars(select(ActiveRow.calibration_id)))
            newest_first = CalibrationRow.created_at.desc(), CalibrationRow.id
            columns = select(
                CalibrationRow.id,
                CalibrationRow.created_at,
                CalibrationRow.artifact,
                CalibrationRow.document,
                CalibrationRow.chosen_at,
            ).order_by(*newest_first)
            found: list[Summary] = []
            for row in session.execute(columns):
                try:
                    found.append(summarised(row, active=row.id in active))
                except StoreDamaged as exc:
                    log.warning("%s", exc)
            return found

    def summary(self, calibration_id: str) -> Summary:
        """One record without its rows. Raises :class:`NotFound`, :class:`StoreDamaged`."""
        with self.transaction() as session:
            row = _find(session, calibration_id)
            active = session.get(ActiveRow, row.artifact)
            return summarised(row, active=active is not None and active.calibration_id == row.id)

    def key(self, purpose: KeyPurpose) -> bytes:
        """As :func:`own_key`."""
        with self.transaction() as session:
            return own_key(session, purpose)

    def keys(self, purpose: KeyPurpose) -> tuple[bytes, ...]:
        """As :func:`all_keys`."""
        with self.transaction() as session:
            return all_keys(session, purpose)

    def transaction(self) -> Transaction:
        """A session that is committed on success; for tables that others read and write.

        Raises:
            StoreError: The database is damaged; or it was away when the store was opened, and still
                is, or its tables are of another version.
        """
        if self.is_damaged:
            raise StoreFileDamaged(f"the store cannot be used: {engine.DAMAGED}")
        if not self._is_prepared:
            self._prepare_late()
        return Transaction(self._engine)

    def _failed(self, context: ExceptionContext) -> None:
        if not self.is_damaged and engine.is_damage(context.original_exception):
            self.is_damaged = True
            if self._is_prepared:  # else the caller is told
                log.error("the store is not used any more: %s", engine.DAMAGED)

    def _prepare_late(self) -> None:
        if time.monotonic() < self._retry_at:
            raise StoreUnavailable("the store's database could not be reached a moment ago")
        try:
            self._prepare()
        except SQLAlchemyError as exc:
            # All that a start reads would wait for a connection, one after the other.
            self._retry_at = time.monotonic() + AWAY_S
            raise engine.fault(exc, "used") from exc
        except SettingsError as exc:
            raise StoreError(str(exc)) from exc

    def _prepare(self) -> None:
        schema.prepare(self._engine)
        self._is_prepared = True


def _find(session: Session, calibration_id: str) -> CalibrationRow:
    row = session.get(CalibrationRow, calibration_id)
    if row is None:
        raise NotFound(f"no calibration {calibration_id[:128]!r}", code="calibration_not_found")
    return row


# Activation: the calibration that decides for an artifact and fleet, set by comparison.


def set_active(session: Session, calibration_id: str, artifact: str, expected: str | None) -> None:
    """Compare and set: the comparison is part of the UPDATE, so that two cannot both win.

    It ends a canary. An empty ``expected`` finds no row to update, and then wins only if there is
    none.
    """
    engine.notify(session)
    statement = update(ActiveRow).where(ActiveRow.artifact == artifact)
    if expected is not None:
        statement = statement.where(ActiveRow.calibration_id == expected)
    changed = cast(Any, session.execute(statement.values(calibration_id=calibration_id))).rowcount
    if changed:
        canaries.end(session, artifact)
        return
    if expected:
        raise Conflict(f"calibration {expected[:128]} is not the active one; nothing was changed")
    session.add(ActiveRow(artifact=artifact, calibration_id=calibration_id))
    try:
        session.flush()
    except IntegrityError as exc:  # another process activated the first one
        raise Conflict("another calibration was activated meanwhile; nothing was changed") from exc


def mark_chosen(session: Session, calibration_id: str) -> None:
    """Mark a calibration whose figures had a part in its activation; an earlier mark stays."""
    unmarked = (CalibrationRow.id == calibration_id, CalibrationRow.chosen_at.is_(None))
    session.execute(update(CalibrationRow).where(*unmarked).values(chosen_at=now()))


def inherit_alarms(session: Session, record: CalibrationRecord) -> None:
    """Continue the drift alarms of the applications whose rows the record took over.

    Their rows are the same, so that an alarm or evidence of drift is not forgotten.
    """
    replaced = record.evidence.get("replaced", {})
    before = select(WatchRow).where(
        WatchRow.calibration_id == replaced.get("calibration_id"),
        WatchRow.application != replaced.get("application"),
    )
    for watch in session.scalars(before):
        taken_over = {
            "calibration_id": record.id,
            "application": watch.application,
            "since": watch.since,
            "state": watch.state,
            "raised": watch.raised,
        }
        session.execute(
            engine.insert_into(session, WatchRow).values(taken_over).on_conflict_do_nothing()
        )
