"""Canaries: the calibration that decides a share of the requests beside the active one, if any.

There is one for each artifact and fleet at most. An activation ends it. One that an alarm has ended
stays stored until the next activation, so that an operator sees why.
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
from app.utc import now


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """The drift alarms of one application, or of a calibration without applications."""

    since: str  # when their tests began
    raised: tuple[str, ...]  # the streams that alarmed


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCanary:
    """A canary as all gateways share it.

    Attributes:
        calibration_id: The calibration.
        share: Of the requests that it decides.
        since: When it began: UTC, ISO 8601.
        ended: Why an alarm has ended it; None: it decides.
        alarms: Its drift alarms, by application.
    """

    calibration_id: str
    share: float
    since: str
    ended: str | None
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
        alarms=_alarms(session, row.calibration_id),
    )


def begin(
    session: Session, calibration_id: str, artifact: str, share: float, expected: str | None
) -> None:
    """Let a calibration decide a share of the requests; one that does already gets another share.

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
        row.calibration_id, row.since, row.ended = calibration_id, now(), None
    row.share = share


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


def _alarms(session: Session, calibration_id: str) -> dict[str, Alarms]:
    of_it = select(WatchRow.application, WatchRow.since, WatchRow.raised).where(
        WatchRow.calibration_id == calibration_id
    )
    return {
        application: Alarms(since=since, raised=tuple(json.loads(raised)))
        for application, since, raised in session.execute(of_it)
    }
