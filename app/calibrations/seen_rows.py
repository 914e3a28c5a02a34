"""Seen rows: whether an alpha was fixed before the curve of its rows was shown.

A dry run and a stored calibration show their rows' curve over alpha. The bound alpha holds only for
terms that did not depend on it: those in force when the rows were first sent, or stated by a first
upload that was no dry run. Terms that are picked later are certified by the band over all alphas.
"""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import delete, select

from app.store import Store, now
from app.store.engine import insert_into
from app.store.tables import SeenRowsRow
from racer_core.calibration.options import CalibrationOptions

MAX_SEEN: Final = 10_000  # sets of rows; the oldest are forgotten

Terms = list[Any]  # as JSON stores them


def terms_of(options: CalibrationOptions) -> Terms:
    """The terms of a guarantee that may be picked by looking at rows."""
    return [options.alpha, options.score, options.risk_target, options.delta, options.r]


class SeenRows:
    """The rows that gateways on a store have shown; each method is one transaction, and blocks.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def fixed_terms(self, digest: str) -> list[Terms] | None:
        """The terms that were fixed when the rows were first shown; None: they never were."""
        with self._store.transaction() as session:
            found = session.get(SeenRowsRow, digest)
        return None if found is None else json.loads(found.terms)

    def add(self, digest: str, fixed: list[Terms]) -> None:
        """Store that the rows are shown now; the first sight of rows stays."""
        seen = {"digest": digest, "seen_at": now(), "terms": json.dumps(fixed)}
        newest = select(SeenRowsRow.seen_at).order_by(SeenRowsRow.seen_at.desc())
        with self._store.transaction() as session:
            session.execute(insert_into(session, SeenRowsRow).values(seen).on_conflict_do_nothing())
            oldest = session.scalar(newest.offset(MAX_SEEN - 1).limit(1))
            if oldest is not None:
                session.execute(delete(SeenRowsRow).where(SeenRowsRow.seen_at < oldest))
