"""Evidence of a calibration of the promise `same_answer`, and whether it may become active."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

import numpy as np

from app.settings import VOTE, SameAnswer, Settings
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration

ALPHAS: Final = (0.01, 0.02, 0.05, 0.1, 0.2)  # of the frontier that the evidence shows
MIN_AGREEMENT: Final = 0.1  # least share of rows with two equal answers


def evidence_of(
    settings: Settings, terms: SameAnswer, found: SequentialCalibration
) -> dict[str, Any]:
    """What the rows of a calibration show at its alpha."""
    threshold, policy = found.lambda_hat(terms.alpha), found.policy
    return {
        "alpha": terms.alpha,
        "reference": terms.reference,
        "max_rounds": terms.max_rounds,
        "equality": str(settings.aggregation.equality),
        "order": list(policy.order),
        "first_round": list(policy.order[: policy.borders[0]]),
        "reliabilities": dict(zip(policy.pool, policy.reliabilities, strict=True)),
        "candidates": len(policy.pool),
        "agreement": _agreement(found.answers),
        "expected_calls": found.expected_calls(threshold),
        "price_share": _price_share(settings, found, threshold),
        "frontier": [
            {"alpha": alpha, "expected_calls": found.expected_calls(found.lambda_hat(alpha))}
            for alpha in ALPHAS
        ],
    }


def _price_share(
    settings: Settings, found: SequentialCalibration, threshold: float
) -> float | None:
    """Mean price of a request, as a share of that of the reference; None without prices."""
    if settings.prices is None:
        return None
    policy = found.policy
    price = dict(zip(settings.pool, settings.prices, strict=True))
    spent = np.array(list(accumulate(price[name] for name in policy.order)))
    calls = found.stops(found.answers, threshold).calls
    names = policy.pool if policy.reference is None else (policy.reference,)
    return float(spent[calls - 1].mean()) / sum(price[name] for name in names)


def refusal_of(
    settings: Settings, terms: SameAnswer, found: SequentialCalibration, fitting: AnswerClasses
) -> str | None:
    """Why the calibration is not activated.

    Rows without answers aside, the rows that fitted the policy decide. If the calibration rows
    did, those calibrations would be left whose threshold is too low by chance: where calls hardly
    pay, a risk of up to twice alpha was measured.

    Args:
        settings: Prices and equality.
        terms: The terms.
        found: The calibration.
        fitting: The rows that fitted its policy.
    """
    if found.lambda_hat(terms.alpha) == math.inf:
        return (
            f"no finite threshold keeps alpha {terms.alpha:g}: {found.lost} of {found.n} rows lack "
            "answers, and count as different; repair the candidates"
        )
    agreement = _agreement(fitting)
    if agreement < MIN_AGREEMENT:
        return (
            f"not certifiable cheaply: on {agreement:.0%} of the requests any two answers are "
            f"equal under `aggregation.equality: {settings.aggregation.equality}`, and a vote of "
            "different answers says nothing; set an equality that fits the answers"
        )
    fitted = replace(found, answers=fitting, lost=0)
    # Of few rows at the smallest alpha with a finite threshold.
    threshold = fitted.lambda_hat(max(terms.alpha, 1.0 / (len(fitting) + 1)))
    share = _price_share(settings, fitted, threshold)
    if share is not None and share >= 1.0:
        what = "all candidates" if terms.reference == VOTE else f"{terms.reference!r} alone"
        return f"not worth it: a request would cost {share:.2f} of what {what} cost"
    if fitted.expected_calls(threshold) >= len(found.policy.order):
        return (
            "not certifiable cheaply: every request would call all candidates of the order; "
            "set a larger alpha or max_rounds, or an equality that fits the answers better"
        )
    return None


def _agreement(rows: AnswerClasses) -> float:
    """The share of rows in which two candidates gave the same answer."""
    shared = rows.same.sum(axis=2) > 1
    return float(shared.any(axis=1).mean())
