"""The certificate of a served decision: the core's, with the gateway's reasons and remarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from app.routing.answer_guarantee import AnswerGuarantee
from app.routing.reasons import HOLDING
from app.settings.applications import Premise, Turns
from racer_core.calibration.certificate import Certificate


@dataclass(frozen=True, kw_only=True)
class ServedCertificate(Certificate):
    """The guarantee for one decision of the gateway."""

    HOLDING: ClassVar[frozenset[str]] = HOLDING

    premise: Premise = "alike"  # why rows cover the request
    turns: Turns = "separate"  # whether it bounds the risk of first and later turns together
    same_answer: AnswerGuarantee | None = None  # None: another promise

    def under(self, premise: Premise, turns: Turns) -> ServedCertificate:
        """The same under another premise, or for other turns."""
        is_same = (premise, turns) == (self.premise, self.turns)
        return self if is_same else replace(self, premise=premise, turns=turns)

    @property
    def header(self) -> str:
        """``holds`` or ``void; reason=...``."""
        return "holds" if self.holds else f"void; reason={','.join(self.void_reasons)}"

    def as_json(self, remarks: Sequence[str] = ()) -> dict[str, Any]:
        """The wire form with the remarks on the query."""
        found = super().as_json()
        guarantee = found["guarantee"] | {"premise": self.premise, "turns": self.turns}
        found |= {"guarantee": guarantee, "remarks": list(remarks)}
        if self.same_answer is not None:
            found["guarantee"] |= self.same_answer.guarantee_as_json()
            found["rounds"] = self.same_answer.calls_as_json()
        return found
