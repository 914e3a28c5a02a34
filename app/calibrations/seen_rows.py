"""Seen rows: whether an alpha was fixed before the curve of its rows was shown.

A dry run and a stored calibration show their rows' curve over alpha. The bound alpha holds only for
one level: the one that a first upload stated that was no dry run, or else the configured one.
Others that were declared then, by ``routing.levels``, are certified by a bound that holds for all
of them together, and any other by the band over all alphas.

An upload is recognised by its queries: a 64-bit hash of each is stored, keyed by the store, so that
neither another artifact nor another application forgets it. Rows that an artifact brought as shown
elsewhere are hashed by the key of that store, and an upload by both. Rows were shown if
``MIN_SHARE`` of the distinct queries of the upload, or of one of its groups, were in earlier
uploads, all together.

Power: every query is stored, so such a share is found with probability 1, whatever the sizes.
False alarms: of n other queries some equals one of m stored hashes with probability below
n m / 2^64, 1e-7 at 1,000 and 10^9. Where each new query of traffic was in an earlier upload with
probability q, n queries count as shown with probability P(Binomial(n, q) >= n ``MIN_SHARE``):
0.004 at q = 0.01 and n = 100, 0.1 at n = 10. A false alarm costs only an alpha that was never
stated before: the band certifies it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, func, select

from app.store import Store, now
from app.store.engine import insert_into
from app.store.tables import SeenRowsRow
from racer_core.calibration.options import CalibrationOptions

MAX_SEEN: Final = 10_000  # sets of rows; the oldest are forgotten
MAX_BYTES: Final = 2**27  # of all of them: 16 million queries
MIN_SHARE: Final = 0.05  # of the queries; traffic repeats some
_AT_ONCE: Final = 16  # sets that are read at once

Hashes = NDArray[np.uint64]
Terms = list[Any]  # as JSON stores them


def terms_of(options: CalibrationOptions) -> Terms:
    """The terms of a guarantee that may be picked by looking at rows."""
    return [options.alpha, options.score, options.risk_target, options.delta, options.r]


def level_terms(
    options: CalibrationOptions, alpha: float, application: str, *, is_declared: bool = False
) -> Terms:
    """The terms with the level of an application.

    Args:
        options: The other terms.
        alpha: The level.
        application: Its name; empty: of requests of none.
        is_declared: The level is one of several that were declared, and need not be configured.
    """
    found = [alpha, *terms_of(options)[1:]]
    if is_declared:
        return [*found, application, "declared"]
    return [*found, application] if application else found


def limit_terms(options: CalibrationOptions, limit: float) -> Terms:
    """The terms with a limit on wrong final answers."""
    return [*terms_of(options), limit]


class SeenRows:
    """The rows that gateways on a store have shown; each method is one transaction, and blocks.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def fixed_terms(
        self,
        hashes: Hashes,
        groups: Sequence[str | None] | None = None,
        *,
        others: Hashes | None = None,
    ) -> list[Terms] | None:
        """The terms that were fixed whenever such rows were first shown; None: they never were.

        Args:
            hashes: Of the rows' queries, in any order, shape (n,).
            groups: The group of each row; None: no row has one.
            others: Of the same queries under other stores' keys, shape (n, k).
        """
        rows, parts = _parts(hashes, groups)
        families = [hashes[rows]]
        if others is not None:
            families += list(others[rows].T)
        is_shown = np.zeros(len(rows), bool)
        found: list[list[Terms]] = []
        statement = select(SeenRowsRow.sketch, SeenRowsRow.terms).execution_options(
            yield_per=_AT_ONCE
        )
        with self._store.transaction() as session:
            for stored, terms in session.execute(statement):
                earlier = np.frombuffer(stored, "<u8")
                is_in = np.zeros(len(rows), bool)
                for queries in families:
                    ends = np.searchsorted(earlier, queries, "right")
                    is_in |= ends > np.searchsorted(earlier, queries)
                if is_in.any():
                    is_shown |= is_in
                    found.append(json.loads(terms))
        if not np.any(np.bincount(parts, is_shown) >= MIN_SHARE * np.bincount(parts) - 1e-9):
            return None
        first, *later = found
        return [each for each in first if all(each in terms for terms in later)]

    def add(self, digest: str, hashes: Hashes, fixed: list[Terms]) -> None:
        """Store that the rows are shown now; the first sight of rows stays.

        Args:
            digest: Of the rows.
            hashes: Of their queries, in any order.
            fixed: The terms that did not depend on them.
        """
        sketch = np.unique(hashes).astype("<u8").tobytes()
        terms = json.dumps(fixed)
        seen = {"digest": digest, "seen_at": now(), "terms": terms, "sketch": sketch}
        sizes = select(SeenRowsRow.seen_at, func.length(SeenRowsRow.sketch))
        newest = sizes.order_by(SeenRowsRow.seen_at.desc())
        with self._store.transaction() as session:
            session.execute(insert_into(session, SeenRowsRow).values(seen).on_conflict_do_nothing())
            stored = session.execute(newest).all()
            totals = accumulate(size for _, size in stored)
            fitting = sum(total <= MAX_BYTES for total in totals)
            oldest = stored[max(1, min(fitting, MAX_SEEN, len(stored))) - 1].seen_at
            session.execute(delete(SeenRowsRow).where(SeenRowsRow.seen_at < oldest))


def _parts(
    hashes: Hashes, groups: Sequence[str | None] | None
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """A row of each distinct query of all rows, and of each group, with the place of the part."""
    _, everything = np.unique(hashes, return_index=True)
    if groups is None:
        return everything, np.zeros(len(everything), np.int64)
    places: dict[str | None, int] = {}
    ids = np.array([places.setdefault(each, len(places)) for each in groups], np.int64) + 1
    order = np.lexsort((hashes, ids))
    ids, hashes = ids[order], hashes[order]
    is_new = np.ones(len(hashes), bool)
    is_new[1:] = (np.diff(ids) != 0) | (hashes[1:] != hashes[:-1])
    return (
        np.concatenate([everything, order[is_new]]),
        np.concatenate([np.zeros(len(everything), np.int64), ids[is_new]]),
    )
