"""Record of a stored calibration, and its encoding: a JSON document and arrays."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.errors import CalibrationError
from racer_core.records.conversation import RoutedText
from racer_core.types import RiskTarget, Score

_LATER: Final = "later_"  # before the names of the arrays of later turns


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterTurns:
    """Rows of turns after the first of a conversation: another population, with its own threshold.

    Pool, options and patterns are those of the record.
    """

    calibration: Calibration
    text: RoutedText  # what the router read of them


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """A stored calibration: everything needed to recompute any threshold."""

    id: str
    created_at: str  # UTC, ISO 8601
    artifact: str  # digest of the artifact that scored the rows and of how candidates are served
    calibration: Calibration
    evidence: dict[str, Any]
    void_reasons: tuple[str, ...] = ()  # premises that never held, such as training_overlap
    later: LaterTurns | None = None
    grouped_by: str | None = None  # routing.group_by of its groups; None: not recorded

    def is_grouped_by(self, group_by: str) -> bool:
        """Whether requests grouped by this setting belong to the groups of the rows."""
        calibrations = [self.calibration, *([self.later.calibration] if self.later else [])]
        return self.grouped_by == group_by or all(each.groups is None for each in calibrations)

    def rows(self, *, later: bool) -> Calibration:
        """The rows of first turns, or those of later ones.

        Raises:
            CalibrationError: There are none of later ones.
        """
        if not later:
            return self.calibration
        if self.later is None:
            raise CalibrationError(f"calibration {self.id} has no rows of later turns")
        return self.later.calibration

    def encoded(self) -> tuple[str, bytes]:
        """The document, and the arrays as npz."""
        calibration = self.calibration
        salt = calibration.options.smoothing_salt
        document: dict[str, Any] = {
            "pool": calibration.pool,
            "options": asdict(calibration.options) | {"smoothing_salt": salt and salt.hex()},
            "evidence": self.evidence,
            "void_reasons": self.void_reasons,
            "prices": calibration.prices,
            "groups": calibration.groups,
            "grouped_by": self.grouped_by,
            "patterns": _pattern_settings(calibration.patterns),
        }
        arrays = _arrays_of(calibration)
        if calibration.patterns is not None:
            arrays["patterns"] = calibration.patterns.patterns
            arrays["pattern_frequencies"] = calibration.patterns.frequencies
        if self.later is not None:
            rows = self.later.calibration
            document["later"] = {"text": self.later.text, "groups": rows.groups}
            arrays |= {_LATER + name: array for name, array in _arrays_of(rows).items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return json.dumps(document), buffer.getvalue()

    @classmethod
    def decoded(
        cls, record_id: str, created_at: str, artifact: str, document: str, arrays: bytes
    ) -> Self:
        """Decode the result of :meth:`encoded`; invalid input raises many kinds of errors."""
        fields = json.loads(document)
        stored: Mapping[str, NDArray[Any]] = np.load(io.BytesIO(arrays), allow_pickle=False)
        calibration = _calibration(fields, stored)
        later = fields.get("later")
        return cls(
            id=record_id,
            created_at=created_at,
            artifact=artifact,
            calibration=calibration,
            evidence=fields["evidence"],
            void_reasons=tuple(fields["void_reasons"]),
            grouped_by=fields.get("grouped_by"),
            later=later
            and LaterTurns(
                calibration=replace(
                    calibration,
                    **_rows_from(stored, _LATER),
                    groups=later["groups"] and tuple(later["groups"]),
                ),
                text=later["text"],
            ),
        )


def _arrays_of(calibration: Calibration) -> dict[str, NDArray[Any]]:
    prints = np.frombuffer(b"".join(calibration.fingerprints), np.uint8)
    arrays: dict[str, NDArray[Any]] = {
        "scores": calibration.scores,
        "labels": calibration.labels,
        "fingerprints": prints.reshape(len(calibration.fingerprints), -1),
    }
    if calibration.neighbours is not None:
        arrays["neighbours"] = calibration.neighbours
    if calibration.projections is not None:
        arrays["projections"] = calibration.projections
    return arrays


def _rows_from(arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> dict[str, Any]:
    return {
        "scores": arrays[prefix + "scores"],
        "labels": arrays[prefix + "labels"],
        "fingerprints": tuple(each.tobytes() for each in arrays[prefix + "fingerprints"]),
        "neighbours": arrays.get(prefix + "neighbours"),
        "projections": arrays.get(prefix + "projections"),
    }


def _pattern_settings(patterns: PatternModel | None) -> dict[str, float] | None:
    if patterns is None:
        return None
    return {
        "neighbours": patterns.neighbours,
        "prior": patterns.prior,
        "temperature": patterns.temperature,
    }


def _calibration(fields: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Calibration:
    options: dict[str, Any] = fields["options"]
    salt = options["smoothing_salt"]
    options["score"] = Score(options["score"])
    options["risk_target"] = RiskTarget(options["risk_target"])
    options["smoothing_salt"] = bytes.fromhex(salt) if salt else None
    settings, prices, groups = fields["patterns"], fields["prices"], fields["groups"]
    patterns = settings and PatternModel(
        patterns=arrays["patterns"], frequencies=arrays["pattern_frequencies"], **settings
    )
    return Calibration(
        pool=tuple(fields["pool"]),
        options=CalibrationOptions(**options),
        patterns=patterns,
        prices=prices and tuple(prices),
        groups=groups and tuple(groups),
        **_rows_from(arrays),
    )
