"""Backup and restore of calibrations, with their alarms and which of them are active.

Decisions and feedback are not in a backup. A record never changes once it is stored, except that
one of version 0.1 gets the digests of its conditions: at the first start of this version, or from a
backup. A backup does not say what its rows were sent, so a record of version 0.1 that is restored
without digests certifies nothing. So gateways may run:
which calibrations are active is that of one moment, each calibration comes with the alarms of one
moment, and what is stored after the beginning is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.errors import Conflict
from app.settings.access import Key
from app.store import Store, canaries
from app.store.backup import answers
from app.store.backup.file import Backup, Manifest, StoredAnswers, StoredCalibration, writing
from app.store.backup.result import RestoreResult
from app.store.calibrations import forgo_digests, is_same, is_whole, unify_digests
from app.store.engine import begin_writing, notify
from app.store.tables import ActiveRow, AnswerCalibrationRow, CalibrationRow, WatchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupResult:
    """The result of a backup."""

    manifest: Manifest
    damaged: tuple[str, ...]  # calibrations whose digests did not match: they are left out


def save(store: Store, keys: tuple[Key, ...], path: Path) -> BackupResult:
    """Write a backup.

    Raises:
        StoreError: The store cannot be read; there is no backup then.
        SettingsError: The file cannot be written.
    """
    with store.transaction() as session:  # what is active was stored before
        active = set(session.scalars(select(ActiveRow.calibration_id)))
        oldest_first = CalibrationRow.created_at, CalibrationRow.id
        ids = list(session.scalars(select(CalibrationRow.id).order_by(*oldest_first)))
        answer_ids = answers.ids(session)
    damaged: list[str] = []
    with writing(path) as backup:
        for calibration_id in ids:
            with store.transaction() as session:
                row = session.get_one(CalibrationRow, calibration_id)
                of_it = select(WatchRow).where(WatchRow.calibration_id == calibration_id)
                watches = tuple(session.scalars(of_it.order_by(WatchRow.application)))
            if is_whole(row):
                is_active = calibration_id in active
                backup.add(StoredCalibration(row=row, active=is_active, watches=watches))
            else:
                damaged.append(calibration_id)
        for calibration_id, is_active in answer_ids.items():
            with store.transaction() as session:
                found = session.get_one(AnswerCalibrationRow, calibration_id)
            if answers.is_whole(found):
                backup.add_answers(StoredAnswers(row=found, active=is_active))
            else:
                damaged.append(calibration_id)
        manifest = backup.finish(keys)
    return BackupResult(manifest=manifest, damaged=tuple(damaged))


def restore(store: Store, backup: Backup, *, activate: bool) -> RestoreResult:
    """Add what the store lacks, all or nothing; what is there stays, but for missing digests.

    Args:
        store: Where to.
        backup: What was saved.
        activate: Let what was active decide also where another calibration does now.

    Raises:
        InputError: The backup is damaged.
        Conflict: A calibration is there with other content.
        StoreError: The store cannot be used.
    """
    for _ in chain(backup.calibrations(), backup.answers()):
        pass  # verified, all of them, before anything is written
    restored = RestoreResult()
    with store.transaction() as session:
        begin_writing(session)
        for stored in backup.calibrations():
            found = _find(session, stored.row)
            if found is not None:
                unify_digests(found, stored.row)
                restored.there.append(stored.row.id)
            else:
                forgo_digests(stored.row)
                session.add(stored.row)
                session.flush()
                restored.added.append(stored.row.id)
            for watch in stored.watches:
                if session.get(WatchRow, (watch.calibration_id, watch.application)) is None:
                    session.add(watch)
            if stored.active:
                _decide(session, stored.row, restored, activate=activate)
        answers.restore(session, backup.answers(), restored, activate=activate)
        notify(session)
    return restored


def _find(session: Session, row: CalibrationRow) -> CalibrationRow | None:
    found = session.get(CalibrationRow, row.id, with_for_update={"key_share": True})
    if found is not None and not (is_whole(found) and is_same(found, row)):
        raise Conflict(f"calibration {row.id} is there with other content; nothing was changed")
    return found


def _decide(
    session: Session, row: CalibrationRow, restored: RestoreResult, *, activate: bool
) -> None:
    """Make a calibration the active one where none is, or where it is asked for."""
    active = session.get(ActiveRow, row.artifact, with_for_update=True)
    if active is None:
        session.add(ActiveRow(artifact=row.artifact, calibration_id=row.id))
    elif active.calibration_id == row.id:
        return
    elif activate:
        active.calibration_id = row.id
        canaries.end(session, row.artifact)
    else:
        restored.left.append(row.id)
        return
    restored.activated.append(row.id)
