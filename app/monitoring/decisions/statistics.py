"""Statistics over all stored decisions of a calibration: counts, sets, losses, shadow sample."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, literal_column, select

from app.store import Store
from app.store.tables import CalibrationRow, DecisionRow, VerdictRow
from app.store.traffic import WeekOfTraffic, past_week
from app.utc import SKEW, text_of
from racer_core.calibration.shadow import sampling_number


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCount:
    """How many decisions without verdicts chose one set."""

    selected: tuple[str, ...]
    null_selected: bool
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVerdicts:
    """The set of one decision, and the verdicts on its answers."""

    selected: tuple[str, ...]
    null_selected: bool
    verdicts: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCounts:
    """How many decisions of one application are stored."""

    decisions: int
    shadow: int
    judged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCount:
    """How many requests of an application came while a sampling rate was in force."""

    application: str  # empty where none is configured
    rate: float
    requests: int
    last_at: str  # the time of the last of them


class DecisionStatistics:
    """Read-only queries on the store's tables; each method is one transaction, and blocks.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def counts(
        self, calibration_ids: Sequence[str], application: str = "", since: str = ""
    ) -> DecisionCounts:
        """How many decisions these calibrations made for an application, from a time on."""
        of_it = _of(calibration_ids, application, since)
        with self._store.transaction() as session:

            def count(*conditions: Any) -> int:
                return session.scalar(select(func.count()).where(*of_it, *conditions)) or 0

            return DecisionCounts(
                decisions=count(),
                shadow=count(DecisionRow.shadow),
                judged=count(DecisionRow.shadow, DecisionRow.judged),
            )

    def sets(
        self, calibration_ids: Sequence[str], application: str = "", since: str = ""
    ) -> tuple[list[SetCount], list[SetVerdicts]]:
        """The sets of ordinary decisions from a time on, without and with verdicts that count."""
        ordinary = (*_of(calibration_ids, application, since), DecisionRow.ordinary)
        chosen = DecisionRow.selected, DecisionRow.null_selected
        by_set = select(*chosen, func.count()).where(*ordinary).group_by(*chosen)
        # The expression keeps the index of decisions out of the plan: going from the few verdicts
        # to their decisions is faster.
        of_it = DecisionRow.calibration_id.concat("").in_(calibration_ids)
        judged = (
            select(DecisionRow.id, *chosen, VerdictRow.candidate, VerdictRow.correct)
            .join(VerdictRow, VerdictRow.decision_id == DecisionRow.id)
            .where(of_it, DecisionRow.application == application, *_since(since))
            .where(DecisionRow.ordinary, VerdictRow.counts)
        )
        sets: dict[str, tuple[str, bool]] = {}
        verdicts: dict[str, dict[str, bool]] = {}
        with self._store.transaction() as session:
            for decision_id, selected, null, candidate, correct in session.execute(judged):
                sets[decision_id] = (selected, null)
                verdicts.setdefault(decision_id, {})[candidate] = correct
            totals = Counter(
                {(selected, null): count for selected, null, count in session.execute(by_set)}
            )
        without = [
            SetCount(selected=tuple(json.loads(names)), null_selected=null, count=count)
            for (names, null), count in (totals - Counter(sets.values())).items()
        ]
        with_verdicts = [
            SetVerdicts(
                selected=tuple(json.loads(names)), null_selected=null, verdicts=verdicts[each]
            )
            for each, (names, null) in sets.items()
        ]
        return without, with_verdicts

    def daily_requests(self, now: datetime, *, by_application: bool) -> dict[str, int]:
        """How many requests a day has now: those of the past day, or 24 times the past hour's.

        Args:
            now: The present time.
            by_application: For each application; else under an empty name for all.
        """
        # As an expression, or SQLite would go through all decisions in an index by application
        # instead of those of a day in the index by time.
        application = DecisionRow.application.concat(literal_column("''"))

        def count(since: timedelta) -> Mapping[str, int]:
            since_then = DecisionRow.created_at.between(text_of(now - since), text_of(now + SKEW))
            if not by_application:
                return {"": session.scalar(select(func.count()).where(since_then)) or 0}
            statement = select(application, func.count()).where(since_then).group_by(application)
            return {name: number for name, number in session.execute(statement)}

        with self._store.transaction() as session:
            day, hour = count(timedelta(days=1)), count(timedelta(hours=1))
        return {name: max(number, 24 * hour.get(name, 0)) for name, number in day.items()}

    def past_week(self, application: str) -> WeekOfTraffic:
        """The requests of an application in the past week, and their labels."""
        with self._store.transaction() as session:
            return past_week(session, application)

    def sampling_rates(self, since: str | None = None) -> list[RateCount]:
        """The sampling rates of requests, drawn or not, by application.

        Args:
            since: Only requests from then on: UTC, ISO 8601; None: all that are stored.
        """
        of_request = DecisionRow.application, DecisionRow.sampling_rate
        statement = (
            select(*of_request, func.count(), func.max(DecisionRow.created_at))
            .where(DecisionRow.sampling_rate.is_not(None))
            .group_by(*of_request)
        )
        if since is not None:
            statement = statement.where(DecisionRow.created_at >= since)
        with self._store.transaction() as session:
            return [
                RateCount(application=name, rate=rate, requests=requests, last_at=last_at)
                for name, rate, requests, last_at in session.execute(statement)
                if rate is not None
            ]

    def losses(
        self, calibration_ids: Sequence[str], application: str = "", since: str = "", *, key: bytes
    ) -> list[float]:
        """The losses of an application's shadow decisions that count.

        They are a sample at one rate: at the lowest that was in force since these calibrations
        were made, below which each decision was drawn (:mod:`app.calibrations.thinning`).

        Args:
            calibration_ids: The calibrations that made the decisions.
            application: Their application.
            since: Only decisions from then on: UTC, ISO 8601; empty: all that are stored.
            key: Secret of the draws.
        """
        judged = _judged(calibration_ids, application, since)
        made = select(func.min(CalibrationRow.created_at)).where(
            CalibrationRow.id.in_(calibration_ids)
        )
        rates = select(
            func.min(DecisionRow.sampling_rate), func.max(DecisionRow.sampling_rate)
        ).where(
            DecisionRow.application == application,
            DecisionRow.sampling_rate > 0.0,
            DecisionRow.created_at >= made.scalar_subquery(),
        )
        with self._store.transaction() as session:
            lowest, highest = session.execute(rates).one()
            if lowest is None or lowest == highest:
                found = session.scalars(select(DecisionRow.loss).where(*judged))
                return [loss for loss in found if loss is not None]
            of_loss = select(DecisionRow.loss, DecisionRow.id, DecisionRow.document)
            return [
                loss
                for loss, decision_id, document in session.execute(of_loss.where(*judged))
                if loss is not None and _draw(decision_id, json.loads(document), key) < lowest
            ]


def _draw(decision_id: str, document: Mapping[str, Any], key: bytes) -> float:
    """The number that drew a decision, by its id or by the turn of its conversation."""
    drawn_by = document.get("conversation") or decision_id
    return sampling_number(key, drawn_by.encode(), document.get("turn") or 0)


def _judged(
    calibration_ids: Sequence[str], application: str, since: str
) -> tuple[ColumnElement[bool], ...]:
    return *_of(calibration_ids, application, since), DecisionRow.loss.is_not(None)


def _of(
    calibration_ids: Sequence[str], application: str, since: str
) -> tuple[ColumnElement[bool], ...]:
    of_it = DecisionRow.calibration_id.in_(calibration_ids), DecisionRow.application == application
    return *of_it, *_since(since)


def _since(since: str) -> tuple[ColumnElement[bool], ...]:
    return (DecisionRow.created_at >= since,) if since else ()
