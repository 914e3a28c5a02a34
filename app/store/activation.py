"""Activation: the calibration that decides for an artifact and fleet, set by comparison."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.errors import Conflict
from app.store import canaries, engine
from app.store.calibration_record import CalibrationRecord
from app.store.tables import ActiveRow, WatchRow


def activate(session: Session, calibration_id: str, artifact: str, expected: str | None) -> None:
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
