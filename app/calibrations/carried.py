"""Carried calibration: the one in an artifact's folder, taken over by a store that lacks it.

The store decides. A carried calibration is added once, and becomes active where none is, or where
the active one was made before it, whatever the figures of the two are. After that it is a
calibration like any other: uploads and roll-backs stay, whatever the artifact carries.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import select

from app.calibrations.application_upload import uploaded_evidence
from app.errors import Conflict, StoreDamaged
from app.store import Store
from app.store.backup.calibrations import restore
from app.store.backup.file import Backup, StoredCalibration
from app.store.calibration_record import CalibrationRecord
from app.store.calibration_rows import to_record
from app.store.tables import SeenRowsRow
from racer_core.errors import ArtifactError, InputError

log = logging.getLogger(__name__)

FILE: Final = "calibration.zip"  # beside the files of the artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedCalibration:
    """What an artifact carries, with every digest verified.

    Attributes:
        path: The file.
        setup: Digest of the artifact and of how its candidates are served.
        record: The calibration; None: the file only says which rows were shown.
        seen_rows: Digests of the rows that were shown.
    """

    path: Path
    setup: str
    record: CalibrationRecord | None
    seen_rows: frozenset[str]


def read_carried(folder: Path, setup: str, pool: Sequence[str]) -> CarriedCalibration | None:
    """What the artifact in a folder carries; None if it carries nothing. Blocks.

    Args:
        folder: The artifact.
        setup: Digest of the artifact and of how its candidates are served.
        pool: The configured candidates in order.

    Raises:
        ArtifactError: It is damaged, or was made for another artifact or other candidates.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with Backup(path) as backup:
            manifest = backup.manifest
            if len(manifest.calibrations) > 1 or manifest.answer_calibrations or manifest.keys:
                raise ArtifactError(
                    f"{path} is a backup of a whole store: write what an artifact carries with "
                    "`racer backup FILE --active`"
                )
            stored = next(backup.calibrations(), None)
            seen_rows = frozenset(each.digest for each in backup.seen_rows())
        record = None if stored is None else _record_for(stored, setup, pool)
    except (InputError, StoreDamaged) as exc:
        raise ArtifactError(f"{exc}: {_cure(path)}") from exc
    return CarriedCalibration(path=path, setup=setup, record=record, seen_rows=seen_rows)


def take_over(store: Store, carried: CarriedCalibration) -> None:
    """Add a carried calibration to a store that lacks it, and activate it by the rule above.

    Blocks.

    Raises:
        StoreError: The store cannot be used.
        ArtifactError: The store has other content under the same id.
    """
    if _is_known(store, carried):
        return
    record = carried.record
    try:
        with Backup(carried.path) as backup:
            done = restore(store, backup, activate=False)
        if record is not None and record.id in done.added and record.id in done.left:
            _replace_active(store, record)
    except Conflict as exc:
        raise ArtifactError(f"{carried.path}: {exc}") from exc
    if record is not None and record.id in done.activated:
        log.warning("calibration %s, which the artifact carries, is active now", record.id)


def _is_known(store: Store, carried: CarriedCalibration) -> bool:
    """Whether the store has all of it, so that nothing is written."""
    record = carried.record
    if record is not None:
        has_active = store.shared_state(carried.setup).active_id is not None
        if not has_active or record.id not in store.ids(carried.setup):
            return False
    with store.transaction() as session:
        return carried.seen_rows <= set(session.scalars(select(SeenRowsRow.digest)))


def _replace_active(store: Store, record: CalibrationRecord) -> None:
    """Activate a carried calibration over an earlier one."""
    active_id = store.shared_state(record.artifact).active_id
    assert active_id is not None  # once one is active, one always is
    try:
        active = store.record(active_id)
    except StoreDamaged as exc:
        log.error("%s; the calibration %s of the artifact is stored", exc, record.id)
        return
    if record.created_at <= active.created_at:
        log.info("calibration %s of the artifact is older than the active one", record.id)
        return
    if not uploaded_evidence(record)["feasible"]:
        log.warning("calibration %s of the artifact has too few rows for its alpha", record.id)
        return
    try:
        store.activate(record.id, active_id, record.artifact, is_chosen=False)  # by its time alone
    except Conflict as exc:  # another gateway activated one meanwhile
        log.info("calibration %s of the artifact is not activated: %s", record.id, exc)
    else:
        log.warning("calibration %s of the artifact replaces %s", record.id, active_id)


def _record_for(stored: StoredCalibration, setup: str, pool: Sequence[str]) -> CalibrationRecord:
    """The stored record. Raises InputError if it is not of this artifact and these candidates."""
    row = stored.row
    labelled = json.loads(row.document).get("pool")
    if labelled != list(pool):
        raise InputError(
            f"calibration {row.id} was made for the candidates {labelled}, the configuration has "
            f"{list(pool)}"
        )
    if row.artifact != setup:
        raise InputError(
            f"calibration {row.id} was made with another artifact, or with candidates that were "
            "served otherwise (their `model` or `parameters`)"
        )
    return to_record(row)


def _cure(path: Path) -> str:
    command = f"racer calibrate ROWS --artifact {path.parent}"
    return f"write it again with `{command}`, or remove {path.name}"
