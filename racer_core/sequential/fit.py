"""Fitting of a policy on rows without labels: reliabilities, order, and borders of rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from racer_core.aggregation.vote import OPTIONS
from racer_core.errors import InputError
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.policy import Policy
from racer_core.sequential.reliability import (
    agreement_rates,
    one_coin_reliabilities,
    vote_odds,
)

# Where rows are too few to choose borders: at most 13 % more calls than the best borders.
DEFAULT_BORDERS: Mapping[int, tuple[int, ...]] = {1: (), 2: (3,), 3: (2, 4)}
BEFORE_REFERENCE = 3  # candidates that may be called before a named reference


def fit_policy(
    rows: AnswerClasses,
    *,
    max_rounds: int | None = 2,
    reference: str | None = None,
    prices: Mapping[str, float] | None = None,
    options: int = OPTIONS,
) -> Policy:
    """Order and weigh the candidates by agreement, with the default borders of rounds.

    Args:
        rows: Rows that will calibrate nothing.
        max_rounds: At most this many rounds, up to 3; None calls the candidates one by one.
        reference: The candidate whose answer is the reference; None: the vote of the whole pool.
        prices: Price of one call of each candidate, above 0. The order is then by the log odds of a
            candidate over the square root of its price.
        options: The number of possible answers, at least 2; never below the pool's size.

    Raises:
        InputError: An unknown reference, missing prices, or another number of rounds.
    """
    pool = rows.pool
    options = max(options, len(pool))
    if reference is not None and reference not in pool:
        raise InputError(f"the reference {reference[:80]!r} is not in the pool")
    if max_rounds is not None and max_rounds not in DEFAULT_BORDERS:
        raise InputError("max_rounds must be 1, 2, 3 or None: one call after the other")
    if reference is None:
        reliabilities = one_coin_reliabilities(rows.classes, options)
    else:
        reliabilities = agreement_rates(rows.classes, pool.index(reference))
    strength = np.log(vote_odds(reliabilities, options))
    if prices is not None:
        strength = strength / np.sqrt(np.array([prices[name] for name in pool]))
    order = sorted(pool, key=lambda name: (-strength[pool.index(name)], name))
    if reference is not None:
        order = [*[name for name in order if name != reference][:BEFORE_REFERENCE], reference]
    return Policy(
        pool=pool,
        reliabilities=tuple(reliabilities.tolist()),
        order=tuple(order),
        borders=default_borders(len(order), max_rounds),
        options=options,
        reference=reference,
    )


def default_borders(calls: int, max_rounds: int | None) -> tuple[int, ...]:
    """Three candidates and then all others; in three rounds two, two more and all others."""
    inner = range(1, calls) if max_rounds is None else DEFAULT_BORDERS[max_rounds]
    return (*(border for border in inner if border < calls), calls)


def tuned_borders(policy: Policy, rows: AnswerClasses, alpha: float, max_rounds: int) -> Policy:
    """The policy with the borders that call the fewest candidates at alpha on these rows.

    Among equals the borders with fewer rounds, then the smaller first round. The policy is
    unchanged where the rows are too few for alpha.

    Args:
        policy: Its own borders count among the possible ones.
        rows: Rows that will calibrate nothing.
        alpha: The largest share of requests whose answer may differ.
        max_rounds: At most this many rounds.
    """
    if (len(rows) + 1) * alpha < 1.0:
        return policy
    possible = [replace(policy, borders=each) for each in _borders(len(policy.order), max_rounds)]

    def calls(each: Policy) -> float:
        calibration = SequentialCalibration(policy=each, answers=rows)
        return float(calibration.stops(rows, calibration.lambda_hat(alpha)).calls.mean())

    return min(possible, key=calls)


def _borders(calls: int, max_rounds: int) -> Iterator[tuple[int, ...]]:
    for rounds in range(1, min(max_rounds, calls) + 1):
        for inner in combinations(range(1, calls), rounds - 1):
            yield (*inner, calls)
