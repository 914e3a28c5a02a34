"""Realised risk of an application's decisions, from feedback (bounds) and the shadow sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from app.monitoring.decisions.statistics import DecisionStatistics, SetCount, SetVerdicts
from app.monitoring.drift import statistics as drift_statistics
from app.monitoring.drift.populations import MonitoredPopulation
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.shadow import (
    RIGHT,
    UNKNOWN,
    WRONG,
    FeedbackBounds,
    RiskEstimate,
    estimate_risk,
    feedback_bounds,
)
from racer_core.types import BINARY_TARGETS

FACTORS: Final = (1.5, 2.0)  # of alpha: the risks for which it is said when they are seen
CHANCE: Final = 0.9
WEEK_DAYS: Final = 7.0


def detection(
    test: RiskEProcess,
    alpha: float,
    *,
    judged_a_week: float,
    counted_a_week: float,
    labelled: float = 1.0,
) -> dict[str, Any]:
    """How long it takes until the alarm on judged losses sees that the risk has grown.

    For example: at alpha 0.1 with 199 rows a risk of 0.2 is seen with probability 0.9 within some
    1,000 judged requests: 100 days where 70 are judged a week. If half of the sample is labelled,
    the others count as hits, and the alarm sees a risk of 0.1: never.

    Args:
        test: The alarm as it begins.
        alpha: The risk level of the calibration.
        judged_a_week: Judged requests of a week that count for the risk.
        counted_a_week: Requests of a week that count for the risk, judged or not.
        labelled: The share of sampled requests that get a label.

    Returns:
        For each risk how many judged requests it takes, how many days that is now, and the sampling
        rate, all labelled, that would make it a week. None: it is never seen so, or not even by
        judging all.
    """
    found: list[dict[str, Any]] = []
    for risk in (min(factor * alpha, 1.0) for factor in FACTORS):
        best = _alarm_within(test.rho, test.level, risk)
        bets = best if labelled == 1.0 else _alarm_within(test.rho, test.level, risk * labelled)
        needed = None if bets is None else math.ceil(bets * labelled)
        days = rate = None
        if needed is not None:
            days = WEEK_DAYS * needed / judged_a_week if judged_a_week else None
        if best is not None:
            rate = best / counted_a_week if 0 < best <= counted_a_week else None
        found.append({"risk": risk, "judged": needed, "days": days, "rate_for_a_week": rate})
    return {
        "chance": CHANCE,
        "judged_a_week": judged_a_week,
        "labelled": labelled,
        "risks": found,
    }


@lru_cache(maxsize=256)  # the page asks every few seconds
def _alarm_within(rho: float, level: float, risk: float) -> int | None:
    return RiskEProcess(rho, level=level).alarm_within(risk, CHANCE)


def feedback_range(
    calibration: Calibration, without: Sequence[SetCount], with_verdicts: Sequence[SetVerdicts]
) -> FeedbackBounds:
    """Bounds on the realised risk, whatever the missing verdicts would be.

    Args:
        calibration: The calibration that made the decisions.
        without: Sets of decisions without verdicts.
        with_verdicts: Sets of decisions with verdicts.
    """
    pool, options = calibration.pool, calibration.options
    sets = [*without, *with_verdicts]
    if options.risk_target not in BINARY_TARGETS:  # a verdict of right or wrong is no quality
        decisions = sum(each.count for each in without) + len(with_verdicts)
        return FeedbackBounds(lower=0.0, upper=1.0, decisions=decisions, identified=0)
    labels = [[UNKNOWN] * len(pool) for _ in without]
    labels += [_labels(pool, each) for each in with_verdicts]
    chosen = [[name in each.selected for name in pool] for each in sets]
    nulls = [each.null_selected for each in sets]
    repeats = np.array([*(each.count for each in without), *(1 for _ in with_verdicts)], np.int64)
    shape = (len(sets), len(pool))
    return feedback_bounds(
        np.array(labels, dtype=np.int8).reshape(shape).repeat(repeats, axis=0),
        np.array(chosen, dtype=bool).reshape(shape).repeat(repeats, axis=0),
        np.array(nulls, dtype=bool).repeat(repeats),
        options.risk_target,
        options.r,
    )


def estimate(losses: Sequence[float]) -> RiskEstimate:
    """The risk that the judged shadow sample shows.

    Sampling never looks at the query, so that queries judged at one rate are drawn like all.
    """
    values = np.array(losses, dtype=np.float64)
    return estimate_risk(values, np.ones(values.size), values.size)


def bound(population: MonitoredPopulation) -> float:
    """What its realised risk should not exceed, by ``largest_risk``; NaN where that is none."""
    largest = drift_statistics.largest_risk(population.calibration)
    return math.nan if largest is None else largest


def risk_as_json(
    statistics: DecisionStatistics,
    population: MonitoredPopulation,
    key: bytes,
    alarms: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Both estimates with their counts; blocks, and raises :class:`StoreError`.

    Args:
        statistics: Of the store.
        population: What is monitored.
        key: Secret of the draws.
        alarms: The drift tests of the population, as JSON; None: it has none.
    """
    of_it, calibration = population.decisions, population.calibration
    without, with_verdicts = statistics.sets(*of_it)
    bounds = feedback_range(calibration, without, with_verdicts)
    shadow = estimate(statistics.losses(*of_it, key=key))
    counts = statistics.counts(*of_it)
    options = calibration.options
    return {
        "risk_target": options.risk_target,
        "alpha": options.alpha,
        "risk_q95": calibration.risk_q95(options.alpha),
        "decisions": {
            "kept": counts.decisions,
            "at_own_alpha_and_pool": bounds.decisions,
            "of_these_with_feedback": len(with_verdicts),
        },
        "feedback": {
            "lower": bounds.lower,
            "upper": bounds.upper,
            "identified": bounds.identified,
        },
        "shadow": {
            "sampled": counts.shadow,
            "judged": counts.judged,
            "counted": shadow.sampled,
            "risk": None if math.isnan(shadow.risk) else shadow.risk,
            "lower": shadow.lower,
            "upper": shadow.upper,
        },
        "detection": _detection(statistics, population, alarms),
    }


def _detection(
    statistics: DecisionStatistics,
    population: MonitoredPopulation,
    alarms: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """As :func:`detection`, for the traffic of the past week; None: losses are not watched."""
    stream = (alarms or {}).get("streams", {}).get(drift_statistics.RISK)
    if stream is None:
        return None
    calibration = population.calibration
    week = statistics.past_week(population.application)
    return detection(
        RiskEProcess(stream["rho"], level=stream["level"]),
        calibration.options.alpha,
        judged_a_week=week.judged,
        counted_a_week=week.requests * calibration.n / len(calibration.fingerprints),
        labelled=week.labelled,
    )


def _labels(pool: Sequence[str], each: SetVerdicts) -> list[int]:
    label = {True: RIGHT, False: WRONG, None: UNKNOWN}
    return [label[each.verdicts.get(name)] for name in pool]
