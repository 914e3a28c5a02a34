"""Fitting of a policy on rows without labels: reliabilities, order, and borders of rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from racer_core.aggregation.vote import OPTIONS
from racer_core.calibration.threshold import calibrate_threshold
from racer_core.errors import InputError
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.critical import critical_scores, round_nonconformity, rounds_called
from racer_core.sequential.policy import Loss, Outcomes, Policy
from racer_core.sequential.reliability import (
    agreement_rates,
    label_rates,
    log_odds,
    one_coin_reliabilities,
)
from racer_core.types import BoolArray, FloatArray

# Where rows are too few to choose borders: at most 13 % more calls than the best borders.
DEFAULT_BORDERS: Mapping[int, tuple[int, ...]] = {1: (), 2: (3,), 3: (2, 4)}
# Candidates that may be called before a named reference. On recorded answers three leave 3 to 14
# points more of the requests to the reference than five; seven leave 0 to 4 points fewer.
BEFORE_REFERENCE = 5
_DECIMALS = 9  # of a reliability


def fit_policy(
    rows: AnswerClasses,
    *,
    max_rounds: int | None = 2,
    reference: str | None = None,
    prices: Mapping[str, float] | None = None,
    before_reference: int = BEFORE_REFERENCE,
    options: int = OPTIONS,
) -> Policy:
    """Order and weigh the candidates by agreement, with the default borders of rounds.

    Args:
        rows: Rows that will calibrate nothing; with verdicts they give a policy with a checker.
        max_rounds: At most this many rounds, up to 3; None calls the candidates one by one.
        reference: The candidate whose answer is the reference; None: the vote of the whole pool.
        prices: Price of one call of each candidate, above 0. The order is then by the log odds of a
            candidate over the square root of its price.
        before_reference: How many candidates may be called before a named reference: those that
            agree with it most, or by price as above.
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
        # Candidates that agreement cannot tell apart differ by rounding alone: they tie exactly.
        found, checker = one_coin_reliabilities(rows.classes, options, rows.verdicts)
        reliabilities = np.round(found, _DECIMALS)
    else:
        column = pool.index(reference)
        reliabilities, checker = agreement_rates(rows.classes, column, rows.verdicts)
    strength = log_odds(reliabilities, options)
    if prices is not None:
        strength = strength / np.sqrt(np.array([prices[name] for name in pool]))
    order = sorted(pool, key=lambda name: (-strength[pool.index(name)], name))
    if reference is not None:
        order = [*[name for name in order if name != reference][:before_reference], reference]
    return Policy(
        pool=pool,
        reliabilities=tuple(reliabilities.tolist()),
        order=tuple(order),
        borders=default_borders(len(order), max_rounds, has_reference=reference is not None),
        options=options,
        reference=reference,
        checker=checker,
    )


def default_borders(
    calls: int, max_rounds: int | None, *, has_reference: bool = False
) -> tuple[int, ...]:
    """Three candidates and then all others; in three rounds two, two more and all others.

    A named reference is called alone, after all others: in three rounds after three of them and
    then the rest.
    """
    inner: Sequence[int] = range(1, calls) if max_rounds is None else DEFAULT_BORDERS[max_rounds]
    if has_reference and max_rounds is not None:
        inner = (*DEFAULT_BORDERS[2], calls - 1)[1 - max_rounds :] if max_rounds > 1 else ()
    return tuple(sorted({*(border for border in inner if 0 < border < calls), calls}))


