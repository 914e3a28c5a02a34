"""Backup and restore of calibrations of the promise `same_answer`.

One decides only under the setup that it was made for, whatever the configuration beside which it is
restored. Its marks, an alarm among them, are a part of its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.errors import Conflict, StoreDamaged
from app.store.answer_calibrations import MARKS, decoded, mark_chosen, prune
from app.store.backup.file import RestoreResult, StoredAnswers
from app.store.engine import now
from app.store.tables import AnswerCalibrationRow as Row


def ids(session: Session) -> Mapping[str, bool]:
    """All ids, oldest first, and whether each decides for its application under its setup."""
    deciding = {calibration_id for _, calibration_id in _deciding(session).items()}
    found = session.scalars(select(Row.id).order_by(Row.created_at, Row.id))
    return {calibration_id: calibration_id in deciding for calibration_id in found}


def is_whole(row: Row) -> bool:
    """Whether its rows can be read."""
    try:
        decoded(row)
    except StoreDamaged:
        return False
    return True


def restore(
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
        found = session.get(Row, row.id)
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
            mark_chosen(found or row)
        (found or row).activated_at = activated_at if deciding is None else now()
        restored.activated.append(row.id)
    for application in applications:
        prune(session, application)
    kept = ids(session)
    restored.added.extend(each for each in added if each in kept)


def _deciding(session: Session) -> Mapping[tuple[str, str], str]:
    """(Setup, application) -> id of the calibration that decides: the one activated last."""
    activated = select(Row.answer_setup, Row.application, Row.id)
    activated = activated.where(Row.activated_at.is_not(None)).order_by(Row.activated_at)
    return {(setup, application): found for setup, application, found in session.execute(activated)}


def _unify(found: Row, saved: Row) -> None:
    """Take over saved marks. Raises Conflict where anything else differs."""
    if not is_whole(found) or _without_marks(found) != _without_marks(saved):
        raise Conflict(f"calibration {saved.id} is there with other content; nothing was changed")
    document = json.loads(found.document)
    document["evidence"] = json.loads(saved.document)["evidence"] | document["evidence"]
    found.document = json.dumps(document)


def _without_marks(row: Row) -> tuple[Any, ...]:
    document = json.loads(row.document)
    for mark in MARKS:
        document["evidence"].pop(mark, None)
    return row.created_at, row.answer_setup, row.application, document, row.arrays
