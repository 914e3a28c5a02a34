"""The certificate of a served decision: the core's, with the gateway's reasons and remarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from app.routing.reasons import HOLDING
from app.settings.applications import Premise
from racer_core.calibration.certificate import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCertificate(Certificate):
    """The guarantee for one decision of the gateway."""

    HOLDING: ClassVar[frozenset[str]] = HOLDING

    premise: Premise = "alike"  # why rows cover the request

    def under(self, premise: Premise) -> ServedCertificate:
        """The same under another premise."""
        return self if premise == self.premise else replace(self, premise=premise)

    @property
    def header(self) -> str:
        """``holds`` or ``void; reason=...``."""
        return "holds" if self.holds else f"void; reason={','.join(self.void_reasons)}"

    def as_json(self, remarks: Sequence[str] = ()) -> dict[str, Any]:
        """The wire form with the remarks on the query."""
        found = Certificate.as_json(self)
        guarantee = found["guarantee"] | {"premise": self.premise}
        return {**found, "guarantee": guarantee, "remarks": list(remarks)}
