"""Canaries: the calibration that decides a share of the requests beside the active one, if any.

There is one for each artifact and fleet at most. An activation ends it, also that by its own test.
One that an alarm has ended stays stored, so that an operator sees why, until the next activation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.errors import Conflict
from app.store import engine
from app.store.tables import ActiveRow, CanaryRow, WatchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """The drift alarms of one application, or of a calibration without applications."""

    since: str  # when their tests began
    raised: tuple[str, ...]  # the streams that alarmed


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTerms:
    """What an operator asks of a canary, as :class:`StoredCanary` has it."""

    share: float
    promote_below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCanary:
    """A canary as all gateways share it.

    Attributes:
        calibration_id: The calibration.
        share: Of the requests that it decides.
        since: When it began: UTC, ISO 8601.
        ended: Why an alarm has ended it; None: it decides.
        promote_below: The realised risk below which its test promotes it; None: it has no test.
        alarms: Its drift alarms, by application.
    """

    calibration_id: str
    share: float
    since: str
    ended: str | None
    promote_below: float | None
    alarms: Mapping[str, Alarms]

    @property
    def alarm(self) -> str | None:
        """What is raised, in words; None: no alarm."""
        found = [
            f"{', '.join(each.raised)}{f' of {application}' if application else ''}"
            for application, each in sorted(self.alarms.items())
            if each.raised
        ]
        return "; ".join(found) or None


def find(session: Session, artifact: str) -> StoredCanary | None:
    """The canary of an artifact and fleet, whether it decides or has ended."""
    row = session.get(CanaryRow, artifact)
    if row is None:
        return None
    return StoredCanary(
        calibration_id=row.calibration_id,
        share=row.share,
        since=row.since,
        ended=row.ended,
        promote_below=row.promote_below,
        alarms=_alarms(session, row.calibration_id),
    )


def begin(
    session: Session, calibration_id: str, artifact: str, terms: CanaryTerms, expected: str | None
) -> None:
    """Let a calibration decide a share of the requests; one that does already gets other terms.

    Its test stays where the terms name none.

    Raises:
        Conflict: None is active, this one is, another one than expected is, or it has alarms that
            would end it at once.
    """
    engine.notify(session)
    # Locked, so that no activation comes between.
    active = session.get(ActiveRow, artifact, with_for_update=True)
    if active is None:
        raise Conflict(
            "no calibration is active that the rest could have: activate without `share`"
        )
    if active.calibration_id == calibration_id:
        raise Conflict(
            f"calibration {calibration_id} is the active one: without `share` it decides all again"
        )
    if expected is not None and active.calibration_id != expected:
        raise Conflict(f"calibration {expected[:128]} is not the active one; nothing was changed")
    if any(each.raised for each in _alarms(session, calibration_id).values()):
        raise Conflict(
            f"calibration {calibration_id} has drift alarms, which would end a canary at once: "
            "upload newer rows to POST /calibrate"
        )
    row = session.get(CanaryRow, artifact)
    if row is None:
        row = CanaryRow(artifact=artifact)
        session.add(row)
    if row.calibration_id != calibration_id or row.ended is not None:
        row.calibration_id, row.since, row.ended = calibration_id, engine.now(), None
        row.promote_below = None
    row.share = terms.share
    if terms.promote_below is not None:
        row.promote_below = terms.promote_below


def end(session: Session, artifact: str) -> None:
    """Forget the canary of an artifact and fleet."""
    session.execute(delete(CanaryRow).where(CanaryRow.artifact == artifact))


def end_by_alarm(session: Session, artifact: str, canary: StoredCanary) -> bool:
    """Let the active calibration decide all requests; returns False if it does already."""
    engine.notify(session)
    of_it = (
        CanaryRow.artifact == artifact,
        CanaryRow.calibration_id == canary.calibration_id,
        CanaryRow.since == canary.since,
        CanaryRow.ended.is_(None),
    )
    ended = update(CanaryRow).where(*of_it).values(ended=canary.alarm)
    return bool(cast("Any", session.execute(ended)).rowcount)


def end_tests(session: Session, deleted: str) -> bool:
    """Leave canaries that began by then without their tests, whose evidence is incomplete.

    Args:
        session: The transaction.
        deleted: The time of the newest decision that is deleted.

    Returns:
        Whether there were any.
    """
    of_it = (CanaryRow.promote_below.is_not(None), CanaryRow.since <= deleted)
    ended = update(CanaryRow).where(*of_it).values(promote_below=None)
    return bool(cast("Any", session.execute(ended)).rowcount)


def is_promotable(session: Session, artifact: str, canary: StoredCanary) -> bool:
    """Whether it still decides on these terms and without an alarm; both rows are locked."""
    session.get(ActiveRow, artifact, with_for_update=True)  # so that no activation comes between
    row = session.get(CanaryRow, artifact, with_for_update=True)  # and no alarm
    return (
        row is not None
        and (row.calibration_id, row.since, row.promote_below)
        == (canary.calibration_id, canary.since, canary.promote_below)
        and row.ended is None
        and not any(each.raised for each in _alarms(session, canary.calibration_id).values())
    )


def _alarms(session: Session, calibration_id: str) -> dict[str, Alarms]:
    of_it = select(WatchRow.application, WatchRow.since, WatchRow.raised).where(
        WatchRow.calibration_id == calibration_id
    )
    return {
        application: Alarms(since=since, raised=tuple(json.loads(raised)))
        for application, since, raised in session.execute(of_it)
    }
