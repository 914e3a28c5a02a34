"""Thresholds of graded losses and weighted rows: the exact rule, and the laws that it keeps."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.loss_curve import (
    SCALE,
    LossCurve,
    scaled_losses,
    shortfall_steps,
)
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.threshold import calibrate_threshold
from racer_core.errors import CalibrationError
from racer_core.types import RiskTarget, Score
from tests.core.kinds import Kinds
from tests.core.laws import assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.strategies import alpha_texts, alphas, fingerprints_of, pool_of, tables

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6

critical = st.lists(
    st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.floats(0.0, 1.0), st.just(math.inf)),
    min_size=1,
    max_size=40,
)
grades = st.one_of(
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 4).map(lambda k: k / 4),
    st.integers(0, SCALE).map(lambda k: k / SCALE),
)


@given(scores=critical, alpha=alphas, weight=st.sampled_from([None, 0.1, 1.0, 3.7]))
def test_losses_of_0_and_1_have_the_threshold_of_the_order_statistic(scores, alpha, weight):
    """To the last bit, also where all rows have one weight, whatever it is."""
    steps = np.array(scores)[:, None]
    curve = LossCurve.of(
        steps,
        np.full(steps.shape, SCALE),
        weights=None if weight is None else np.full(len(scores), weight),
        max_weight=weight or 1.0,
    )
    assert curve.threshold(alpha) == calibrate_threshold(np.array(scores), alpha)


@st.composite
def graded_rows(draw):
    """Nonconformity and qualities with many ties, (n, K), and weights up to the largest one."""
    shape = (draw(st.integers(1, 12)), draw(st.integers(1, 4)))
    score = st.one_of(st.integers(0, 4).map(lambda k: k / 4), st.floats(0.0, 1.0))
    arrays = [
        draw(hnp.arrays(np.float64, shape, elements=each, fill=st.nothing()))
        for each in (score, grades)
    ]
    weights = draw(st.none() | st.lists(st.integers(1, 64), min_size=shape[0], max_size=shape[0]))
    return *arrays, None if weights is None else np.array(weights, dtype=np.float64)


def by_hand(fit, quality, weights, alpha):
    """Every score tried from below, in rational arithmetic, with w_max = 64; +inf if none."""
    n, columns = fit.shape
    weight = [Fraction(1)] * n if weights is None else [Fraction(w) for w in weights.tolist()]
    largest = Fraction(1 if weights is None else 64)
    grade = [[Fraction(round(q * SCALE), SCALE) for q in row] for row in quality.tolist()]

    def loss(row, threshold):
        called = [grade[row][m] for m in range(columns) if fit[row, m] <= threshold]
        return max(grade[row]) - max(called, default=Fraction(0))

    def falls(threshold):
        return any(
            loss(row, threshold) < loss(row, math.nextafter(threshold, -math.inf))
            for row in range(n)
        )

    for threshold in sorted(set(fit.ravel().tolist())):
        total = sum(weight[row] * loss(row, threshold) for row in range(n))
        if falls(threshold) and (total + largest) / (sum(weight) + largest) <= alpha:
            return threshold
    return math.inf


@given(rows=graded_rows(), alpha=alpha_texts)
def test_the_threshold_is_the_smallest_valid_score(rows, alpha):
    """Against every score tried in fractions, ties, zeros and weights included."""
    fit, quality, weights = rows
    curve = LossCurve.of(
        *shortfall_steps(fit, scaled_losses(quality)), weights=weights, max_weight=64.0
    )
    assert curve.threshold(float(alpha)) == by_hand(fit, quality, weights, Fraction(alpha))


@given(table=tables(), alpha=alphas, score=st.sampled_from(list(Score)))
def test_qualities_of_0_and_1_give_the_sets_of_the_0_1_loss_over_all_rows(table, alpha, score):
    """A row without a right candidate has no loss at any set; it still counts in n."""
    graded = calibration_of(table, table.labels.astype(float), score=score)
    binary = table.calibration(score=score)
    lowest = np.full(graded.n - binary.n, np.finfo(float).min)
    ascending = binary.row_critical_scores
    expected = calibrate_threshold(np.concatenate([lowest, ascending]), alpha)
    found = graded.lambda_hat(alpha, score)
    assert found == max(expected, ascending[0])


def calibration_of(table, quality, **options):
    """A table's rows with qualities, and calibrated on them."""
    options = {"risk_target": RiskTarget.QUALITY} | options
    calibration = table.calibration(**(options | {"risk_target": RiskTarget.PAPER}))
    return replace(calibration, quality=quality, options=CalibrationOptions(**options))


