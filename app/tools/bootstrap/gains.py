"""What a pool gains by RACER on held-out rows, and one sentence of advice.

All figures are of the same rows, which trained nothing, over random splits into calibration and
test. Errors are standard errors over rows; differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from racer_core.aggregation.vote import Method
from racer_core.offline.evaluation_result import FULL_POOL, Evaluation, Setting
from racer_core.offline.same_answer import Calling, SequenceKey
from racer_core.offline.standard_errors import standard_error
from racer_core.types import FloatArray

FIRST: Final = "router top-1"  # the control that is the router's first choice
CLEAR: Final = 1.96  # standard errors of a clear difference
SETTLED_AT: Final = (0.05, 0.02)  # levels of the promise `same_answer`, the default one first
SMALLER: Final = (0.05, 0.02, 0.01)  # levels that are measured beside a larger configured one


def configured(result: Evaluation, alpha: float) -> Setting:
    """The setting at a level: the score and the target are the only ones."""
    return next(each for each in result.cells if each.alpha == alpha)


def gains(result: Evaluation, method: Method, alpha: float) -> dict[str, Any] | None:
    """The figures of an evaluation, as JSON values; None without recorded answers.

    Args:
        result: The evaluation, at the configured level and at smaller ones.
        method: The vote that is configured; the majority where it was not measured.
        alpha: The configured level.
    """
    setting = configured(result, alpha)
    scope = setting.scope
    controls = result.controls[scope]
    rule = method if f"accuracy_{method}" in result.cells[setting] else Method.MAJORITY
    everyone = f"{FULL_POOL}{rule}"
    if everyone not in controls:
        return None
    best = max(result.pool, key=lambda name: _mean(controls[f"candidate {name}"]))
    prices = result.protocol.prices
    best_drawn = result.draws(scope, f"candidate {best}", "accuracy")
    best_mean = _mean(controls[f"candidate {best}"])

    def way(mean: float, drawn: FloatArray, calls: float, cost: float | None) -> dict[str, Any]:
        return {
            "accuracy": mean,
            "se": standard_error(drawn),
            "calls": calls,
            "cost": cost,
            "more": mean - best_mean,
            "more_se": standard_error(drawn - best_drawn),
        }

    def of_control(name: str, calls: float, cost: float | None) -> dict[str, Any]:
        return way(_mean(controls[name]), result.draws(scope, name, "accuracy"), calls, cost)

    def of_set(at: Setting) -> dict[str, Any]:
        measure = f"accuracy_{rule}"
        cost = None if prices is None else result.mean(at, "cost")
        drawn = result.draws(scope, at, measure)
        return way(result.mean(at, measure), drawn, result.mean(at, "size"), cost) | {
            "alpha": at.alpha
        }

    price = None if prices is None else prices[result.pool.index(best)]
    total = None if prices is None else math.fsum(prices)
    smaller = sorted(
        (each for each in result.cells if each.alpha < alpha and not result.infeasible(each)),
        key=lambda each: -each.alpha,
    )
    return {
        "rows": sum(result.rows[scope]),
        "best_candidate": best,
        "vote": rule.value,
        "refused": result.mean(setting, "abstain"),
        "ways": {
            "best": of_control(f"candidate {best}", 1.0, price),
            "first": of_control(FIRST, 1.0, None),
            "set": of_set(setting),
            "all": of_control(everyone, float(len(result.pool)), total),
        },
        "smaller": [of_set(each) for each in smaller],
        "until_settled": list(_until_settled(result, scope, best_mean, standard_error(best_drawn))),
    }


def _until_settled(
    result: Evaluation, scope: str, best: float, best_se: float
) -> Iterator[dict[str, Any]]:
    """Calls one by one until the vote of all is settled: the promise `same_answer`.

    Its rows are not resampled. The standard error of the accuracy is that of a share of the rows.
    That of the gain adds both shares' errors as if their rows differed, so it is too large.
    """
    for alpha in SETTLED_AT:
        key = SequenceKey(scope=scope, calling=Calling.ONE_BY_ONE, alpha=alpha)
        if key not in result.sequences:
            continue
        runs = result.sequences[key]
        share, calls = _mean(runs["accuracy"]), _mean(runs["calls"])
        error = math.sqrt(share * (1.0 - share) / sum(result.rows[scope]))
        yield {
            "accuracy": share,
            "se": error,
            "calls": calls,
            "cost": None,
            "more": share - best,
            "more_se": math.hypot(error, best_se),
            "alpha": alpha,
        }


def advice(found: Mapping[str, Any]) -> str:
    """One sentence: what to do with these figures."""
    ways, best = found["ways"], found["best_candidate"]
    of_set, everyone, first = ways["set"], ways["all"], ways["first"]
    if _is_clear(of_set, 1.0):
        return (
            f"use the set: its answers are better than those of {best} alone by {_points(of_set)}, "
            f"with {of_set['calls']:.2f} calls a question"
        )
    measured = f"the set measures {100 * of_set['more']:+.1f} points beside {best} alone"
    if _is_clear(of_set, -1.0):
        measured = f"the set's answers are worse than those of {best} alone by {_points(of_set)}"
    clear = [each for each in found["smaller"] if _is_clear(each, 1.0)]
    better = max(clear, key=lambda each: each["more"], default=None)
    if better is not None:
        return (
            f"{measured}; take alpha {better['alpha']:g}, where it is better by {_points(better)}, "
            f"with {better['calls']:.2f} calls a question: --alpha {better['alpha']:g} and "
            "`routing.alpha`"
        )
    settled = found["until_settled"]
    way = next((each for each in settled if _is_clear(each, 1.0)), settled[-1] if settled else None)
    if way is not None and (_is_clear(way, 1.0) or _is_clear(everyone, 1.0)):
        return (
            f"{measured}, and all models together are better by {_points(everyone)}: the promise "
            f"same_answer serves their vote, at alpha {way['alpha']:g} with {way['calls']:.2f} "
            f"calls a question and {way['accuracy']:.1%} right here, and needs no labels "
            "(docs/same-answer.md)"
        )
    if _is_clear(first, 1.0):
        return (
            f"{measured}, and the router's first choice is better by {_points(first)} with one "
            "call, without a bound"
        )
    return (
        f"one model is good enough: {best} alone is right on {ways['best']['accuracy']:.1%}, and "
        f"nothing that asks several is clearly better on these rows ({measured})"
    )


def _is_clear(way: Mapping[str, Any], sign: float) -> bool:
    return sign * way["more"] > CLEAR * way["more_se"]


def _points(way: Mapping[str, Any]) -> str:
    return f"{100 * abs(way['more']):.1f} ± {100 * way['more_se']:.1f} points"


def _mean(runs: list[float]) -> float:
    return sum(runs) / len(runs) if runs else math.nan
