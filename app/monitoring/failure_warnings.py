"""Warnings of a checker's failures, at most one in five minutes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

WARN_EVERY_S: Final = 300.0


class FailureWarnings:
    """Warns of a failure unless a warning was written lately, and counts those in between.

    Args:
        setting: Where the checker is configured.
        consequence: What each failure leaves behind, in the plural.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self, setting: str, consequence: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._setting = setting
        self._consequence = consequence
        self._clock = clock
        self._failures = 0  # since the last warning
        self._warned_at = -math.inf

    def add(self, reason: str) -> None:
        """Count a failure."""
        self._failures += 1
        now = self._clock()
        if now - self._warned_at < WARN_EVERY_S:
            return
        log.warning(
            "%s: %s; %s since the last warning: %d",
            self._setting,
            reason,
            self._consequence,
            self._failures,
        )
        self._warned_at, self._failures = now, 0
