"""What a pool gains by RACER on held-out rows, and one sentence of advice.

All figures are of the same rows, which trained nothing, over random splits into calibration and
test. Errors are standard errors over rows; differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from racer_core.aggregation.vote import Method
from racer_core.offline.evaluation_result import FULL_POOL, Evaluation
from racer_core.offline.standard_errors import standard_error

FIRST: Final = "router top-1"  # the control that is the router's first choice
CLEAR: Final = 1.96  # standard errors of a clear difference


def gains(result: Evaluation, method: Method) -> dict[str, Any] | None:
    """The figures of an evaluation at one alpha, as JSON values; None without recorded answers.

    Args:
        result: The evaluation.
        method: The vote that is configured; the majority where it was not measured.
    """
    setting = next(iter(result.cells))
    controls = result.controls[setting.scope]
    rule = method if f"accuracy_{method}" in result.cells[setting] else Method.MAJORITY
    everyone = f"{FULL_POOL}{rule}"
    if everyone not in controls:
        return None
    best = max(result.pool, key=lambda name: _mean(controls[f"candidate {name}"]))
    drawn = {
        "best": result.draws(setting.scope, f"candidate {best}", "accuracy"),
        "first": result.draws(setting.scope, FIRST, "accuracy"),
        "set": result.draws(setting.scope, setting, f"accuracy_{rule}"),
        "all": result.draws(setting.scope, everyone, "accuracy"),
    }
    means = {
        "best": _mean(controls[f"candidate {best}"]),
        "first": _mean(controls[FIRST]),
        "set": result.mean(setting, f"accuracy_{rule}"),
        "all": _mean(controls[everyone]),
    }
    calls = {"best": 1.0, "first": 1.0, "set": result.mean(setting, "size")}
    calls["all"] = float(len(result.pool))
    prices = result.protocol.prices
    costs: dict[str, float] = {}
    if prices is not None:
        costs = {
            "best": prices[result.pool.index(best)],
            "set": result.mean(setting, "cost"),
            "all": math.fsum(prices),
        }
    return {
        "rows": sum(result.rows[setting.scope]),
        "best_candidate": best,
        "vote": rule.value,
        "refused": result.mean(setting, "abstain"),
        "ways": {
            way: {
                "accuracy": means[way],
                "se": standard_error(drawn[way]),
                "calls": calls[way],
                "cost": costs.get(way),
                "more": means[way] - means["best"],
                "more_se": standard_error(drawn[way] - drawn["best"]),
            }
            for way in means
        },
    }


def advice(found: Mapping[str, Any]) -> str:
    """One sentence: what to do with these figures."""
    ways, best = found["ways"], found["best_candidate"]
    of_set, everyone, first = ways["set"], ways["all"], ways["first"]
    if _is_clear(of_set, -1.0):
        return (
            f"the set's answers are worse than those of {best} alone, by {_points(of_set)}: ask "
            f"{best}, or choose a smaller alpha, which calls more models"
        )
    if _is_clear(of_set, 1.0):
        text = f"use the set: its answers are better than those of {best} alone, by "
        return f"{text}{_points(of_set)}, with {of_set['calls']:.2f} calls a question"
    measured = f"the set measures {of_set['more']:+.1%} beside {best} alone, within its error"
    if _is_clear(everyone, 1.0):
        return (
            f"{measured}, and all models together {_points(everyone)} better: choose a smaller "
            "alpha, which calls more models"
        )
    if _is_clear(first, 1.0):
        return (
            f"{measured}, and the router's first choice {_points(first)} better with one call, "
            "without a bound"
        )
    return (
        f"one model is good enough: {best} alone is right on {ways['best']['accuracy']:.1%}, and "
        f"no way of asking several is clearly better on these rows ({measured})"
    )


def _is_clear(way: Mapping[str, Any], sign: float) -> bool:
    return sign * way["more"] > CLEAR * way["more_se"]


def _points(way: Mapping[str, Any]) -> str:
    return f"{100 * abs(way['more']):.1f} ± {100 * way['more_se']:.1f} points"


def _mean(runs: list[float]) -> float:
    return sum(runs) / len(runs) if runs else math.nan
