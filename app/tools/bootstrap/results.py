"""What a bootstrap keeps of each command's result, as JSON values: the figures of its report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from racer_core.offline.evaluation_result import Evaluation

_EVIDENCE = (
    *("alpha", "score", "risk_target", "rows", "n", "feasible", "mean_size"),
    *("risk_q05", "risk_q95"),
)


def labelled(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer label`: how many questions have a row."""
    return {name: result[name] for name in ("questions", "labelled")}


def trained(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer train`: the artifact."""
    return {name: result[name] for name in ("artifact", "router", "encoder", "training_rows")}


def tuned(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer tune`: the chosen setting, and whether the configuration has it."""
    chosen = {
        name: result["chosen"][name]
        for name in ("alpha", "score", "rule", "weight", "accuracy", "size")
    }
    return {"chosen": chosen, **{name: result[name] for name in ("diff", "settings", "written")}}


def evaluated(result: Evaluation) -> dict[str, Any]:
    """Of `racer evaluate` at one alpha: means over splits, ``±`` of the risk over rows.

    ``accuracy`` is that of the majority's vote; null without recorded answers.
    """
    from racer_core.offline.evaluation_result import BEST, FULL_POOL, RISK

    setting = next(iter(result.cells))
    controls = result.controls[setting.scope]
    risk = RISK[setting.risk_target]
    figures = {
        "risk": result.mean(setting, risk),
        "risk_half_width": 1.96 * result.se_rows(setting, risk),
        "size": result.mean(setting, "size"),
        "calls_saved": result.mean(setting, "calls_saved"),
        "accuracy": result.mean(setting, "accuracy_majority"),
        "best_single": _mean(controls.get(BEST)),
        "full_pool": _mean(controls.get(f"{FULL_POOL}majority")),
    }
    known = {name: None if math.isnan(each) else each for name, each in figures.items()}
    calibration, _, test = result.rows[setting.scope]
    return {**known, "splits": result.protocol.splits, "calibration": calibration, "test": test}


def calibrated(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of `racer calibrate`: the calibration with its evidence."""
    evidence = {name: result["evidence"].get(name) for name in _EVIDENCE}
    return {"id": result["id"], "active": result["active"], **evidence}


def _mean(runs: list[float] | None) -> float:
    return sum(runs) / len(runs) if runs else math.nan