def test_a_refused_row_falls_short_by_its_best_until_its_refusal_is_undone():
    """Below p_null, 1 of 20 rows with quality 0.5 uses 0.5 of alpha (n + 1)."""
    scores, quality = np.full((20, 2), 0.9), np.tile([0.5, 0.0], (20, 1))
    scores[0] = 0.05  # p_null = 0.95
    calibration = Calibration(
        pool=pool_of(2),
        fingerprints=fingerprints_of(20),
        scores=scores,
        labels=quality >= 0.5,
        quality=quality,
        options=CalibrationOptions(risk_target=RiskTarget.QUALITY, null_threshold=0.9),
    )
    assert calibration.lambda_hat(1.5 / 21, Score.GAP) == 0.0
    assert calibration.lambda_hat(1.49 / 21, Score.GAP) == 0.95
    assert calibration.loss_curve(Score.GAP).mean_loss(0.95) == 0.0
    assert calibration.loss_curve(Score.GAP).mean_loss(0.0) == 0.5 / 20


def worlds(kind, trials, n, seed):
    """Blocks of n + 1 rows of 3 candidates: nonconformity, and qualities that follow it."""
    rng = np.random.default_rng(seed)
    fit = rng.random((trials, n + 1, 3))
    quality = np.clip(1.0 - fit + 0.6 * (rng.random(fit.shape) - 0.5), 0.0, 1.0)
    if kind == "ties":
        fit, quality = np.round(fit * 6) / 6, np.round(quality * 4) / 4
    elif kind == "binary":
        quality = np.round(quality)
    return fit, scaled_losses(quality)


def assert_mean_at_most(losses, bound, false_alarm=FALSE_ALARM):
    """Fail when a mean lies above a bound of its expectation by more than luck (normal law)."""
    losses = np.asarray(losses)
    slack = stats.norm.isf(false_alarm) * losses.std() / math.sqrt(losses.size)
    assert losses.mean() <= bound + slack, f"{losses.mean():.4f}, bound {bound} + {slack:.4f}"


@pytest.mark.parametrize(("kind", "trials"), [("continuous", 6_000), ("ties", 3_000)])
def test_the_mean_shortfall_keeps_alpha(kind, trials):
    """Sets of 14 rows and one query at alpha 0.2: 0.159 and 0.109.

    A rule without the query's own loss gives 0.216 for continuous scores: the test above is for
    the rule, this one for the law. The lower bound is Angelopoulos et al. 2024, Theorem 2.
    """
    n, alpha = 14, 0.2
    losses = np.array(
        [
            shortfall_of_last(fit, quality, alpha)
            for fit, quality in zip(*worlds(kind, trials, n, 7), strict=True)
        ]
    )
    assert_mean_at_most(losses, alpha)
    if kind == "continuous":
        assert_mean_at_most(-losses, 2.0 / (n + 1) - alpha)


def test_the_shortfall_of_qualities_of_0_and_1_keeps_alpha():
    """18 rows at alpha 0.2 may have 2 misses: 3/19 of the queries that a set can miss at all.

    Every row has a right candidate here and no score ties, so the law is exact; with a rank more
    (0.211) it passes with probability below 1e-3.
    """
    trials = 4_000
    fit, quality = worlds("binary", trials, 18, 8)
    quality[quality.max(axis=2) == 0, 0] = SCALE
    losses = [shortfall_of_last(*each, 0.2) for each in zip(fit, quality, strict=True)]
    assert_binomial(int(sum(losses)), trials, p=3 / 19, false_alarm=FALSE_ALARM)


