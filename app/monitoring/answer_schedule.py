"""Schedule of calibrations of `same_answer` from traffic: when the next attempt is due."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

REFRESH: Final = timedelta(days=1)  # of a calibration, or of a refused attempt: then comes another
GROWTH: Final = 0.1  # new samples, as a share of an attempt's rows, after which another is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The last attempt, which was refused.

    Attributes:
        made_at: UTC, ISO 8601.
        rows: How many rows it had.
        until: When the newest of the requests was made that it read.
        refusal: Why nothing was activated.
    """

    made_at: str
    rows: int
    until: str
    refusal: str


def is_due(last: str) -> bool:
    """Whether the time has come for another attempt, after one at a time as ISO 8601."""
    return datetime.now(UTC) - datetime.fromisoformat(last) >= REFRESH


def samples_wanted(attempt: Attempt | None, needed: int) -> int:
    """How many samples since the last attempt make another one worth reading all rows.

    By samples since then, not by their number in all: only the newest rows are read, so that this
    number stops growing.

    Args:
        attempt: The last one; None: there was none.
        needed: The fewest rows that may do.
    """
    if attempt is None:
        return needed
    if attempt.rows < needed:
        return needed - attempt.rows
    return 1 if is_due(attempt.made_at) else max(1, math.ceil(GROWTH * attempt.rows))
