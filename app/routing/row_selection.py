"""Row selection: the labelled rows whose threshold applies to a request.

Only rows of the same turn that were labelled under the same conditions, over all candidates among
which the set is chosen, are exchangeable with it. Where they are too few, other rows choose its
set, and the certificate is void.

In a smaller pool, rows that differ only in what the other candidates were sent agree. Their queries
may still be of other parts of the traffic, with other risks. So a request whose conditions over the
whole pool have rows of their own is decided by them alone; only without such rows, all rows that
agree are joined. The rule reads digests and the number of rows that count, on which the guarantee
is conditional; it reads neither labels nor scores of the smaller pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cachetools import LRUCache

from app.routing.conditions import ROWS
from app.routing.query import Query
from app.store.calibration_record import CalibrationRecord, Population
from racer_core.records.conversation import RoutedText

_MAX_POOLS: Final = 64  # of a record, whose populations are indexed

Pool = tuple[str, ...]
# Later turns or not, and the digests of the pool's candidates -> places of populations.
_Index = Mapping[tuple[bool, tuple[str, ...]], tuple[int, ...]]


class TurnKind(Enum):
    """The turn of the conversation that a request asks about."""

    FIRST = auto()
    LATER = auto()  # decided by rows of later turns
    UNCALIBRATED = auto()  # a later turn, decided by rows of first turns


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelection:
    """The rows that decide a request.

    Attributes:
        populations: Their places in the record.
        turn: The turn of the conversation.
        differing: The fields in which the request was sent unlike the rows; none: it was sent like
            them.
    """

    populations: tuple[int, ...]
    turn: TurnKind
    differing: tuple[str, ...] = ()

    @property
    def is_chosen_by_conditions(self) -> bool:
        """Whether the conditions of a first turn chose other rows than the first population."""
        return self.populations != (0,) and self.turn is TurnKind.FIRST


class RowSelector:
    """Selects rows of records.

    Args:
        text: What the router reads of a conversation.
    """

    def __init__(self, text: RoutedText) -> None:
        self._text = text
        self._indexes: LRUCache[tuple[str, Pool], _Index] = LRUCache(_MAX_POOLS)

    def select(self, record: CalibrationRecord, names: Pool, query: Query) -> RowSelection:
        """The rows for a request.

        Args:
            record: The record that decides.
            names: The candidates among which the set is chosen, in the order of the pool.
            query: The request.
        """
        index = self._index(record, names)
        digests = query.conditions.of(names)
        turn = TurnKind.LATER if query.later else TurnKind.FIRST
        if alike := self._own(record, names, query) or index.get((query.later, digests)):
            return RowSelection(populations=alike, turn=turn)
        usual = _digests(record.populations[0], record, names)
        populations = index.get((query.later, usual))
        if populations is None:
            populations, turn = (0,), TurnKind.UNCALIBRATED
        differing = () if digests == usual else query.conditions.differing or (ROWS,)
        return RowSelection(populations=populations, turn=turn, differing=differing)

    def _own(self, record: CalibrationRecord, names: Pool, query: Query) -> tuple[int, ...] | None:
        """In a smaller pool, the rows of the request's conditions over the whole pool."""
        pool = record.calibration.pool
        if names == pool:
            return None
        return self._index(record, pool).get((query.later, query.conditions.of(pool)))

    def _index(self, record: CalibrationRecord, names: Pool) -> _Index:
        index = self._indexes.get((record.id, names))
        if index is None:
            found: dict[tuple[bool, tuple[str, ...]], tuple[int, ...]] = {}
            for place, population in enumerate(record.populations):
                if place == 0 or self._decides(population):
                    key = (population.later, _digests(population, record, names))
                    found[key] = (*found.get(key, ()), place)
            index = self._indexes[record.id, names] = found
        return index

    def _decides(self, population: Population) -> bool:
        """Whether there are enough rows, read by the current ``routing.text``."""
        was_read_so = not population.later or population.text == self._text
        return was_read_so and population.is_enough


def _digests(population: Population, record: CalibrationRecord, names: Pool) -> tuple[str, ...]:
    """The digests of these candidates; none where they are unknown, which equals no request's."""
    if population.conditions is None:
        return ()
    digests = dict(zip(record.calibration.pool, population.conditions, strict=True))
    return tuple(digests[name] for name in names)
