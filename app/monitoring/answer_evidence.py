"""Evidence of a calibration of the promise `same_answer`, and whether it may become active."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from app.settings import VOTE, SameAnswer, Settings
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.policy import Loss
from racer_core.sequential.verdicts import VerdictRates

# Levels of the frontier that the evidence shows, as far as rows are enough for them.
LEVELS: Final = tuple(
    float(f"{digit}e-{power}") for power in (4, 3, 2, 1) for digit in (1, 1.5, 2, 3, 5, 7)
)
LARGEST_LEVEL: Final = 0.5
MIN_AGREEMENT: Final = 0.1  # least share of rows with two equal answers

NO_ENCODER: Final = (
    "not certifiable cheaply: `aggregation.equality: semantic` compares answers by the encoder of "
    "a router, and none is loaded: set `artifact` to a router (`racer train`), or another equality"
)
UNPRICED: Final = (
    "not known to be worth it: up to five calls come before the reference; set `price` of every "
    "candidate"
)


def evidence_of(
    settings: Settings,
    terms: SameAnswer,
    found: SequentialCalibration,
    prices: Mapping[str, float] | None,
) -> dict[str, Any]:
    """What the rows of a calibration show at its alpha, and at other levels."""
    policy = found.policy
    (own,) = found.frontier([terms.alpha], prices)
    return {
        "alpha": terms.alpha,
        "reference": terms.reference,
        "max_rounds": terms.max_rounds,
        "equality": str(settings.aggregation.equality),
        "order": list(policy.order),
        "first_round": list(policy.order[: policy.borders[0]]),
        "reliabilities": dict(zip(policy.pool, policy.reliabilities, strict=True)),
        "checker": _checker(terms, policy.checker),
        "candidates": len(policy.pool),
        "agreement": _agreement(found.answers),
        "expected_calls": own.calls,
        "price_share": own.price_share,
        "least_alpha": found.least_alpha,
        "frontier": [
            {
                "alpha": point.alpha,
                "expected_calls": point.calls,
                "expected_rounds": point.rounds,
                "price_share": point.price_share,
            }
            for point in found.frontier(_levels(found, terms.alpha), prices)
        ],
    }


def _checker(terms: SameAnswer, rates: VerdictRates | None) -> dict[str, Any] | None:
    """The checker's kind, and its rates of the verdicts 0 to 5 and of none."""
    if rates is None or terms.evidence is None:
        return None
    return {"kind": terms.evidence.kind, "right": list(rates.right), "wrong": list(rates.wrong)}


def _levels(found: SequentialCalibration, alpha: float) -> list[float]:
    """From 1/(n + 1), below which any number of rows calls everything; with the alpha in force."""
    least = 1.0 / (found.n + 1)
    grid = {each for each in LEVELS if least <= each <= LARGEST_LEVEL}
    return sorted(grid | {least, min(found.least_alpha, LARGEST_LEVEL), alpha})


def refusal_of(
    settings: Settings,
    terms: SameAnswer,
    found: SequentialCalibration,
    fitting: AnswerClasses,
    prices: Mapping[str, float] | None,
) -> str | None:
    """Why the calibration is not activated.

    Rows without answers aside, the rows that fitted the policy decide. If the calibration rows
    did, those calibrations would be left whose threshold is too low by chance: where calls hardly
    pay, a risk of up to twice alpha was measured.

    Args:
        settings: The equality.
        terms: The terms.
        found: The calibration.
        fitting: The rows that fitted its policy.
        prices: Expected price of a call of each candidate; None: they have none.
    """
    counts_misses = found.policy.loss is Loss.MISSES
    is_pool = counts_misses or terms.reference == VOTE
    if found.lambda_hat(terms.alpha) == math.inf:
        lacking = (
            "labels or answers, and count as misses; label them"
            if counts_misses
            else "answers, and count as different; repair the candidates"
        )
        return (
            f"no finite threshold keeps alpha {terms.alpha:g}: {found.lost} of {found.n} rows lack "
            f"{lacking}"
        )
    if not is_pool and prices is None:
        return UNPRICED
    agreement = _agreement(fitting)
    if agreement < MIN_AGREEMENT and not counts_misses:
        return (
            f"not certifiable cheaply: on {agreement:.0%} of the requests any two answers are "
            f"equal under `aggregation.equality: {settings.aggregation.equality}`, and a vote of "
            "different answers says nothing; set an equality that fits the answers"
        )
    fitted = replace(found, answers=fitting, lost=0)
    # Of few rows at the smallest alpha with a finite threshold.
    threshold = fitted.lambda_hat(max(terms.alpha, 1.0 / (len(fitting) + 1)))
    calls = fitted.stops(fitting, threshold).calls
    share = None if prices is None else fitted.price_share(calls, prices)
    if share is not None and share >= 1.0:
        what = "all candidates" if is_pool else f"{terms.reference!r} alone"
        return f"not worth it: a request would cost {share:.2f} of what {what} cost"
    if calls.mean() >= len(found.policy.order):
        return (
            "not certifiable cheaply: every request would call all candidates of the order; "
            "set a larger alpha or max_rounds, or an equality that fits the answers better"
        )
    return None


def _agreement(rows: AnswerClasses) -> float:
    """The share of rows in which two candidates gave the same answer."""
    shared = rows.same.sum(axis=2) > 1
    return float(shared.any(axis=1).mean())
