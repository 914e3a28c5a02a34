"""Rows of calibrations: written from records, read as records, and checked by their digests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from app.errors import StoreDamaged
from app.store.calibration_record import CalibrationRecord
from app.store.tables import CalibrationRow
from racer_core.errors import RacerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A record without its rows."""

    id: str
    created_at: str
    active: bool  # it decides for its artifact and fleet
    artifact: str
    chosen: bool  # it was activated by its id, after its figures were shown
    options: dict[str, Any]
    evidence: dict[str, Any]


def summarised(row: Any, *, active: bool) -> Summary:
    """A row without its arrays. Raises :class:`StoreDamaged`."""
    fields = document_fields(row)
    return Summary(
        id=row.id,
        created_at=row.created_at,
        active=active,
        artifact=row.artifact,
        chosen=row.chosen_at is not None,
        options=fields["options"],
        evidence=fields["evidence"],
    )


def document_fields(row: Any) -> dict[str, Any]:
    """The document of a row. Raises :class:`StoreDamaged`."""
    try:
        fields = json.loads(row.document)
        if {"pool", "options", "evidence"} <= fields.keys():
            return fields
    except (AttributeError, ValueError):
        pass
    raise StoreDamaged(f"calibration {row.id} is damaged: its document cannot be read")


def to_row(record: CalibrationRecord) -> CalibrationRow:
    """Encode a record."""
    document, arrays = record.encoded()
    return CalibrationRow(
        id=record.id,
        created_at=record.created_at,
        artifact=record.artifact,
        document=document,
        arrays=arrays,
        digest=record_digest(record.id, record.created_at, record.artifact, document, arrays),
    )


def is_whole(row: CalibrationRow) -> bool:
    """Whether a row is what was written: its digest matches."""
    parts = row.id, row.created_at, row.artifact, row.document, row.arrays
    return record_digest(*parts) == row.digest


def to_record(row: CalibrationRow) -> CalibrationRecord:
    """Decode a row. Raises :class:`StoreDamaged`."""
    if not is_whole(row):
        raise StoreDamaged(f"calibration {row.id} is damaged: its digest does not match")
    try:
        record = CalibrationRecord.decoded(
            row.id, row.created_at, row.artifact, row.document, row.arrays
        )
    except (KeyError, TypeError, ValueError, RacerError) as exc:
        raise StoreDamaged(
            f"calibration {row.id} cannot be read by this version of the program: upload its rows "
            "again"
        ) from exc
    return record if row.chosen_at is None else record.chosen()


def record_digest(*parts: str | bytes) -> str:
    """sha256 over the parts, each with its length, so that none can borrow from the next."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()