def shortfall_of_last(fit, quality, alpha, weights=None, max_weight=1.0):
    """The loss of a block's last row at the threshold of the others."""
    steps, drops = shortfall_steps(fit, quality)
    curve = LossCurve.of(steps[:-1], drops[:-1], weights=weights, max_weight=max_weight)
    return drops[-1][steps[-1] > curve.threshold(alpha)].sum() / SCALE


def hoeffding_bentkus(loss, n, alpha):
    """The two p-values of "the risk exceeds alpha" in closed form: Bates et al. 2021."""
    mean = min(loss / n / SCALE, alpha)
    divergence = stats.entropy([mean, 1.0 - mean], [alpha, 1.0 - alpha])
    bentkus = math.e * stats.binom.cdf(math.ceil(Fraction(loss, SCALE)), n, alpha)
    return math.exp(-n * divergence), bentkus


def curve_of(scores):
    """Losses of 0 and 1, with these critical scores."""
    return LossCurve.of(scores[:, None], np.full((len(scores), 1), SCALE))


def test_delta_allows_the_largest_loss_that_hoeffding_or_bentkus_refutes():
    """In steps of 1e-6; each of the two bounds decides somewhere. Nothing is random."""
    decides = set()
    for n, alpha, delta in itertools.product((3, 30, 101, 400), (0.05, 0.1, 0.4), (0.01, 0.1)):
        allowed = curve_of(np.zeros(n)).allowed(alpha, delta)
        assert allowed == -1 or min(hoeffding_bentkus(allowed, n, alpha)) <= delta * (1 + 1e-9)
        beyond = hoeffding_bentkus(allowed + 1, n, alpha)
        assert min(beyond) > delta * (1 - 1e-9)
        if allowed >= 0:
            decides.add(int(np.argmin(hoeffding_bentkus(allowed, n, alpha))))
    assert decides == {0, 1}


def test_delta_keeps_most_sets_of_rows_below_alpha():
    """Uniform critical scores: the risk at t is 1 - t, above alpha with P(Bin(n, alpha) <= c)."""
    n, alpha, trials = 100, 0.1, 4_000
    rows = np.random.default_rng(9).random((trials, n))
    for delta, misses in ((0.1, 4), (None, 9)):
        over = sum(1.0 - curve_of(each).threshold(alpha, delta) > alpha for each in rows)
        chance = stats.binom.cdf(misses, n, alpha)
        assert_binomial(over, trials, p=chance, false_alarm=FALSE_ALARM)


# Kind and critical score of a row. The shares of the kinds are 3/4 and 1/4, served 1/3 and 2/3.
OUTCOMES = [(0, 1.0), (1, 2.0), (1, 3.0), (1, 4.0)]
OF_ROWS = [Fraction(each, 12) for each in (9, 1, 1, 1)]
OF_SERVED = [Fraction(each, 9) for each in (3, 2, 2, 2)]


def small_world(thresholds, n, falls):
    """E[loss of a served query] over all sets of n rows, and the law of the threshold.

    ``thresholds`` maps the outcomes of n rows to their threshold. ``falls`` is the loss that a row
    sheds at its critical score, then at the next whole number.
    """
    law, mean = Counter(), Fraction(0)
    for rows in itertools.combinations_with_replacement(range(len(OUTCOMES)), n):
        counts = Counter(rows)
        chance = Fraction(math.factorial(n))
        for each, count in counts.items():
            chance *= OF_ROWS[each] ** count / math.factorial(count)
        threshold = thresholds(rows)
        law[threshold] += chance
        mean += chance * sum(
            share * loss_at(OUTCOMES[each][1], threshold, falls)
            for each, share in enumerate(OF_SERVED)
        )
    assert sum(law.values()) == 1
    return law, mean


def loss_at(score, threshold, falls):
    """What is left of a row's loss."""
    return sum(fall for step, fall in enumerate(falls) if score + step > threshold)


