"""Row kinds: the parts of an upload with a threshold each, by turn and by what was sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.calibrations.columns import RowColumns
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.settings import Settings
from app.store.calibration_record import Population
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import CalibrationError
from racer_core.trained_router import TrainedRouter
from racer_core.types import RowsKind


@dataclass(frozen=True, slots=True)
class RowKind:
    """Rows of one turn, labelled under one vector of conditions, or drawn from one application."""

    rows: RowColumns
    conditions: tuple[str, ...]
    is_later: bool
    drawn: str | None = None
    is_together: bool = False  # first and later turns are one population
    is_whole: bool = False  # they are all turns of conversations, turn by turn


class RowKinds:
    """Divides the rows of uploads.

    Args:
        settings: The configuration.
        trained: The router.
        grouping: Finds the group of a row as of a request.
        conditions: Finds what candidates are sent, but for the query.
    """

    def __init__(
        self,
        settings: Settings,
        trained: TrainedRouter,
        grouping: Grouping,
        conditions: ConditionReader,
    ) -> None:
        self._settings = settings
        self._trained = trained
        self._grouping = grouping
        self._conditions = conditions

    def kinds(self, rows: RowColumns) -> list[RowKind]:
        """The rows by turn and conditions: first turns first, then those with the most rows.

        The rows drawn from an application are of one kind, whatever their conditions. Other rows
        without digests count as labelled with what the configuration sends. Whole conversations
        are last: their rows count by turn, too.
        """
        pool = self._trained.pool
        order = [rows.pool.index(name) for name in pool]
        places: dict[tuple[str, ...], int] = {self._conditions.configured.of(pool): 0}
        found = [tuple(vector[i] for i in order) for vector in rows.conditions]
        # The last entry is that of the id -1.
        ids = np.array([*(places.setdefault(each, len(places)) for each in found), 0])
        of_rows = ids[rows.condition_ids]
        vectors, drawn = list(places), dict[int, str]()
        for name in self._settings.drawn_applications:
            of_rows[[group == name for group in rows.groups or (None,) * len(rows)]] = len(vectors)
            drawn[len(vectors)] = name
            vectors.append(tuple(map(self._conditions.added.__getitem__, pool)))
        together = [p for p, name in drawn.items() if name in self._settings.together_applications]
        kinds = 2 * of_rows + (rows.later & ~np.isin(of_rows, together))
        by_kind = np.argsort(kinds, stable=True)
        ends = np.flatnonzero(np.diff(kinds[by_kind])) + 1
        parts = [
            RowKind(
                rows=rows.take(part),
                conditions=vectors[place],
                is_later=bool(is_later),
                drawn=drawn.get(place),
                is_together=place in together,
            )
            for part in np.split(by_kind, ends)
            for place, is_later in [divmod(int(kinds[part[0]]), 2)]
        ]
        parts.sort(key=lambda part: (part.is_later, -len(part.rows)))
        in_drawn = np.isin(of_rows, list(drawn))
        return [*parts, *self._conversations(rows, np.where(in_drawn, -1, of_rows), vectors)]

    def _conversations(
        self, rows: RowColumns, of_rows: NDArray[np.int64], vectors: Sequence[tuple[str, ...]]
    ) -> Iterator[RowKind]:
        """Whole conversations by their conditions, and none of a drawn application.

        Args:
            rows: All rows.
            of_rows: The place of each row's conditions, shape (n,); -1 for a drawn row.
            vectors: The conditions.
        """
        if rows.turns is None:
            return
        turns = rows.turns.in_order
        turns = turns[of_rows[turns] >= 0]
        self._check_conversations(rows.take(turns), of_rows[turns])
        places: list[int] = np.unique(of_rows[turns]).tolist()
        for place in places:
            whole = rows.take(turns[of_rows[turns] == place])
            yield RowKind(rows=whole, conditions=vectors[place], is_later=False, is_whole=True)

    def _check_conversations(self, rows: RowColumns, conditions: NDArray[np.int64]) -> None:
        """Refuse conversations whose turns are of several populations."""
        assert rows.turns is not None
        names = self.groups(rows) or (None,) * len(rows)
        groups = np.unique([name or "" for name in names], return_inverse=True)[1]
        is_same = np.diff(rows.turns.conversations) == 0
        if (is_same & ((np.diff(conditions) != 0) | (np.diff(groups) != 0))).any():
            raise CalibrationError(
                "the turns of a conversation differ in their group, or in what the candidates were "
                'sent beside their texts: leave "conversation" out of such rows, or label all '
                "turns alike"
            )

    def one_per_unit(self, part: RowKind, kind: RowsKind, *, by_cluster: bool) -> RowKind:
        """One random row of each cluster, or of each question, among rows of one kind.

        Whole conversations stay whole.
        """
        if part.is_whole:
            return part
        ids: list[int] = part.rows.clusters.tolist()
        clusters = [each if by_cluster and each >= 0 else None for each in ids]
        chosen = self._trained.one_per_cluster(part.rows.identities, clusters, kind)
        return replace(part, rows=part.rows.take(chosen))

    def groups(self, rows: RowColumns) -> tuple[str | None, ...] | None:
        """The group of each row, found as for a request."""
        given = rows.groups or (None,) * len(rows)
        found = tuple(map(self._grouping.of_row, rows.queries, given))
        return found if any(found) else None


def with_clusters(
    guarantee: CalibrationOptions, part: RowKind, *, kind: RowsKind
) -> CalibrationOptions:
    """The terms, with what the clusters of one population's rows make of them."""
    rows = part.rows
    if part.is_whole:
        assert rows.turns is not None
        is_dependent = rows.turns.share(rows.clusters)
        return replace(
            guarantee, one_per_cluster=False, max_weight=None, has_dependent_rows=is_dependent
        )
    is_one_each = guarantee.one_per_cluster and rows.cluster_count is not None
    return replace(
        guarantee,
        one_per_cluster=is_one_each,
        has_dependent_rows=not is_one_each and rows.are_dependent(kind),
    )


def is_of_same_kind(other: RowKind | Population, first: RowKind) -> bool:
    """Whether rows were sent like the first ones, but for the turn."""
    return (other.conditions, other.drawn) == (first.conditions, first.drawn)


def used_kinds(kinds: Sequence[RowKind], first: RowKind, fewest: int | None) -> Iterator[RowKind]:
    """The kinds that are worth scoring: those that may have enough rows, and later turns.

    Too few later turns or conversations are scored for the evidence, which says how many they are.
    """
    for kind in kinds:
        is_later_of_first = kind.is_later and is_of_same_kind(kind, first)
        if is_later_of_first or kind.is_whole or (fewest is not None and len(kind.rows) >= fewest):
            yield kind
