"""Progress of a calibration of the promise `same_answer`: rows so far, and how many it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

FITTING_SHARE: Final = 0.25
MIN_FITTING: Final = 20  # rows
MIN_FOR_ESTIMATE: Final = 10  # rows; a rate by fewer is off by a third or more
QUIET: Final = 5  # mean gaps without a row, which happens once in 150 times while traffic goes on


def fitting_rows(total: int) -> int:
    """How many of the rows fit the policy; the others calibrate."""
    return max(MIN_FITTING, int(FITTING_SHARE * total))


def rows_needed(alpha: float) -> int:
    """The fewest rows with which a threshold for alpha can be finite."""
    calibrating = math.ceil(1.0 / alpha - 1e-9) - 1
    total = calibrating + MIN_FITTING
    while total - fitting_rows(total) < calibrating:
        total += 1
    return total


def expected_at(times: Sequence[datetime], needed: int, now: datetime) -> datetime | None:
    """When there will be enough rows if they come as they came so far.

    Args:
        times: When the rows were made, ascending.
        needed: How many are needed.
        now: The time.

    Returns:
        None where there are enough, too few for a rate, or none lately.
    """
    if not MIN_FOR_ESTIMATE <= len(times) < needed:
        return None
    gap: timedelta = (now - times[0]) / len(times)
    if now - times[-1] > QUIET * gap:
        return None
    return now + (needed - len(times)) * gap
