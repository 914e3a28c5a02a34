"""Check of the active calibration: its existence, its age, and its rows against alpha."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from app.calibrations.evidence import min_n
from app.store.calibration_record import CalibrationRecord
from app.store.inspection import StoreInspection
from app.tools.doctor.finding import Finding, failed, ok, warning
from racer_core.errors import ArtifactError

CHECK = "calibration"
UPLOAD: Final = "run `racer calibrate ROWS` once the gateway serves"


def refused(exc: ArtifactError) -> Finding:
    """A calibration that the artifact carries and no gateway takes, which stops the start."""
    message, _, cure = str(exc).rpartition(": ")
    return failed(CHECK, message, cure)


def check(
    found: StoreInspection,
    alpha: float,
    now: datetime,
    carried: CalibrationRecord | None = None,
) -> Finding:
    """Compare the calibration with alpha and the clock.

    Args:
        found: What the store holds for this artifact and these candidates.
        alpha: Default risk level of requests.
        now: The current time.
        carried: The calibration that the artifact carries.
    """
    if found.active is None and carried is not None:
        return ok(CHECK, f"{carried.id}, which the artifact carries: active from the first start")
    if found.active is None:
        if found.other is None:
            return warning(
                CHECK, "no calibration is active: no certificate holds until one is", UPLOAD
            )
        mismatch = f"{found.other.id} is of another artifact, or of candidates served otherwise"
        return failed(CHECK, mismatch, UPLOAD)
    active, evidence = found.active, found.active.evidence
    n, needed = int(evidence["n"]), min_n(alpha, evidence.get("delta"))
    age = now - datetime.fromisoformat(active.created_at)
    summary = f"{active.id}, {_age_in_words(age)}, {n} rows count, alpha {alpha:g}"
    if age < timedelta(minutes=-1):
        return warning(
            CHECK, summary, "set this machine's clock: the calibration is from the future"
        )
    if needed is None or n < needed:
        return warning(
            CHECK,
            f"{summary} needs {needed or 'more than there can be'}: all candidates are called",
            "calibrate on that many answerable rows, or raise `routing.alpha`",
        )
    return ok(CHECK, summary)


def _age_in_words(age: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "hour")):
        if count := max(age, timedelta(0)) // unit:
            return f"{count} {name}{'s' if count > 1 else ''} old"
    return "made within the hour"
