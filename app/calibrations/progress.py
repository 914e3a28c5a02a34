"""Progress and cancellation of a calibration job, shared by its thread and the event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

from app.errors import JobCancelled

_NOTIFY_EVERY_S: Final = 0.1
Phase = Literal["waiting", "reading", "scoring", "thresholds", "storing"]


class Stage(NamedTuple):
    """Where a job stands."""

    phase: Phase
    done: int = 0
    total: int = 0  # bytes while reading, rows while scoring; 0 if nothing is counted


class Progress:
    """Takes a job's reports, and raises in the middle of them once the job is cancelled.

    Args:
        on_change: Called, on any thread, when the phase changes and at most ten times a second when
            only the counts change.
    """

    def __init__(self, on_change: Callable[[], object]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._cancelled = False
        self._committed = False
        self._on_cancel: Callable[[], object] | None = None
        self._notified_at = 0.0
        self.stage = Stage("waiting")

    def __call__(self, phase: Phase, done: int = 0, total: int = 0) -> None:
        """Report progress. Raises :class:`JobCancelled`."""
        self.raise_if_cancelled()
        before, self.stage = self.stage.phase, Stage(phase, done, total)
        at = time.monotonic()
        if phase != before or at - self._notified_at >= _NOTIFY_EVERY_S:
            self._notified_at = at
            self._on_change()

    def raise_if_cancelled(self) -> None:
        """Raises :class:`JobCancelled`."""
        if self._cancelled:
            raise JobCancelled("the calibration was cancelled; nothing was changed")

    def commit(self) -> None:
        """Refuse to be cancelled from here on. Raises :class:`JobCancelled`."""
        with self._lock:
            self.raise_if_cancelled()
            self._committed = True

    def cancel(self) -> bool:
        """Cancel the job; false if it is too late."""
        with self._lock:
            if self._committed:
                return False
            self._cancelled = True
            if self._on_cancel is not None:
                self._on_cancel()
        return True

    @contextmanager
    def cancelling(self, on_cancel: Callable[[], object]) -> Generator[None]:
        """Call ``on_cancel`` if cancelled during the block: for work that rarely reports."""
        with self._lock:
            self.raise_if_cancelled()
            self._on_cancel = on_cancel
        try:
            yield
        finally:
            with self._lock:
                self._on_cancel = None
