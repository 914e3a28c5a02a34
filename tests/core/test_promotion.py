"""Evidence for a promotion: how often it is ever wrong, exactly, and how soon it is there."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.promotion import LEVEL, evidence_below
from racer_core.errors import InputError

LOSSES = st.lists(st.floats(0.0, 1.0), max_size=40)
LIMIT = st.floats(0.01, 0.99)


@cache
def evidence(errors: int, count: int, limit: float) -> float:
    """The e-value of `count` losses, of which `errors` are 1 and the others 0."""
    return evidence_below(np.array([1.0] * errors + [0.0] * (count - errors)), limit)


def promoted(mean: float, limit: float, looks: int) -> float:
    """P(the evidence reaches 1 / LEVEL after any of the first losses), exactly, by counts."""
    alive, done = {0: 1.0}, 0.0  # number of errors -> P(that many, and no promotion yet)
    for count in range(1, looks + 1):
        after: dict[int, float] = {}
        for errors, chance in alive.items():
            for more, of_it in (0, 1.0 - mean), (1, mean):
                after[errors + more] = after.get(errors + more, 0.0) + chance * of_it
        reached = {k for k in after if evidence(k, count, limit) >= 1.0 / LEVEL}
        done += sum(after.pop(k) for k in reached)
        alive = after
    return done


@pytest.mark.parametrize(("mean", "limit"), [(0.15, 0.15), (0.2, 0.15), (0.5, 0.5), (0.02, 0.02)])
def test_a_risk_that_is_not_below_the_limit_is_rarely_promoted(mean: float, limit: float) -> None:
    """The exact probability over 120 looks, one after each loss. It is not idle either."""
    found = promoted(mean, limit, 120)
    assert found <= LEVEL
    assert mean > limit or mean < 0.1 or found > LEVEL / 10


def test_a_low_risk_is_promoted_soon() -> None:
    """At 0.05 and a limit of 0.15: with 200 judged requests in more than 9 of 10 cases."""
    assert promoted(0.05, 0.15, 200) > 0.9


@given(losses=LOSSES, limit=LIMIT, seed=st.integers(0, 9))
def test_the_order_of_losses_does_not_matter(losses: list[float], limit: float, seed: int) -> None:
    """Verdicts may arrive in any order, and a restart needs no state."""
    values = np.array(losses)
    shuffled = np.random.default_rng(seed).permutation(values)
    assert evidence_below(shuffled, limit) == pytest.approx(evidence_below(values, limit))


@given(losses=LOSSES, limit=LIMIT)
def test_the_next_loss_is_a_fair_bet(losses: list[float], limit: float) -> None:
    """Of all losses with the mean ``limit``, those of 0 and 1 spread most; the others win less."""
    before = evidence_below(np.array(losses), limit)
    wrong, right = (evidence_below(np.array([*losses, each]), limit) for each in (1.0, 0.0))
    assert limit * wrong + (1.0 - limit) * right == pytest.approx(before)
    middle = evidence_below(np.array([*losses, limit]), limit)
    assert middle == pytest.approx(before)


def test_nothing_known_is_no_evidence() -> None:
    """And a certain promotion is a finite number."""
    assert evidence_below(np.array([]), 0.1) == pytest.approx(1.0)
    assert evidence_below(np.zeros(100_000), 0.5) > 1e300


@pytest.mark.parametrize("losses", [[1.5], [-0.1], [float("nan")], [[0.0]]])
def test_what_is_no_loss_is_refused(losses: list[float]) -> None:
    """Not taken for one."""
    with pytest.raises(InputError, match="losses must"):
        evidence_below(np.array(losses), 0.1)
