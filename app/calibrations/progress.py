"""How far a job is, and whether it is still wanted. Used on the job's thread and on the loop's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

from app.errors import JobCancelled

_TOLD_EVERY_S: Final = 0.1
Phase = Literal["waiting", "reading", "scoring", "thresholds", "storing"]


class Stage(NamedTuple):
    """Where a job stands."""

    phase: Phase
    done: int = 0
    total: int = 0  # bytes while reading, rows while scoring; 0 where nothing is counted


class Progress:
    """Takes what the job says, and interrupts it where it speaks once it is cancelled.

    Args:
        changed: Told of changes, on whatever thread: of another phase at once, of counts at most
            ten times a second.
    """

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._cancelled = False
        self._settled = False
        self._end: Callable[[], object] | None = None
        self._told_at = 0.0
        self.stage = Stage("waiting")

    def __call__(self, phase: Phase, done: int = 0, total: int = 0) -> None:
        """Say how far it is. Raises :class:`JobCancelled`."""
        self.check()
        before, self.stage = self.stage.phase, Stage(phase, done, total)
        at = time.monotonic()
        if phase != before or at - self._told_at >= _TOLD_EVERY_S:
            self._told_at = at
            self._changed()

    def check(self) -> None:
        """Go on only while it is wanted. Raises :class:`JobCancelled`."""
        if self._cancelled:
            raise JobCancelled("the calibration was cancelled; nothing was changed")

    def settle(self) -> None:
        """From here on it is too late to cancel. Raises :class:`JobCancelled`."""
        with self._lock:
            self.check()
            self._settled = True

    def cancel(self) -> bool:
        """Ask for the end; false where it is too late."""
        with self._lock:
            if self._settled:
                return False
            self._cancelled = True
            if self._end is not None:
                self._end()
        return True

    @contextmanager
    def cancelling(self, end: Callable[[], object]) -> Generator[None]:
        """Call ``end`` when it is cancelled meanwhile: for work that says nothing for long."""
        with self._lock:
            self.check()
            self._end = end
        try:
            yield
        finally:
            with self._lock:
                self._end = None
