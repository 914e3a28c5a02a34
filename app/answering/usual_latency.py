"""Usual latencies of candidates by application: how long their latest answers took. Has no clock.

Applications differ in the length of answers. Three late answers that arrive make an overload usual;
calls that hang, and are cancelled, count for nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT: Final = 100  # answers


class UsualLatencies:
    """The durations of the last ``KEPT`` answers of each candidate to each application."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str | None, str], deque[float]] = {}

    def record(self, application: str | None, candidate: str, seconds: float) -> None:
        """Note an answer that arrived."""
        kept = self._seconds.setdefault((application, candidate), deque(maxlen=KEPT))
        kept.append(seconds)

    def usual_s(self, application: str | None, candidate: str) -> float | None:
        """Seconds that all answers but the slowest one in fifty took; None: too few are known."""
        found = self._seconds.get((application, candidate), ())
        return sorted(found)[-1 - KEPT // 50] if len(found) == KEPT else None
