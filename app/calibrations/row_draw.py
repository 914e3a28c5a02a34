"""Draw of a sampled row: the random number that decided whether its decision was sampled."""

from __future__ import annotations

from racer_core.calibration.shadow import sampling_number
from racer_core.types import LabelledRow


def draw_of(row: LabelledRow, key: bytes) -> float | None:
    """The number u of a row, which a rate above it draws; None for a row that is not sampled.

    Args:
        row: A row of an upload.
        key: Secret of the draws.
    """
    if row.decision_id is None:
        return None
    drawn_by = row.decision_id if row.turn is None else row.cluster or ""
    return sampling_number(key, drawn_by.encode(), row.turn or 0)
