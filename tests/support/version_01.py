"""A store with calibration records as version 0.1 wrote them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import delete, select

from app.store import Store
from app.store.calibration_rows import record_digest
from app.store.tables import ActiveRow, CalibrationRow, WatchRow


def write_as_version_01(url: str, configured: Sequence[str], *, alone: bool) -> list[str]:
    """Remove what version 0.1 did not write from all records that it could have written.

    Those are records whose rows were all labelled as configured, on first turns.

    Args:
        url: The store, which no gateway uses.
        configured: What the configuration sends to each candidate now, as digests.
        alone: Delete all other records, so that the next start is the first of this version.

    Returns:
        The deleted records.
    """
    deleted: list[str] = []
    with Store(url) as store, store.transaction() as session:
        for row in session.scalars(select(CalibrationRow)).all():
            document = json.loads(row.document)
            stored_later = [{"conditions": document.pop("conditions", None)}]
            parts = document.pop("populations", stored_later)
            if [each["conditions"] for each in parts] == [[*configured]]:
                document.pop("grouped_by", None)
                row.document = json.dumps(document)
                row.digest = record_digest(
                    row.id, row.created_at, row.artifact, row.document, row.arrays
                )
            elif alone:
                for table in (ActiveRow, WatchRow):
                    session.execute(delete(table).where(table.calibration_id == row.id))
                session.delete(row)
                deleted.append(row.id)
    return deleted
