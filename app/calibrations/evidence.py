"""Evidence of a calibration: thresholds, risks, set sizes, and its shift from the active one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.calibrations.columns import RowColumns
from app.store.calibration_record import OwnAlpha, Population
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.threshold import fewest_rows
from racer_core.types import RiskTarget, Score, any_column

# The grid of risk levels, here and in offline evaluation.
ALPHAS: Final = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.15, 0.2, 0.25, 0.3,
                 0.35, 0.4, 0.45, 0.5)  # fmt: skip
CURVE_ROWS: Final = 10_000  # a mean set size is then known to about 0.02
MAX_GROUPS: Final = 50


def evidence(calibration: Calibration) -> dict[str, Any]:
    """The evidence in every record; mean_size is over its own rows, hence slightly low."""
    options = calibration.options
    lambda_hat = calibration.lambda_hat(options.alpha, options.score)
    certificate = calibration.certify()
    return (
        {
            "alpha": options.alpha,
            "delta": options.delta,
            "score": options.score,
            "risk_target": options.risk_target,
            "r": options.r,
            "n": calibration.n,
            "rows": len(calibration.fingerprints),
            "unlabelled": calibration.unlabelled_rows,
            "lambda_hat": _finite(lambda_hat),
            "feasible": calibration.is_enough(options.alpha),
            "min_n": fewest_rows(options.alpha, options.delta),
            "alpha_basis": certificate.alpha_basis,
            "risk_band": certificate.risk_band,
            "weights": _weights(calibration),
            "judge": _judge(calibration),
        }
        | realised_risk(calibration, options.alpha)
        | _sets(calibration, lambda_hat)
    )


def realised_risk(calibration: Calibration, alpha: float) -> dict[str, Any]:
    """Two points of the realised risk, and the ranks from which they follow; null: no exact law.

    ``missed`` and ``tied`` are the rows with a critical score above the threshold, and with the
    threshold's own. Without a finite threshold all candidates are called: the risk is 0.
    """
    lambda_hat = calibration.lambda_hat(alpha, calibration.options.score)
    risk = calibration.realised_risk(alpha)
    if risk is None:
        point = 0.0 if math.isinf(lambda_hat) else None
        found = {"missed": None, "tied": None, "risk_q05": point, "risk_q95": point}
        return found | _mean_shortfall(calibration, lambda_hat)
    return {
        "missed": risk.missed,
        "tied": risk.tied,
        "risk_q05": risk.lower(),
        "risk_q95": risk.upper(),
    }


def _mean_shortfall(calibration: Calibration, lambda_hat: float) -> dict[str, float]:
    """The rows' own mean shortfall, for graded rows; 0 where the whole pool is called."""
    options = calibration.options
    if options.risk_target is not RiskTarget.QUALITY:
        return {}
    finite = math.isfinite(lambda_hat)
    curve = calibration.loss_curve(options.score)
    return {"mean_shortfall": curve.mean_loss(lambda_hat) if finite else 0.0}


def _weights(calibration: Calibration) -> dict[str, Any] | None:
    """The weights of the rows, and how many rows of equal weight they are worth."""
    options = calibration.options
    if options.weights is None:
        return None
    return {
        "max_weight": options.max_weight,
        "effective_n": calibration.effective_n,
    }


def _judge(calibration: Calibration) -> dict[str, Any] | None:
    """The judge's verdicts and their errors; None: no row has verdicts.

    ``weight`` is the mean weight of the verdicts at the threshold: 0 if people's labels alone set
    it. ``error`` is the share of wrong verdicts, of each candidate.
    """
    if calibration.judged is None:
        return None
    options, errors = calibration.options, calibration.judge_errors()
    corrected = calibration.corrected(options.score)
    return {
        "rows": int((calibration.judged[:, 0] >= 0).sum()),
        "human_rows": 0 if errors is None else errors.rows,
        "weight": float(corrected.weights[corrected.place(options.alpha)]),
        "error": None
        if errors is None
        else dict(zip(calibration.pool, errors.by_candidate.tolist(), strict=True)),
    }


def later_evidence(calibration: Calibration) -> dict[str, Any]:
    """The evidence of the rows of later turns.

    If they are too few for alpha, they are not used and ``feasible`` is false. ``min_n`` is the
    number of rows that alpha needs. ``in_clusters``: several share one, and certify nothing.
    """
    shown = ("rows", "n", "min_n", "feasible", "lambda_hat", "mean_size", "abstain", "risk_q95")
    found, options = evidence(calibration), calibration.options
    terms = {"unit": options.unit, "in_clusters": options.has_dependent_rows}
    return {name: found[name] for name in shown} | terms


