"""Units of labelled rows: what a split may not divide, and what a draw takes one row of.

In a list of questions a unit is all rows with one query or one cluster, and so on transitively. In
a sample of traffic every row is a unit of its own when it is split, but for the turns of one
conversation in a gateway's sample; one row per cluster is drawn from clusters alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from racer_core.records.request import row_identity
from racer_core.types import LabelledRow, LabelledRows, RowsKind

Units = NDArray[np.intp]


class RowSurvey:
    """Counts over a stream of rows, from which the kind of their file is guessed.

    Attributes:
        duplicates: Rows that repeat the query, and the turns before it, of an earlier row.
        first_turn_duplicates: Those of them that are first turns.
        clustered: Some row has a cluster.
        is_sample: Every row names the decision of a gateway's random sample.
    """

    def __init__(self) -> None:
        self.duplicates = 0
        self.first_turn_duplicates = 0
        self.clustered = False
        self.is_sample = True
        self._is_annotated = False
        # Digests instead of queries, which would take the file's size in memory again.
        self._seen: set[bytes] = set()

    def add(self, row: LabelledRow) -> None:
        """Count a row."""
        self.clustered = self.clustered or row.shared is not None
        self.is_sample = self.is_sample and row.decision_id is not None
        self._is_annotated = self._is_annotated or row.reference is not None or row.task is not None
        if name := row_identity(row.query, row.earlier, row.request):
            digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
            if digest in self._seen:
                self.duplicates += 1
                self.first_turn_duplicates += not row.earlier
            self._seen.add(digest)

    @property
    def guess(self) -> RowsKind:
        """A gateway's sample is traffic; else the repeats tell.

        Traffic if queries repeat and no row has a cluster, a reference or a task; else a list.

        Traffic repeats itself, and comes without references. Without repeats and clusters both
        kinds are split alike, so a list is the safe guess: it refuses training rows.
        """
        is_traffic = self.duplicates and not self.clustered and not self._is_annotated
        return RowsKind.TRAFFIC if is_traffic or self.is_sample else RowsKind.QUESTIONS

    def stated(self, kind: RowsKind | None) -> RowsKind | None:
        """What is certain of the file: the kind that was said; a gateway's sample is traffic."""
        return RowsKind.TRAFFIC if kind is None and self.is_sample else kind


def surveyed(rows: Iterable[LabelledRow]) -> RowSurvey:
    """The survey of some rows."""
    survey = RowSurvey()
    for row in rows:
        survey.add(row)
    return survey


def rows_kind(rows: LabelledRows) -> RowsKind:
    """The kind that was said, else the guess."""
    return rows.kind or surveyed(rows.rows).guess


def units_of(names: Sequence[Hashable | None], clusters: Sequence[Hashable | None] | None) -> Units:
    """The unit of each row, numbered by first appearance, shape (n,).

    Rows of one name are one unit, rows of one cluster are one unit, and units that share a row are
    one.

    Args:
        names: What identifies the row's query; None: the row shares it with no other.
        clusters: The row's cluster; None: of no row, or of this one.
    """
    parents: list[int] = []
    of_name: dict[Hashable, int] = {}
    of_cluster: dict[Hashable, int] = {}

    def root(unit: int) -> int:
        while parents[unit] != unit:
            parents[unit] = parents[parents[unit]]
            unit = parents[unit]
        return unit

    for row, name in enumerate(names):
        parents.append(row)
        cluster = None if clusters is None else clusters[row]
        joined = row if name is None else root(of_name.setdefault(name, row))
        other = joined if cluster is None else root(of_cluster.setdefault(cluster, joined))
        first = min(joined, other)
        parents[joined] = parents[other] = parents[row] = first
    roots = [root(row) for row in range(len(parents))]
    return renumbered(np.array(roots, dtype=np.intp))


def rows_units(rows: LabelledRows) -> Units:
    """The units that a split of a file's rows keeps whole: of traffic, the single rows.

    Turns of one sampled conversation are one unit, since they depend on each other.
    """
    if rows_kind(rows) is RowsKind.TRAFFIC:
        return units_of((None,) * len(rows), [sampled_cluster(row) for row in rows.rows])
    return units_of(plain_names(rows), [row.shared for row in rows.rows])


def sampled_cluster(row: LabelledRow) -> str | None:
    """The conversation of a row of a gateway's sample; None: it has none, or is no such row."""
    return None if row.decision_id is None else row.cluster


def sampled_unit(row: LabelledRow) -> str | None:
    """What training and calibration may not share of a gateway's sample.

    It is the conversation, else the decision; None for a row of no sample.
    """
    return row.decision_id and (row.cluster or row.decision_id)


def turns_in_order(
    conversations: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.intp]:
    """The rows of whole conversations, turn by turn.

    Args:
        conversations: The id of each row's conversation, shape (n,); -1 for a row of none.
        numbers: How many turns are before each row's query, shape (n,).
    """
    order = np.lexsort((numbers, conversations))
    return order[conversations[order] >= 0]


def plain_names(rows: LabelledRows) -> list[str | None]:
    """What each row asks, equal for copies but for case, space and Unicode form; None: no query."""
    return [
        row_identity(row.query, row.earlier, row.request, plain=True) or None for row in rows.rows
    ]


def cluster_units(
    kind: RowsKind, names: Sequence[Hashable | None], clusters: Sequence[Hashable | None] | None
) -> Units:
    """The units of which one row each is drawn: clusters, and in a list of questions copies too."""
    return units_of((None,) * len(names) if kind is RowsKind.TRAFFIC else names, clusters)


def renumbered(units: Units) -> Units:
    """The same units, numbered from 0 by first appearance."""
    _, first, ids = np.unique(units, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[ids].astype(np.intp)


def one_per_unit(units: Units, key: bytes) -> NDArray[np.intp]:
    """One row of each unit, drawn at random, in the order of the rows.

    The draw depends on the key and on the places of the rows alone, never on queries or labels, so
    given the units every row of a unit is drawn with the same chance. A file is always drawn alike.

    Args:
        units: The unit of each row, shape (n,).
        key: Key of the draw.
    """
    count = len(units)
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=16, person=b"racer cluster").digest())
    order = np.random.default_rng(seed).permutation(count)
    _, first = np.unique(units[order], return_index=True)
    return np.sort(order[first])