@pytest.mark.parametrize("falls", [(Fraction(1),), (Fraction(1, 2), Fraction(1, 2))])
def test_known_weights_keep_alpha_under_covariate_shift(falls):
    """All 455 sets of 12 rows, alpha 0.3, in rational numbers: exact, so never a false alarm.

    Realised with weights, which are 1 and 6: 0.101 and 0.097; without: 0.444 and 0.438. The law of
    the threshold is that of the written rule; it is +inf where all rows are of the first kind.
    """
    n, alpha, weight = 12, Fraction(3, 10), (1, 6)

    def rule(rows):
        total = sum(weight[OUTCOMES[each][0]] for each in rows) + 6
        for threshold in (1.0, 2.0, 3.0, 4.0, 5.0):
            left = sum(
                weight[kind] * loss_at(score, threshold, falls)
                for kind, score in (OUTCOMES[each] for each in rows)
            )
            falls_here = any(0.0 <= threshold - OUTCOMES[each][1] < len(falls) for each in rows)
            if falls_here and (left + 6) / total <= alpha:
                return threshold
        return math.inf

    def calibrated(rows, **weights):
        scores = np.array([OUTCOMES[each][1] for each in rows])
        steps = scores[:, None] + np.arange(len(falls))
        drops = np.tile([int(fall * SCALE) for fall in falls], (n, 1))
        return LossCurve.of(steps, drops, **weights).threshold(float(alpha))

    def weighted(rows):
        own = np.array([weight[OUTCOMES[each][0]] for each in rows], float)
        return calibrated(rows, weights=own, max_weight=6.0)

    law, mean = small_world(weighted, n, falls)
    assert (law, mean) == small_world(rule, n, falls)
    assert law[math.inf] == Fraction(3, 4) ** n
    assert float(mean) == pytest.approx({1: 0.1007, 2: 0.0970}[len(falls)], abs=1e-4)
    assert mean <= alpha
    assert small_world(calibrated, n, falls)[1] > alpha


def test_quality_is_needed_and_lies_in_the_unit_interval():
    """The message says what is missing."""
    rows = Kinds(3).draw(20)
    plain = Kinds(3).calibration(rows)
    options = CalibrationOptions(risk_target=RiskTarget.QUALITY)
    with pytest.raises(CalibrationError, match="needs a quality of every candidate"):
        replace(plain, options=options)
    for quality in (np.full((20, 4), 1.1), np.full((20, 4), np.nan), np.ones((20, 3))):
        with pytest.raises(CalibrationError, match="qualities"):
            replace(plain, options=options, quality=quality)
    with pytest.raises(CalibrationError, match="r counts right candidates"):
        CalibrationOptions(risk_target=RiskTarget.QUALITY, r=2)


def test_weights_need_their_bound_and_have_no_beta_law():
    """The rows' own largest weight is no bound over served queries; nothing is claimed of them."""
    rows = Kinds(3).draw(200, answerable=True)
    plain = Kinds(3).calibration(rows, score=Score.COVER)
    spread = np.linspace(1.0, 2.0, 200)
    with pytest.raises(CalibrationError, match="need max_weight, the largest weight of any served"):
        replace(plain, weights=spread)
    equal = replace(plain, weights=np.full(200, 2.0))
    assert equal.weights is None
    assert equal.realised_risk(0.1) == plain.realised_risk(0.1)
    bounded = replace(plain.options, max_weight=2.0)
    weighted = replace(plain, weights=spread, options=bounded)
    assert (weighted.realised_risk(0.1), weighted.risk_q95(0.1)) == (None, None)
    assert plain.risk_q95(0.1) is not None
    for message, changes in (("equal weight", {"delta": 0.1}), ("above max", {"max_weight": 1.5})):
        with pytest.raises(CalibrationError, match=message):
            replace(weighted, options=replace(bounded, **changes))
    for weights in (np.zeros(200), np.full(200, np.inf), np.ones(3)):
        with pytest.raises(CalibrationError):
            replace(weighted, weights=weights)
