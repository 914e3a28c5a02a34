"""Row selection: the labelled rows whose threshold applies to a request.

Only rows of the same turn that were labelled under the same conditions, over all candidates of the
calibration, are exchangeable with it. Where they are too few, other rows choose its set, and the
certificate is void.

A smaller pool changes nothing: rows that differ only in what the other candidates were sent may be
of other parts of the traffic, with other risks. Neither labels nor scores select rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from cachetools import LRUCache

from app.routing.conditions import ROWS
from app.routing.query import Query
from app.settings.applications import Premise, Turns
from app.store.calibration_record import CalibrationRecord, Population
from racer_core.calibration.shadow import turn_number
from racer_core.records.conversation import RoutedText

_MAX_RECORDS: Final = 64  # whose populations are indexed


@dataclass(frozen=True, slots=True)
class _Index:
    """The places of a record's populations.

    Attributes:
        by_conditions: Later turns or not, and the digests of the calibration's candidates -> place.
            Groups may have populations of their own under the same conditions.
        of_group: The same and a group -> the place with its rows.
        by_group: A group -> the first place with its rows of first turns.
        drawn: Later turns or not, and an application -> the place of the rows drawn from it.
        conversations: The digests and a group -> the place of its whole conversations.
    """

    by_conditions: Mapping[tuple[bool, tuple[str, ...]], int]
    of_group: Mapping[tuple[bool, tuple[str, ...], str | None], int]
    by_group: Mapping[str | None, int]
    drawn: Mapping[tuple[bool, str | None], int]
    conversations: Mapping[tuple[tuple[str, ...], str | None], int]

    def alike(self, later: bool, digests: tuple[str, ...], group: str | None) -> int | None:
        """The place of the rows of a turn and its conditions, those of the group if it has any."""
        place = self.of_group.get((later, digests, group))
        return self.by_conditions.get((later, digests)) if place is None else place


class TurnKind(Enum):
    """The turn of the conversation that a request asks about."""

    FIRST = auto()
    LATER = auto()  # decided by rows of later turns
    UNCALIBRATED = auto()  # a later turn, decided by rows of first turns
    CONVERSATION = auto()  # any turn of a conversation, decided by rows of whole conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelection:
    """The rows that decide a request.

    Attributes:
        population: Their place in the record.
        turn: The turn of the conversation.
        differing: The fields in which the request was sent unlike the rows; none: it was sent like
            them.
        premise: Why rows cover a request that does not differ.
        turns: Whether rows of first and of later turns are one population.
        is_after_answers: The turn is one of a whole conversation, after earlier answers.
        is_too_late: The turn comes later in its conversation than any that the sample draws.
    """

    population: int
    turn: TurnKind
    differing: tuple[str, ...] = ()
    premise: Premise = "alike"
    turns: Turns = "separate"
    is_after_answers: bool = False
    is_too_late: bool = False

    @property
    def is_chosen_by_conditions(self) -> bool:
        """Whether the conditions of a first turn chose other rows than the first population."""
        return self.population != 0 and self.turn is TurnKind.FIRST and not self.differing


class RowSelector:
    """Selects rows of records.

    Args:
        text: What the router reads of a conversation.
        added: Digests of what the gateway adds to the requests of each candidate.
        own_texts: What it reads in applications that have a text of their own.
    """

    def __init__(
        self,
        text: RoutedText,
        added: Mapping[str, str] | None = None,
        own_texts: Mapping[str, RoutedText] | None = None,
    ) -> None:
        self._text = text
        self._own_texts = own_texts or {}
        self._added = added or {}
        self._indexes: LRUCache[str, _Index] = LRUCache(_MAX_RECORDS)

    def select(
        self,
        record: CalibrationRecord,
        query: Query,
        group: str | None = None,
        premise: Premise = "alike",
        *,
        is_whole: bool = False,
    ) -> RowSelection:
        """The rows of the record that decides, for a request.

        Args:
            record: The record.
            query: The request's query.
            group: Its group, whose other rows choose the set where none was sent like the request.
            premise: That of its application. Without drawn rows, rows alike cover the request.
            is_whole: It is a turn of a conversation whose turns so far had the same terms.
        """
        found = self._select(record, query, group, premise, is_whole=is_whole)
        is_together = found.turns == "together"
        turns = record.turns_of(group)
        if turns is None or not (is_together or found.turn is TurnKind.LATER):
            return found
        number = turn_number(query.answers, is_together=is_together)
        return replace(found, is_too_late=number >= turns)

    def _select(
        self,
        record: CalibrationRecord,
        query: Query,
        group: str | None,
        premise: Premise,
        *,
        is_whole: bool,
    ) -> RowSelection:
        index = self._index(record)
        if premise == "drawn" and (False, group) in index.drawn:
            return self._drawn(record, query.later, index, group)
        digests = query.conditions.of(record.calibration.pool)
        if is_whole:
            place = index.conversations.get((digests, group if record.has_groups else None))
            if place is not None:
                return RowSelection(
                    population=place,
                    turn=TurnKind.CONVERSATION,
                    is_after_answers=query.later,
                )
        turn = TurnKind.LATER if query.later else TurnKind.FIRST
        population = index.alike(query.later, digests, group)
        if population is not None:
            return RowSelection(population=population, turn=turn)
        nearest = index.by_group.get(group, 0)
        usual = record.populations[nearest].conditions
        population = index.alike(query.later, usual, group)
        if population is None:
            population = nearest
            turn = TurnKind.UNCALIBRATED if query.later else turn
        differing = () if digests == usual else query.conditions.differing or (ROWS,)
        return RowSelection(population=population, turn=turn, differing=differing)

    def _drawn(
        self, record: CalibrationRecord, later: bool, index: _Index, group: str | None
    ) -> RowSelection:
        """The rows drawn from an application, whatever its request consists of."""
        turn = TurnKind.LATER if later else TurnKind.FIRST
        is_together = record.populations[index.drawn[False, group]].together
        place = index.drawn.get((later and not is_together, group))
        if place is None:
            place, turn = index.drawn[False, group], TurnKind.UNCALIBRATED
        added = tuple(map(self._added.get, record.calibration.pool))
        is_same = record.populations[place].conditions == added
        differing = () if is_same else (ROWS,)
        return RowSelection(
            population=place,
            turn=turn,
            differing=differing,
            premise="drawn",
            turns="together" if is_together else "separate",
        )

    def _index(self, record: CalibrationRecord) -> _Index:
        index = self._indexes.get(record.id)
        if index is None:
            deciding = [
                (place, each)
                for place, each in enumerate(record.populations)
                if place == 0 or self._decides(each, record)
            ]
            groups = [
                (group, place)
                for place, each in reversed(deciding)
                if not each.later
                for group in each.calibration.group_names
            ]
            places: dict[tuple[bool, tuple[str, ...]], int] = {}
            of_group: dict[tuple[bool, tuple[str, ...], str | None], int] = {}
            for place, each in deciding:
                if each.drawn is None and not each.conversations:
                    # Unknown digests, (), equal those of no request.
                    kind = each.later, each.conditions
                    places.setdefault(kind, place)
                    of_group |= {(*kind, name): place for name in each.calibration.group_names}
            drawn: dict[tuple[bool, str | None], int] = {
                (each.later, each.drawn): place
                for place, each in deciding
                if each.drawn is not None
            }
            whole = {
                (each.conditions, name): place
                for place, each in deciding
                if each.conversations
                for name in each.calibration.group_names
            }
            index = self._indexes[record.id] = _Index(places, of_group, dict(groups), drawn, whole)
        return index

    def _decides(self, population: Population, record: CalibrationRecord) -> bool:
        """Whether there are enough rows, read by the current ``routing.text``.

        A change of an application's own text is one of ``Settings.grouping``.
        """
        text = self._own_texts.get(population.drawn or "", self._text)
        was_read_so = not population.later or population.text == text
        return was_read_so and population.is_enough(record.alphas)
