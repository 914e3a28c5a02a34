"""Standing of certificates: which calibration decides, whether its certificates hold, and why not.

`/readyz`, the log, the metrics and every tab of the page show this, and nothing else of it. It is
about the requests that a calibration is made for; what else voids the certificate of one request,
such as another temperature, is a reason of that request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Part = Literal["artifact", "calibration"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPart:
    """A part without which no certificate holds, and how to get it."""

    part: Part
    reason: str
    next: str  # the commands that come next

    def __str__(self) -> str:
        return f"Missing: {self.part} ({self.reason}). Next: {self.next}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the certificates of an application stand.

    Attributes:
        promise: What they promise.
        calibration: The calibration that decides; None: the fallback answers.
        reasons: Why none of its certificates holds; empty: they hold.
        missing: What certificates lack, in the order in which it is made.
    """

    promise: Literal["set", "same_answer"]
    calibration: str | None
    reasons: Sequence[str]
    missing: Sequence[MissingPart] = ()

    @property
    def holds(self) -> bool:
        """Whether certificates of this application's usual requests hold."""
        return self.calibration is not None and not self.reasons

    def said(self, fallback: str) -> str:
        """The same in a sentence.

        Args:
            fallback: What answers without a calibration.
        """
        if self.calibration is None:
            why = "; ".join(each.reason for each in self.missing)
            return f"not calibrated, {fallback} answers: {why}"
        if self.reasons:
            return f"certificates of {self.calibration} are void: {', '.join(self.reasons)}"
        return f"certificates of {self.calibration} hold (promise {self.promise})"