def tuned_policy(
    policy: Policy,
    rows: AnswerClasses,
    alpha: float,
    max_rounds: int | None,
    prices: Mapping[str, float] | None = None,
) -> Policy:
    """The policy with the borders of the least mean price at alpha on these rows.

    Before a named reference it may call fewer candidates; where calling the reference alone is the
    cheapest, the order is the reference alone. Among equals the policy with fewer rounds. It is
    unchanged where the rows are too few for alpha.

    Args:
        policy: The policy to begin with.
        rows: Rows that will calibrate nothing.
        alpha: The largest share of requests whose answer may differ.
        max_rounds: At most this many rounds; None calls the candidates one by one.
        prices: Price of one call of each candidate; None: all are equal.
    """
    if (len(rows) + 1) * alpha < 1.0:
        return policy
    plans: list[tuple[float, int, Policy]] = []
    for order in _orders(policy):
        single = replace(policy, order=order, borders=tuple(range(1, len(order) + 1)))
        outcomes = single.outcomes(rows)  # of every border that may be chosen
        each = [1.0 if prices is None else prices[name] for name in order]
        for borders in _borders(len(order), max_rounds):
            price = _price(outcomes, borders, alpha, np.cumsum(each))
            plans.append((price, len(borders), replace(single, borders=borders)))
    return min(plans, key=lambda plan: plan[:2])[2]


def _price(outcomes: Outcomes, borders: tuple[int, ...], alpha: float, spent: FloatArray) -> float:
    """The mean price of a request at the threshold of the rows themselves.

    Args:
        outcomes: Those after every call, shape (n, K).
        borders: Calls made at the end of each round.
        alpha: The largest share of differences.
        spent: The price of 1, 2, .. calls.
    """
    ends = np.array(borders) - 1
    s = round_nonconformity(outcomes.doubt[:, ends])
    threshold = calibrate_threshold(critical_scores(s, outcomes.differs[:, ends]), alpha)
    return float(spent[ends[rounds_called(s, threshold) - 1]].mean())


def _orders(policy: Policy) -> list[tuple[str, ...]]:
    """The order; before a named reference it may be shorter."""
    if policy.reference is None:
        return [policy.order]
    before = policy.order[:-1]
    return [(*before[:count], policy.reference) for count in range(len(policy.order))]


def _borders(calls: int, max_rounds: int | None) -> Iterator[tuple[int, ...]]:
    if max_rounds is None:
        yield tuple(range(1, calls + 1))
        return
    for rounds in range(1, min(max_rounds, calls) + 1):
        for inner in combinations(range(1, calls), rounds - 1):
            yield (*inner, calls)


# Policies of the miss promise: some candidate that was called is right, if any candidate is.
#
# It needs labels, and calibrates on rows with a right candidate alone. Agreement says little
# about misses, for wrong answers agree, too; a checker says more.


def fit_coverage_policy(
    rows: AnswerClasses, *, max_rounds: int | None = 2, options: int = OPTIONS
) -> Policy:
    """A policy whose loss is a miss; its order covers the most rows with the fewest candidates.

    Args:
        rows: Labelled rows that will calibrate nothing.
        max_rounds: As for :func:`racer_core.sequential.fit.fit_policy`.
        options: As there.

    Raises:
        CalibrationError: The rows have no labels, or no candidate is right on any.
    """
    labels = rows.answerable().labels
    assert rows.labels is not None
    assert labels is not None
    options = max(options, len(rows.pool), 2)
    reliabilities, checker = label_rates(rows.classes, rows.labels, rows.verdicts)
    return Policy(
        pool=rows.pool,
        reliabilities=tuple(reliabilities.tolist()),
        order=_covering(rows.pool, labels),
        borders=default_borders(len(rows.pool), max_rounds),
        options=options,
        checker=checker,
        loss=Loss.MISSES,
    )


def _covering(pool: tuple[str, ...], labels: BoolArray) -> tuple[str, ...]:
    """The candidate that is right on most rows, then the one that adds most, and so on.

    Equal ones go by their own accuracy and by name.
    """
    right = dict(zip(pool, labels.T, strict=True))
    covered = np.zeros(len(labels), dtype=bool)
    order: list[str] = []
    while right:
        best = min(
            right, key=lambda name: (-(covered | right[name]).sum(), -right[name].sum(), name)
        )
        order.append(best)
        covered |= right.pop(best)
    return tuple(order)
