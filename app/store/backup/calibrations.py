"""Backup and restore of calibrations, with their alarms and which of them are active.

Beside the backup of a whole store there are two of its active calibration alone: the one that an
artifact carries, and a gateway's own copy, from which it starts while its database is away.
Decisions and feedback are not in a backup. A record never changes once it is stored, so gateways
may run: which calibrations are active is that of one moment, each calibration comes with the alarms
of one moment, and what is stored after the beginning is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.errors import Conflict, StoreDamaged
from app.settings.access import Key
from app.store import KeyPurpose, Store, canaries
from app.store.answer_calibrations import MARKS, decoded, prune
from app.store.answer_calibrations import mark_chosen as mark_answers_chosen
from app.store.backup.file import (
    Backup,
    Manifest,
    StoredAnswers,
    StoredCalibration,
    Writer,
    writing,
)
from app.store.calibration_rows import is_whole
from app.store.calibrations import mark_chosen
from app.store.engine import insert_into, notify
from app.store.schema import lock_schema
from app.store.store_keys import take_over_keys
from app.store.tables import (
    ActiveRow,
    AnswerCalibrationRow,
    CalibrationRow,
    SeenRowsRow,
    WatchRow,
)
from app.utc import now


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupResult:
    """The result of a backup."""

    manifest: Manifest
    damaged: tuple[str, ...]  # calibrations whose digests did not match: they are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What a restore did, by ids of calibrations of either kind."""

    added: list[str] = field(default_factory=list[str])
    there: list[str] = field(default_factory=list[str])
    activated: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])  # active then; another one is now


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
        answer_ids = _answer_ids(session)
    damaged: list[str] = []
    with writing(path) as backup:
        for calibration_id in ids:
            stored = _stored(store, calibration_id, is_active=calibration_id in active)
            if is_whole(stored.row):
                backup.add(stored)
            else:
                damaged.append(calibration_id)
        for calibration_id, is_active in answer_ids.items():
            with store.transaction() as session:
                found = session.get_one(AnswerCalibrationRow, calibration_id)
            if _are_whole(found):
                backup.add_answers(StoredAnswers(row=found, active=is_active))
            else:
                damaged.append(calibration_id)
        manifest = backup.finish(keys)
    return BackupResult(manifest=manifest, damaged=tuple(damaged))


def save_carried(store: Store, setup: str, path: Path) -> Manifest:
    """Write what an artifact carries: its active calibration, and which rows the store has shown.

    Every user may read the file, as all files of an artifact.

    Args:
        store: The store.
        setup: Digest of the artifact and of how candidates are served.
        path: The file; it holds no calibration if none is active.

    Raises:
        StoreError: The store cannot be read, or the calibration is damaged.
        SettingsError: The file cannot be written.
    """
    with writing(path, mode=0o644) as backup:
        active_id = store.shared_state(setup).active_id
        if active_id is not None:
            _add_whole(backup, store, active_id)
        with store.transaction() as session:
            digests = list(
                session.scalars(select(SeenRowsRow.digest).order_by(SeenRowsRow.seen_at))
            )
        for digest in digests:
            with store.transaction() as session:
                if (row := session.get(SeenRowsRow, digest)) is not None:  # else forgotten since
                    backup.add_seen_rows(row)
        return backup.finish((), seen_rows_keys=store.keys(KeyPurpose.SEEN_ROWS))


def save_copy(store: Store, calibration_id: str, path: Path) -> None:
    """Write what a gateway starts with while its database is away; raises as `save_carried`."""
    with writing(path) as backup:
        _add_whole(backup, store, calibration_id)
        backup.finish((), samples_key=store.key(KeyPurpose.SAMPLES))


def _add_whole(backup: Writer, store: Store, calibration_id: str) -> None:
    stored = _stored(store, calibration_id, is_active=True)
    if not is_whole(stored.row):
        raise StoreDamaged(f"calibration {calibration_id} is damaged: its digest does not match")
    backup.add(stored)


def _stored(store: Store, calibration_id: str, *, is_active: bool) -> StoredCalibration:
    with store.transaction() as session:
        row = session.get_one(CalibrationRow, calibration_id)
        of_it = select(WatchRow).where(WatchRow.calibration_id == calibration_id)
        watches = tuple(session.scalars(of_it.order_by(WatchRow.application)))
    return StoredCalibration(row=row, active=is_active, watches=watches)


def restore(store: Store, backup: Backup, *, activate: bool) -> RestoreResult:
    """Add what the store lacks, all or nothing; what is there stays.

    Args:
        store: Where to.
        backup: What was saved.
        activate: Let what was active decide also where another calibration does now.

    Raises:
        InputError: The backup is damaged.
        Conflict: A calibration is there with other content.
        StoreError: The store cannot be used.
    """
    for _ in chain(backup.calibrations(), backup.answers(), backup.seen_rows()):
        pass  # verified, all of them, before anything is written
    restored = RestoreResult()
    with store.transaction() as session:
        lock_schema(session.connection())  # two gateways that start take one artifact's over
        for stored in backup.calibrations():
            found = _find(session, stored.row)
            if found is not None:
                restored.there.append(stored.row.id)
            else:
                session.add(stored.row)
                session.flush()
                restored.added.append(stored.row.id)
            for watch in stored.watches:
                if session.get(WatchRow, (watch.calibration_id, watch.application)) is None:
                    session.add(watch)
            if stored.active:
                _decide(session, stored.row, restored, activate=activate)
        _restore_answers(session, backup.answers(), restored, activate=activate)
        _restore_seen_rows(session, backup)
        notify(session)
    return restored


