"""Eligibility: which decisions are evidence about a calibration, and of what."""

from __future__ import annotations

from app.monitoring.decisions.record import DecisionRecord, are_answered_like_rows, are_like_rows
from app.monitoring.drift.populations import MonitoredCalibration, MonitoredPopulation
from app.routing.decision import ChosenBy


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
