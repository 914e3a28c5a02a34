"""Learn then Test, and the Clopper-Pearson bounds: exact for every count."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.answer_limit import passing as thresholds_that_pass
from racer_core.calibration.answer_limit import smallest_feasible
from racer_core.calibration.learn_then_test import (
    GridPoint,
    clopper_pearson_lower,
    clopper_pearson_upper,
    learn_then_test,
)
from racer_core.errors import CalibrationError, InputError
from tests.core.laws import assert_at_most, assert_binomial
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
counts = st.integers(0, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def point(errors, answered, *, lambda_hat=0.5, size=2.0):
    """A grid point with these counts."""
    return GridPoint(lambda_hat=lambda_hat, errors=errors, answered=answered, size=size)


@given(count=counts, delta=st.sampled_from([0.001, 0.05, 0.5]))
def test_bounds_agree_with_scipy(count, delta):
    """One-sided Clopper-Pearson, for every count from none to all."""
    errors, n = count
    if n == 0:
        return
    result = stats.binomtest(errors, n, alternative="less")
    oracle = result.proportion_ci(1.0 - delta, method="exact")
    assert clopper_pearson_upper(errors, n, delta) == pytest.approx(oracle.high, abs=1e-12)
    result = stats.binomtest(errors, n, alternative="greater")
    oracle = result.proportion_ci(1.0 - delta, method="exact")
    assert clopper_pearson_lower(errors, n, delta) == pytest.approx(oracle.low, abs=1e-12)


def test_bounds_at_the_edges():
    """No trials say nothing; no errors give the closed form 1 - delta**(1/n); all err: 1."""
    assert clopper_pearson_upper(0, 0) == 1.0
    assert clopper_pearson_lower(0, 0) == 0.0
    assert clopper_pearson_upper(7, 7) == 1.0
    assert clopper_pearson_lower(0, 7) == 0.0
    assert clopper_pearson_upper(0, 1, 0.05) == pytest.approx(0.95)
    assert clopper_pearson_upper(0, 59, 0.05) == pytest.approx(1.0 - 0.05 ** (1 / 59))


def passing(pmf_or_counts, grid_of, target, delta):
    """Probability that any point passes, summed over all counts."""
    return sum(
        mass
        for mass, counted in pmf_or_counts
        if learn_then_test(grid_of(counted), target, delta).feasible
    )


def test_any_of_two_points_at_the_boundary_passes_with_at_most_delta():
    """Independent points are the worst case of the union; each at full delta would give 0.09."""
    n, target, delta = 40, 0.2, 0.05
    pmf = stats.binom.pmf(np.arange(n + 1), n, target)
    pairs = [
        (pmf[a] * pmf[b], (a, b)) for a, b in itertools.product(range(n + 1), repeat=2) if a + b < n
    ]
    both = passing(pairs, lambda ab: [point(ab[0], n), point(ab[1], n)], target, delta)
    assert both <= delta
    alone = sum(
        mass
        for mass, ab in pairs
        if any(learn_then_test([point(e, n)], target, 0.08).feasible for e in ab)
    )
    assert alone > delta


def test_no_order_of_risks_passes_a_bad_point_too_often():
    """Not monotone: bad points at the boundary between good ones that hand them their level.

    Errors of neighbouring points come from the same rows. 1,000 runs, false alarm 1e-6.
    """
    rng, runs, n, target, delta = np.random.default_rng(61), 1_000, 150, 0.2, 0.1
    risks = np.array([0.05, 0.2, 0.02, 0.2, 0.2, 0.1])
    wrong = 0
    for _ in range(runs):
        errors = (rng.random((n, 1)) < risks).sum(axis=0)
        grid = [point(int(e), n, lambda_hat=float(i)) for i, e in enumerate(errors)]
        passed = {int(valid.lambda_hat) for valid in learn_then_test(grid, target, delta).valid}
        wrong += bool(passed & {1, 3, 4})
    assert_at_most(wrong, runs, delta, FALSE_ALARM)


def test_the_chance_that_a_limit_at_the_true_rate_is_certified_is_exact():
    """Four thresholds with errors of their own, all at the limit, of which none passed before.

    The first is tested at 3/4 of delta, the others at 1/12 each. 2,000 runs, false alarm 1e-6;
    delta twice as large passes with probability below 1e-3.
    """
    n, limit, delta, runs = 300, 0.3, 0.05, 2_000
    cdf = stats.binom.cdf(np.arange(n + 1), n, limit)
    first, other = (cdf[cdf <= delta * share][-1] for share in (3 / 4, 1 / 12))
    errors = np.random.default_rng(62).binomial(n, limit, (runs, 4)).tolist()
    grids = ([point(e, n, lambda_hat=float(i)) for i, e in enumerate(each)] for each in errors)
    certified = sum(bool(thresholds_that_pass(grid, 0.0, limit, delta)) for grid in grids)
    assert_binomial(
        certified, runs, p=1.0 - (1.0 - first) * (1.0 - other) ** 3, false_alarm=FALSE_ALARM
    )
    assert thresholds_that_pass([point(0, n), point(0, n, lambda_hat=0.7)], 0.7, limit, delta)
    assert not thresholds_that_pass([point(0, n), point(n, n, lambda_hat=0.7)], 0.6, limit, delta)


@given(grid=st.lists(counts, min_size=1, max_size=5), limits=st.lists(st.integers(1, 999)))
def test_every_limit_from_the_smallest_feasible_one_on_passes(grid, limits):
    """And none below; limits are multiples of 0.001."""
    points = [point(e, n, lambda_hat=float(i)) for i, (e, n) in enumerate(grid)]
    smallest = smallest_feasible(points, 1.0, 0.05) or 1.0
    beside = round(1_000 * smallest)
    for step in {beside - 1, beside, *limits} - {0, 1_000}:
        passed = thresholds_that_pass(points, 1.0, step / 1_000, 0.05)
        assert bool(passed) == (step >= beside)


@given(grid=st.lists(counts, min_size=1, max_size=8), target=st.sampled_from([0.05, 0.3]))
def test_never_passes_fewer_points_than_their_shares_alone(grid, target):
    """Bonferroni with 3/4 of delta for the first point, and equal shares for the others."""
    points = [point(e, n, lambda_hat=float(i)) for i, (e, n) in enumerate(grid)]
    passed = learn_then_test(points, target, 0.05).valid
    shares = [0.75, *[0.25 / (len(grid) - 1)] * (len(grid) - 1)] if len(grid) > 1 else [1.0]
    for each, share in zip(points, shares, strict=True):
        if clopper_pearson_upper(each.errors, each.answered, 0.05 * share) < target:
            assert each in passed


def test_the_first_point_has_three_quarters_of_delta():
    """A p-value of 0.033 passes in the first place, and not after a point that failed."""
    weak, failing = point(46, 600), point(600, 600)
    assert 0.025 < stats.binom.cdf(46, 600, 0.1) < 0.0375
    assert weak in learn_then_test([weak, failing, failing], 0.1, 0.05).valid
    assert weak not in learn_then_test([failing, weak, failing], 0.1, 0.05).valid
    assert weak not in learn_then_test([weak, failing, failing], 0.1, 0.05, 1 / 3).valid


def test_good_neighbours_hand_on_their_level():
    """A p-value of 0.04 fails alone at delta / 2; after a point that passed it has all of delta."""
    weak = point(47, 600)
    assert 0.025 < stats.binom.cdf(47, 600, 0.1) < 0.05
    assert weak not in learn_then_test([point(600, 600), weak], 0.1, 0.05).valid
    assert weak in learn_then_test([point(0, 600), weak], 0.1, 0.05).valid


def test_the_choice_answers_most_then_calls_fewest():
    """Any choice among the valid points is allowed, since all are valid together."""
    best = point(10, 500, size=2.0, lambda_hat=0.3)
    grid = [point(1, 400, size=1.0), point(9, 500, size=3.0), best, point(300, 900)]
    result = learn_then_test(grid, 0.1)
    assert result.chosen == best
    assert result.feasible


@pytest.mark.parametrize("grid", [[], [point(0, 0)], [point(50, 500), point(60, 600)]])
def test_an_infeasible_test_gives_no_lambda(grid):
    """No points, nothing answered, or a risk that only looks like the target: no lambda."""
    result = learn_then_test(grid, 0.1)
    assert result.chosen is None
    assert not result.feasible
    assert result.valid == ()


@pytest.mark.parametrize(
    ("use", "error", "named"),
    [
        *(
            (lambda count=count: clopper_pearson_upper(*count), CalibrationError, "not a count")
            for count in ((-1, 5), (6, 5), (0, -1))
        ),
        (lambda: learn_then_test([point(6, 5)], 0.1), CalibrationError, "not a count"),
        *(
            (lambda delta=delta: clopper_pearson_upper(1, 10, delta), InputError, "delta")
            for delta in (0.0, 1.0, math.nan)
        ),
        (lambda: learn_then_test([point(1, 10)], 0.1, math.nan), InputError, "delta"),
        *(
            (lambda to=to: learn_then_test([point(1, 10)], to), InputError, "answer_risk_max")
            for to in (0.0, 1.0, math.nan, True)
        ),
    ],
)
def test_counts_and_chances_that_cannot_be_are_refused(use, error, named):
    """NaN included, by the name of the argument."""
    with pytest.raises(error, match=named):
        use()
