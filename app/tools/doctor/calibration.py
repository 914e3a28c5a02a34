"""Whether a calibration decides, how old it is, and whether its rows are enough for alpha."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from app.calibrations.evidence import min_n
from app.store.inspection import StoreInspection
from app.tools.doctor.finding import Finding, failed, ok, warning

CHECK = "calibration"
UPLOAD: Final = "`racer calibrate ROWS` once the gateway serves"


def check(found: StoreInspection, alpha: float, now: datetime) -> Finding:
    """The finding.

    Args:
        found: What the store holds for this artifact and fleet.
        alpha: Of requests that name none.
        now: The time.
    """
    if found.active is None:
        if found.other is None:
            return warning(CHECK, "none: nothing is routed until there is one", UPLOAD)
        told = f"{found.other.id} is of another artifact, or of candidates served otherwise"
        return failed(CHECK, told, UPLOAD)
    active, evidence = found.active, found.active.evidence
    n, needed = int(evidence["n"]), min_n(alpha, evidence.get("delta"))
    age = now - datetime.fromisoformat(active.created_at)
    told = f"{active.id}, {_aged(age)}, {n} rows count, alpha {alpha:g}"
    if age < timedelta(minutes=-1):
        return warning(CHECK, told, "set this machine's clock: the calibration is younger than now")
    if needed is None or n < needed:
        return warning(
            CHECK,
            f"{told} takes {needed or 'more than there can be'}: everyone is called",
            "calibrate on that many answerable rows, or raise `routing.alpha`",
        )
    return ok(CHECK, told)


def _aged(age: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "hour")):
        if count := max(age, timedelta(0)) // unit:
            return f"{count} {name}{'s' if count > 1 else ''} old"
    return "made within the hour"
