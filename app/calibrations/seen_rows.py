"""Seen rows: whether an alpha was fixed before the curve of its rows was shown.

A dry run and a stored calibration show their rows' curve over alpha. The bound alpha holds only for
terms that did not depend on it: those in force when the rows were first sent, or stated by a first
upload that was no dry run. Terms that are picked later are certified by the band over all alphas.

An upload is recognised by its queries. Of each earlier upload a bottom-k sketch is stored (Cohen &
Kaplan 2007): its k smallest 64-bit hashes. The hashes of a new upload that are not above the
largest of these k are a random sample of it, and those of them in the sketch were shown. With as
many rows as the earlier upload, this sample has about k, and the standard error of a share p is
sqrt(p (1 - p) / k): 0.02 at p = ``MIN_SHARE``.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, select

from app.store import Store, now
from app.store.engine import insert_into
from app.store.tables import SeenRowsRow
from racer_core.calibration.options import CalibrationOptions

MAX_SEEN: Final = 10_000  # sets of rows; the oldest are forgotten
SKETCH: Final = 128  # k, the hashes that are stored of one upload
MIN_SHARE: Final = 0.05  # of an upload's queries in one earlier upload; traffic repeats some

Hashes = NDArray[np.uint64]
Terms = list[Any]  # as JSON stores them


def terms_of(options: CalibrationOptions) -> Terms:
    """The terms of a guarantee that may be picked by looking at rows."""
    return [options.alpha, options.score, options.risk_target, options.delta, options.r]


def limit_terms(options: CalibrationOptions, limit: float) -> Terms:
    """The terms with a limit on wrong final answers."""
    return [*terms_of(options), limit]


class SeenRows:
    """The rows that gateways on a store have shown; each method is one transaction, and blocks.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def fixed_terms(self, hashes: Hashes) -> list[Terms] | None:
        """The terms that were fixed whenever such rows were first shown; None: they never were.

        Args:
            hashes: Of the rows' queries, ascending.
        """
        with self._store.transaction() as session:
            stored = session.execute(select(SeenRowsRow.sketch, SeenRowsRow.terms)).all()
        found = [json.loads(terms) for sketch, terms in stored if _shares_rows(hashes, sketch)]
        if not found:
            return None
        first, *others = found
        return [each for each in first if all(each in terms for terms in others)]

    def add(self, digest: str, hashes: Hashes, fixed: list[Terms]) -> None:
        """Store that the rows are shown now; the first sight of rows stays.

        Args:
            digest: Of the rows.
            hashes: Of their queries, ascending.
            fixed: The terms that did not depend on them.
        """
        sketch = hashes[:SKETCH].astype("<u8").tobytes()
        terms = json.dumps(fixed)
        seen = {"digest": digest, "seen_at": now(), "terms": terms, "sketch": sketch}
        newest = select(SeenRowsRow.seen_at).order_by(SeenRowsRow.seen_at.desc())
        with self._store.transaction() as session:
            session.execute(insert_into(session, SeenRowsRow).values(seen).on_conflict_do_nothing())
            oldest = session.scalar(newest.offset(MAX_SEEN - 1).limit(1))
            if oldest is not None:
                session.execute(delete(SeenRowsRow).where(SeenRowsRow.seen_at < oldest))


def _shares_rows(hashes: Hashes, stored: bytes) -> bool:
    """Whether more than ``MIN_SHARE`` of the rows were in the upload of a sketch, by estimate."""
    sketch = np.frombuffer(stored, "<u8")
    is_whole = len(sketch) < SKETCH
    sample = hashes if is_whole else hashes[: np.searchsorted(hashes, sketch[-1], "right")]
    ends = np.searchsorted(sample, sketch, "right")
    shown = np.count_nonzero(ends > np.searchsorted(sample, sketch))
    return bool(shown > MIN_SHARE * len(sample))
