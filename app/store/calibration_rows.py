"""Rows of calibrations: written from records, read as records, and checked by their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import StoreDamaged
from app.store.calibration_record import DIGESTS, CalibrationRecord, is_of_version_01
from app.store.tables import CalibrationRow
from racer_core.errors import RacerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A record without its rows."""

    id: str
    created_at: str
    active: bool  # it decides for its artifact and fleet
    artifact: str
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
        options=fields["options"],
        evidence=fields["evidence"],
    )


def document_fields(row: Any) -> dict[str, Any]:
    """The document of a row, with the fields of every version. Raises :class:`StoreDamaged`."""
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
    return _digest_of(row) == row.digest


def is_same(one: CalibrationRow, other: CalibrationRow) -> bool:
    """Whether two rows are one calibration; one of them may lack digests of version 0.1."""
    (mine, my_digests), (theirs, their_digests) = map(_without_digests, (one, other))
    return mine == theirs and (my_digests == their_digests or None in (my_digests, their_digests))


def _without_digests(row: CalibrationRow) -> tuple[tuple[Any, ...], list[str] | None]:
    document = document_fields(row)
    digests = document.pop(DIGESTS, None)
    return (row.id, row.created_at, row.artifact, document, row.arrays), digests


def set_digests(row: CalibrationRow, digests: Sequence[str] | None) -> None:
    """Set the digests of a record of version 0.1, in the order of its pool; None: unknown."""
    row.document = json.dumps(document_fields(row) | {DIGESTS: digests})
    row.digest = _digest_of(row)


def unify_digests(stored: CalibrationRow, other: CalibrationRow) -> None:
    """Give a stored record of version 0.1 the digests of another row of the same record."""
    digests = document_fields(other).get(DIGESTS)
    if digests is not None:
        set_digests(stored, digests)


def forgo_digests(row: CalibrationRow) -> None:
    """Mark a record of version 0.1 so that it never gets the digests of a start."""
    if is_of_version_01(document_fields(row)):
        set_digests(row, None)


def _digest_of(row: CalibrationRow) -> str:
    return record_digest(row.id, row.created_at, row.artifact, row.document, row.arrays)


def to_record(row: CalibrationRow) -> CalibrationRecord:
    """Decode a row. Raises :class:`StoreDamaged`."""
    if not is_whole(row):
        raise StoreDamaged(f"calibration {row.id} is damaged: its digest does not match")
    try:
        return CalibrationRecord.decoded(
            row.id, row.created_at, row.artifact, row.document, row.arrays
        )
    except (KeyError, TypeError, ValueError, RacerError) as exc:
        raise StoreDamaged(
            f"calibration {row.id} cannot be read by this version of the program"
        ) from exc


def record_digest(*parts: str | bytes) -> str:
    """sha256 over the parts, each with its length, so that none can borrow from the next."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()