def _find(session: Session, row: CalibrationRow) -> CalibrationRow | None:
    found = session.get(CalibrationRow, row.id, with_for_update={"key_share": True})
    if found is not None and not (is_whole(found) and found.digest == row.digest):
        raise Conflict(f"calibration {row.id} is there with other content; nothing was changed")
    return found


def _restore_seen_rows(session: Session, backup: Backup) -> None:
    """Remember which rows were shown elsewhere; the first sight of rows stays."""
    keys = [bytes.fromhex(each) for each in backup.manifest.seen_rows_keys]
    take_over_keys(session, KeyPurpose.SEEN_ROWS, keys)
    for row in backup.seen_rows():
        seen = {
            "digest": row.digest,
            "seen_at": row.seen_at,
            "terms": row.terms,
            "sketch": row.sketch,
        }
        session.execute(insert_into(session, SeenRowsRow).values(seen).on_conflict_do_nothing())


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
        mark_chosen(session, row.id)
        active.calibration_id = row.id
        canaries.end(session, row.artifact)
    else:
        restored.left.append(row.id)
        return
    restored.activated.append(row.id)


# Calibrations of the promise `same_answer`. One decides only under the setup that it was made for,
# whatever the configuration beside which it is restored. Its marks, an alarm among them, are a part
# of its evidence.


def _answer_ids(session: Session) -> Mapping[str, bool]:
    """All ids, oldest first, and whether each decides for its application under its setup."""
    deciding = {calibration_id for _, calibration_id in _deciding(session).items()}
    found = session.scalars(
        select(AnswerCalibrationRow.id).order_by(
            AnswerCalibrationRow.created_at, AnswerCalibrationRow.id
        )
    )
    return {calibration_id: calibration_id in deciding for calibration_id in found}


def _are_whole(row: AnswerCalibrationRow) -> bool:
    """Whether its rows can be read."""
    try:
        decoded(row)
    except StoreDamaged:
        return False
    return True


def _restore_answers(
    session: Session, saved: Iterable[StoredAnswers], restored: RestoreResult, *, activate: bool
) -> None:
    """Add what the store lacks; what is there stays, but for marks that it lacks.

    Of an application's records in both, the old ones are deleted that nothing needs.
    What decided then does so again where none decides now.

    Args:
        session: The transaction.
        saved: What was saved.
        restored: Takes what was done.
        activate: Let it decide also where another one does now.

    Raises:
        Conflict: A calibration is there with other content.
    """
    before = _deciding(session)
    added: list[str] = []
    applications: set[str] = set()
    for each in saved:
        row, activated_at = each.row, each.row.activated_at
        deciding = before.get((row.answer_setup, row.application))
        found = session.get(AnswerCalibrationRow, row.id)
        if found is None:
            if deciding is not None:  # a later time would make it decide
                row.activated_at = None
            session.add(row)
            added.append(row.id)
            applications.add(row.application)
        else:
            _unify(found, row)
            restored.there.append(row.id)
        if not each.active or deciding == row.id:
            continue
        if deciding is not None and not activate:
            restored.left.append(row.id)
            continue
        if deciding is not None:
            mark_answers_chosen(found or row)
        (found or row).activated_at = activated_at if deciding is None else now()
        restored.activated.append(row.id)
    for application in applications:
        prune(session, application)
    kept = _answer_ids(session)
    restored.added.extend(each for each in added if each in kept)


def _deciding(session: Session) -> Mapping[tuple[str, str], str]:
    """(Setup, application) -> id of the calibration that decides: the one activated last."""
    activated = select(
        AnswerCalibrationRow.answer_setup, AnswerCalibrationRow.application, AnswerCalibrationRow.id
    )
    activated = activated.where(AnswerCalibrationRow.activated_at.is_not(None)).order_by(
        AnswerCalibrationRow.activated_at
    )
    return {(setup, application): found for setup, application, found in session.execute(activated)}


def _unify(found: AnswerCalibrationRow, saved: AnswerCalibrationRow) -> None:
    """Take over saved marks. Raises Conflict where anything else differs."""
    if not _are_whole(found) or _without_marks(found) != _without_marks(saved):
        raise Conflict(f"calibration {saved.id} is there with other content; nothing was changed")
    document = json.loads(found.document)
    document["evidence"] = json.loads(saved.document)["evidence"] | document["evidence"]
    found.document = json.dumps(document)


def _without_marks(row: AnswerCalibrationRow) -> tuple[Any, ...]:
    document = json.loads(row.document)
    for mark in MARKS:
        document["evidence"].pop(mark, None)
    return row.created_at, row.answer_setup, row.application, document, row.arrays
