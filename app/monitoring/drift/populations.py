"""Monitored populations: the rows with which live traffic is compared, by application.

A calibration without applications has one: its largest population. With applications each has one,
which is the largest population of first turns with rows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from app.monitoring.decisions.record import DecisionRecord, are_answered_like_rows, are_like_rows
from app.routing.decision import ChosenBy
from app.store.calibration_record import NO_APPLICATION, CalibrationRecord
from racer_core.calibration.calibration import Calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredPopulation:
    """Rows of first turns of one application.

    Attributes:
        application: Its name; ``NO_APPLICATION`` where the calibration has none.
        place: The place of the population that has the rows, in the record.
        calibration: The rows, with the alpha that was configured when they were uploaded.
        calibration_ids: The calibrations with these rows: their decisions show the same risk.
        counts_repeats: The rows are a sample of traffic, with its own repeats: repeats count.
        together: The rows are of later turns, too, unlike the queries.
    """

    application: str
    place: int
    calibration: Calibration
    calibration_ids: tuple[str, ...]
    counts_repeats: bool
    together: bool = False

    @property
    def decisions(self) -> tuple[tuple[str, ...], str]:
        """Where its decisions are in the store: their calibrations and application."""
        return self.calibration_ids, self.application


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredCalibration:
    """A calibration with its monitored populations.

    Attributes:
        record: The calibration.
        by_application: The populations by their application.
    """

    record: CalibrationRecord
    by_application: Mapping[str, MonitoredPopulation]

    @classmethod
    def of(cls, record: CalibrationRecord) -> Self:
        """Find the monitored populations of a record. Blocks."""
        if not record.is_by_application:
            whole = MonitoredPopulation(
                application=NO_APPLICATION,
                place=0,
                calibration=_watched(record, NO_APPLICATION, 0, record.calibration),
                calibration_ids=(record.id,),
                counts_repeats=record.counts_repeats,
            )
            return cls(record=record, by_application={NO_APPLICATION: whole})
        found: dict[str, MonitoredPopulation] = {}
        for place, population in enumerate(record.populations):
            rows = {} if population.later else _rows_by_application(population.calibration)
            for name in rows.keys() - found.keys():
                calibration = population.calibration
                if len(rows) > 1:
                    calibration = calibration.take(rows[name])
                calibration = _watched(record, name, place, calibration)
                found[name] = MonitoredPopulation(
                    application=name,
                    place=place,
                    calibration=calibration,
                    calibration_ids=record.ids_of(name),
                    counts_repeats=record.counts_repeats_of(name),
                    together=population.together,
                )
        return cls(record=record, by_application=dict(sorted(found.items())))

    def find(self, application: str, place: int | None) -> MonitoredPopulation | None:
        """The population to which a query belongs; None if it is not monitored.

        Args:
            application: The application of the query.
            place: The place of the population that set its threshold; None: the first.
        """
        population = self.by_application.get(application)
        return population if population and population.place == (place or 0) else None


def _watched(record: CalibrationRecord, name: str, place: int, rows: Calibration) -> Calibration:
    """The rows at the level that was configured when they were uploaded.

    A later level is served, and begins no alarm anew: an alarm that began anew with each edit
    would have as many chances as there are edits.
    """
    own = record.own_alpha(name)
    if own is None:
        return rows
    alpha = own.alpha
    options = replace(rows.options, alpha=alpha)
    return rows if options == rows.options else replace(rows, options=options)


def _rows_by_application(calibration: Calibration) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(calibration.groups or ()):
        if name is not None:
            rows.setdefault(name, []).append(row)
    return rows


# Eligibility: which decisions are evidence about a calibration, and of what.


def population_of(
    decision: DecisionRecord, monitored: MonitoredCalibration
) -> MonitoredPopulation | None:
    """The rows with which its query is compared; None if it does not count for drift.

    A query counts if this calibration routed it by the monitored population of its application.
    """
    population = monitored.find(decision.application, decision.population)
    if population is None or decision.calibration_id != monitored.record.id:
        return None
    lacks_neighbours = population.calibration.neighbours is not None and decision.neighbours is None
    if decision.scores is None or lacks_neighbours or not are_like_rows(decision.reasons):
        return None
    return population


def population_with_loss(
    decision: DecisionRecord, monitored: MonitoredCalibration
) -> MonitoredPopulation | None:
    """The rows whose risk it shows; None if verdicts on its answers give no loss that counts.

    A repeat counts only where the rows are a sample of traffic, which has repeats of its own.
    """
    population = population_answered(decision, monitored)
    if population is None or (decision.repeated and not population.counts_repeats):
        return None
    return population


def population_answered(
    decision: DecisionRecord, monitored: MonitoredCalibration
) -> MonitoredPopulation | None:
    """The rows like which it was answered; None if there are none.

    The whole pool was to choose from, and would be called as for the rows.
    """
    population = population_of(decision, monitored)
    if population is None or not are_answered_like_rows(decision.reasons):
        return None
    return population if decision.pool == population.calibration.pool else None


def is_ordinary(decision: DecisionRecord, monitored: MonitoredCalibration) -> bool:
    """Whether its application's own threshold chose its set, so that the set has its risk."""
    population = population_answered(decision, monitored)
    if population is None:
        return False
    options = population.calibration.options
    return (
        decision.chosen_by is ChosenBy.THRESHOLD
        and decision.alpha == options.alpha
        and decision.score == options.score
    )