def conversation_evidence(calibration: Calibration) -> dict[str, Any]:
    """The evidence of whole conversations: ``n`` of them, and the mean risk of their turns.

    If they are too few for alpha, they are not used and ``feasible`` is false. ``mean_loss`` is the
    rows' own, hence low.
    """
    shown = (
        "rows", "n", "alpha", "delta", "min_n", "feasible", "lambda_hat", "mean_size", "abstain",
    )  # fmt: skip
    found, options = evidence(calibration), calibration.options
    lambda_hat = calibration.lambda_hat()
    own = calibration.loss_curve(options.score).mean_loss(lambda_hat)
    terms = {"in_clusters": options.has_dependent_rows, "mean_loss": own, "law": options.law}
    return {name: found[name] for name in shown} | terms


def conditions_evidence(
    rows: RowColumns, first: tuple[str, ...], populations: Sequence[Population]
) -> dict[str, Any]:
    """The conditions under which rows were labelled.

    ``assumed`` rows came without digests and count as labelled with the configured parameters.
    ``parts`` are the populations beside the first, the largest 50 first.
    """
    return {
        "assumed": rows.assumed,
        "digests": list(first),
        "parts": parts_evidence(populations),
    }


def parts_evidence(populations: Sequence[Population]) -> list[dict[str, Any]]:
    """The evidence of populations beside the first, the largest 50 first."""
    shown = ("rows", "n", "feasible", "lambda_hat", "mean_size")
    parts = sorted(populations, key=lambda part: -len(part.calibration.fingerprints))
    return [
        {
            "later": part.later,
            "digests": dict(zip(part.calibration.pool, part.conditions, strict=True)),
        }
        | {name: value for name, value in evidence(part.calibration).items() if name in shown}
        for part in parts[:MAX_GROUPS]
    ]


def curve(calibration: Calibration, alphas: Sequence[float] = ALPHAS) -> list[dict[str, Any]]:
    """Threshold, realised risk, set size, cost and abstention at every alpha.

    ``risk_band`` is the bound on the risk that holds for an alpha chosen from these points: with
    probability 0.95 all of them hold together. Thresholds are those of all rows; sizes, costs and
    abstentions are means over at most 10,000 of them, chosen at random.
    """
    shown = _shown(calibration)
    points: list[dict[str, Any]] = []
    for alpha in alphas:
        lambda_hat = calibration.lambda_hat(alpha, calibration.options.score)
        point = {
            "alpha": alpha,
            "lambda_hat": _finite(lambda_hat),
            "feasible": calibration.is_enough(alpha),
        }
        band = {"risk_band": calibration.risk_band(alpha)}
        points.append(point | realised_risk(calibration, alpha) | band | _sets(shown, lambda_hat))
    return points


def mean_sizes(calibration: Calibration, alphas: Sequence[float], score: Score) -> list[float]:
    """The mean set size of another score at every alpha, over the rows of :func:`curve`."""
    shown = _shown(calibration)
    return [
        _sets(shown, calibration.lambda_hat(alpha, score), score)["mean_size"] for alpha in alphas
    ]


def _shown(calibration: Calibration) -> Calibration:
    """The rows over which the means of a curve are taken."""
    count = len(calibration.fingerprints)
    if count <= CURVE_ROWS:
        return calibration
    chosen = np.random.default_rng(0).choice(count, CURVE_ROWS, replace=False)
    return calibration.take(chosen.tolist())


def groups(calibration: Calibration) -> list[dict[str, Any]]:
    """Rows, n and threshold of each group on its own, the largest 50 first."""
    counted = Counter(group for group in calibration.groups or () if group is not None)
    options = calibration.options
    found: list[dict[str, Any]] = []
    for name, rows in counted.most_common(MAX_GROUPS):
        own = calibration.group(name)
        lambda_hat = own.lambda_hat(options.alpha, options.score)
        shown = {"rows": rows, "n": own.n, "lambda_hat": _finite(lambda_hat)}
        found.append({"group": name} | shown)
    return found


def _finite(lambda_hat: float) -> float | None:
    """The threshold as JSON; null: the whole pool is called."""
    return lambda_hat if math.isfinite(lambda_hat) else None


def application_evidence(
    populations: Sequence[Population], alphas: Mapping[str, OwnAlpha]
) -> list[dict[str, Any]]:
    """Rows, n and threshold of each application at its alpha, by kind of rows.

    Args:
        populations: The rows by kind, those that are too few included.
        alphas: The configured levels of the applications.
    """
    found: list[dict[str, Any]] = []
    for place, population in enumerate(populations):
        calibration = population.calibration
        counted = Counter(group for group in calibration.groups or () if group is not None)
        for name, rows in counted.most_common(MAX_GROUPS):
            own, terms = calibration.group(name), alphas.get(name)
            alpha = calibration.options.alpha if terms is None else terms.alpha
            lambda_hat = own.lambda_hat(alpha, calibration.options.score)
            found.append(
                {
                    "application": name,
                    "part": place,
                    "later": population.later,
                    "rows": rows,
                    "n": own.n,
                    "alpha": alpha,
                    "lambda_hat": _finite(lambda_hat),
                    "feasible": own.is_enough(alpha),
                }
            )
    return found


