"""Activation rule: the calibrations that become active only when an operator confirms them.

Uploads, dry runs, scheduled refreshes and activations by id ask this rule and no other. It compares
evidence and knows neither rows nor the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.calibrations.evidence import shift
from app.errors import ConfirmNeeded
from app.store.calibration_record import CalibrationRecord

MAX_SIZE_CHANGE: Final = 0.25  # of the mean set size, at the same promise
_PROMISE: Final = ("alpha", "score", "risk_target", "delta", "r")
_NESTED: Final = (
    ("sample", "unit"),
    ("weights", "kind"),
    ("weights", "max_weight"),
    ("answer_limit", "answer_risk_max"),
)

Evidence = Mapping[str, Any]


def refusal(
    new: Evidence,
    active: CalibrationRecord | None,
    *,
    confirm: bool = False,
    max_shift: float | None = None,
) -> ConfirmNeeded | None:
    """Return why a calibration may not become active; None if it may.

    Args:
        new: Its evidence.
        active: The active calibration; None: a first activation, which is exempt from both limits
            of the change.
        confirm: The operator accepts an infeasible threshold and any change of the mean set size.
        max_shift: The caller's own limit of the largest change, which ``confirm`` does not waive.
    """
    if not confirm and not new["feasible"]:
        return ConfirmNeeded(
            f"no finite threshold keeps alpha {new['alpha']:g}: {new['n']} rows count, "
            f"{_what_is_missing(new)}; add rows or choose a larger alpha"
        )
    if active is None:
        return None
    before = active.evidence
    found = shift(active.id, before, new)
    if max_shift is not None and found["largest"] > max_shift:
        limit = f"a change of {found['largest']:.0%}, where max_shift is {max_shift:.0%}"
    elif not confirm and _is_size_changed(before, new):
        limit = f"a change of the mean set size by more than {MAX_SIZE_CHANGE:.0%}"
    else:
        return None
    turns = found.get("later_turns")
    return ConfirmNeeded(
        f"mean set size {before['mean_size']:.3g} would become {new['mean_size']:.3g}, and "
        f"lambda_hat {before['lambda_hat']} {new['lambda_hat']}"
        f"{'' if turns is None else f' (later turns: {turns})'}: {limit}"
    )


def _what_is_missing(new: Evidence) -> str:
    """The rows that alpha needs, or why no number of weighted rows says it."""
    weights = new["weights"]
    if new["unlabelled"]:
        return f"{new['unlabelled']} of them have no label and count as misses: label more of them"
    if weights is None:
        return f"it needs {new['min_n']} and fewer abstentions"
    return (
        f"worth {weights['effective_n']:.1f} of equal weight, too few beside a query of max_weight "
        f"{weights['max_weight']:g}, or too many abstain"
    )


def _promise(found: Evidence) -> list[Any]:
    """The terms of the promise; None for one that the evidence does not have."""
    parts: list[Any] = [found.get(part) or {} for part, _ in _NESTED]
    nested = [part.get(name) for part, (_, name) in zip(parts, _NESTED, strict=True)]
    return [*(found[name] for name in _PROMISE), *nested]


def _is_size_changed(before: Evidence, new: Evidence) -> bool:
    """Whether the mean set size changes too much between two calibrations of the same promise.

    An infeasible active calibration calls every candidate, so that its replacement by a feasible
    one needs no confirmation.
    """
    if not before["feasible"] or _promise(before) != _promise(new):
        return False
    change = abs(new["mean_size"] - before["mean_size"])
    return change > MAX_SIZE_CHANGE * before["mean_size"]
