"""Usual latency of a candidate: how long its latest answers took. Has no clock."""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT: Final = 100  # answers


class UsualLatency:
    """The durations of the last ``KEPT`` answers."""

    def __init__(self) -> None:
        self._seconds = deque[float](maxlen=KEPT)

    def record(self, seconds: float) -> None:
        """Note an answer."""
        self._seconds.append(seconds)

    @property
    def usual_s(self) -> float | None:
        """Seconds that all answers but the slowest one in fifty took; None: too few are known."""
        if len(self._seconds) < KEPT:
            return None
        return sorted(self._seconds)[-1 - KEPT // 50]
