"""Whether the gateway is on its way out. Set by signals and by other threads, so only flags."""

from __future__ import annotations

import time


class Drain:
    """Not begun, begun, or given up: a second call for the end does not wait for anybody."""

    def __init__(self) -> None:
        self._begun_at: float | None = None
        self.given_up = False

    @property
    def begun(self) -> bool:
        """Not ready any more, though still accepting for a while."""
        return self._begun_at is not None

    def begin(self) -> None:
        """Leave in good order; asked again, leave now."""
        if self._begun_at is None:
            self._begun_at = time.monotonic()
        else:
            self.given_up = True

    def is_over(self, delay_s: float) -> bool:
        """Whether it began so long ago, or is not waited for."""
        return self._begun_at is not None and (
            self.given_up or time.monotonic() - self._begun_at >= delay_s
        )