def shift(active_id: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The distance of a calibration from the active one, as relative changes.

    A change is None if it starts from 0, or if the thresholds are of different scores. Later turns
    that are calibrated in one of the two only count as a change of 100 %. ``alert`` says what an
    operator should look at; it keeps no calibration from being activated.

    Args:
        active_id: The active calibration.
        before: Its evidence.
        after: The evidence of the new calibration.
    """
    same_score = before["score"] == after["score"]
    first = _changes(before, after, same_score=same_score)
    found = {
        "active_id": active_id,
        "alpha": before.get("alpha"),
        "score": before["score"],
        "risk_target": before.get("risk_target"),
        "lambda_hat": before["lambda_hat"],
        "mean_size": before["mean_size"],
        **first,
    }
    changes = [*first.values()]
    later_before, later_after = _later_turns(before), _later_turns(after)
    if later_before and later_after:
        found["later_turns"] = _changes(later_before, later_after, same_score=same_score)
        changes += found["later_turns"].values()
    elif later_before or later_after:
        found["later_turns"] = "gained" if later_after else "lost"
        changes.append(1.0)
    largest = max((abs(each) for each in changes if each is not None), default=0.0)
    found["largest"] = largest
    return found | {"alert": _shift_alert(found, before, after)}


LARGE_SHIFT: Final = 0.25  # of the mean set size, at the same promise
_PROMISE: Final = ("alpha", "score", "risk_target", "delta", "r")
_NESTED: Final = (
    ("sample", "unit"),
    ("weights", "kind"),
    ("weights", "max_weight"),
    ("answer_limit", "answer_risk_max"),
)


def _shift_alert(
    found: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> str | None:
    """What changes where the mean set changes much at the same promise, or later turns are lost.

    None where neither is so. An infeasible calibration calls every candidate: the one after it may
    differ as much as it does.
    """
    change = abs(after["mean_size"] - before["mean_size"])
    is_large = (
        change > LARGE_SHIFT * before["mean_size"]
        and before["feasible"]
        and _promise(before) == _promise(after)
    )
    if not is_large and found.get("later_turns") != "lost":
        return None
    turns = ", and later turns lose theirs" if found.get("later_turns") == "lost" else ""
    return (
        f"the mean set changes from {before['mean_size']:.3g} to {after['mean_size']:.3g} "
        f"candidates and lambda_hat from {_shown_threshold(before)} to {_shown_threshold(after)}"
        f"{turns}; look at the rows. `racer calibrations rollback` activates "
        f"{found['active_id']} again, whose certificates are void until the next calibration"
    )


def _promise(found: Mapping[str, Any]) -> list[Any]:
    """The terms of the promise; None for one that the evidence does not have."""
    parts: list[Any] = [found.get(part) or {} for part, _ in _NESTED]
    nested = [part.get(name) for part, (_, name) in zip(parts, _NESTED, strict=True)]
    return [*(found.get(name) for name in _PROMISE), *nested]


def _shown_threshold(found: Mapping[str, Any]) -> str:
    threshold = found["lambda_hat"]
    return "infinite" if threshold is None else f"{threshold:.4g}"


def _changes(
    before: Mapping[str, Any], after: Mapping[str, Any], *, same_score: bool
) -> dict[str, float | None]:
    return {
        "lambda_change": _change(before["lambda_hat"], after["lambda_hat"]) if same_score else None,
        "size_change": _change(before["mean_size"], after["mean_size"]),
    }


def _later_turns(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The evidence of later turns; None if their threshold is not used."""
    turns = found.get("later_turns")
    return turns if turns and turns["feasible"] else None


def _change(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else after / before - 1.0


def _sets(
    calibration: Calibration, lambda_hat: float, score: Score | None = None
) -> dict[str, float]:
    """Weighted mean size, abstention and, if prices are known, price of the rows' own sets."""
    sets = calibration.sets(
        calibration.scores,
        calibration.fingerprints,
        lambda_hat,
        score or calibration.options.score,
        calibration.neighbours,
    )

    def mean(values: NDArray[Any]) -> float:
        return float(np.average(values, weights=calibration.weights))

    shown = {
        "mean_size": mean(sets.selected.sum(axis=1)),
        "abstain": mean(~any_column(sets.selected)),
    }
    if calibration.prices is not None:
        shown["mean_cost"] = mean(sets.selected @ np.array(calibration.prices))
    return shown
