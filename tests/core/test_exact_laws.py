"""Realised risk against the law that it follows exactly.

Every test has a fixed seed and a false-alarm probability of 1e-6: a seed in a million would fail
correct code. Each says with which probability the bug that it is for would pass.
"""

import numpy as np
import pytest

from racer_core.calibration.threshold import allowed_misses, calibrate_threshold
from racer_core.types import RiskTarget, Score
from tests.core.laws import assert_at_most, assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.strategies import calibration_of

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6


@pytest.mark.parametrize(("n", "alpha", "trials"), [(19, 0.10, 4_000), (99, 0.05, 40_000)])
def test_misrouting_risk_has_its_exact_value(n, alpha, trials):
    """For continuous scores risk = floor(alpha(n+1))/(n+1) = alpha here, Theorem 4.5 sharpened.

    A rank off by one moves it by 1/(n+1) and passes with probability below 6e-5.
    """
    draws = np.random.default_rng(20260201).standard_normal((trials, n + 1))
    missed = sum(row[-1] > calibrate_threshold(row[:-1], alpha) for row in draws)
    assert_binomial(missed, trials, p=alpha, false_alarm=FALSE_ALARM)


def test_risk_given_the_calibration_set_is_beta():
    """Uniform scores have true risk 1 - lambda_hat ~ Beta(m, n + 1 - m), m = 2 of n = 19.

    Kolmogorov-Smirnov on 2,000 sets; Beta(1, 19) or Beta(3, 17) pass with probability below 1e-9.
    """
    draws = np.random.default_rng(7).random((2_000, 19))
    risks = [1.0 - calibrate_threshold(row, 0.1) for row in draws]
    assert stats.kstest(risks, stats.beta(2, 18).cdf).pvalue > FALSE_ALARM


def test_delta_rule_keeps_most_calibration_sets_below_alpha():
    """The share of sets whose true risk exceeds alpha is P(Bin(100, 0.1) <= 4) = 0.024 <= delta.

    One miss more (0.058) passes with probability below 1e-9; so does the rule for the mean (0.45).
    """
    n, alpha, delta, trials = 100, 0.1, 0.05, 4_000
    draws = np.random.default_rng(11).random((trials, n))
    over = sum(1.0 - calibrate_threshold(row, alpha, delta) > alpha for row in draws)
    share = stats.binom.cdf(allowed_misses(n, alpha, delta), n, alpha)
    assert share <= delta
    assert_binomial(over, trials, p=share, false_alarm=FALSE_ALARM)


class World:
    """Simulated queries of three candidates; ``fog`` blends the router's scores with noise."""

    def __init__(self, seed: int, rows: int, *, answerable: bool | None = None, fog: float = 0.3):
        rng = np.random.default_rng(seed)
        size = rows if answerable is None else 2 * rows if answerable else 12 * rows
        skill = rng.beta(0.5, 0.5, (size, 3))
        labels = rng.random((size, 3)) < skill
        scores = (1.0 - fog) * skill + fog * rng.random((size, 3))
        keep = np.ones(size, bool) if answerable is None else labels.any(axis=1) == answerable
        self.scores, self.labels = scores[keep][:rows], labels[keep][:rows]
        assert len(self.scores) == rows

    def trials(self, rows: int):
        """Blocks of rows: the last one of a block is its query."""
        for start in range(0, len(self.scores), rows):
            part = slice(start, start + rows)
            yield self.scores[part], self.labels[part]


def is_missed(calibration, scores, labels, *, serve_as=None):
    """Whether the set for one query misses G', or G for ``answerable``."""
    options = calibration.options
    lambda_hat = calibration.lambda_hat(options.alpha, options.score)
    served = serve_as or calibration
    sets = served.sets(scores, [b"the query"], lambda_hat, options.score)
    if labels.any():
        return not np.any(sets.selected & labels)
    return not sets.null_selected[0]


def misses(world, n, *, served=None, **calibrated):
    """Queries missed by the calibration on the n rows before each; ``served`` changes serving.

    Smoothing gets a salt for each trial: a query draws its noise once, so trials need their own.
    """
    count = 0
    for trial, (f, y) in enumerate(world.trials(n + 1)):
        sides = []
        for options in (calibrated, served or calibrated):
            salt = f"trial {trial}".encode() if options.get("smoothing_salt") else None
            sides.append(calibration_of(f[:n], y[:n], **{**options, "smoothing_salt": salt}))
        count += is_missed(sides[0], f[n:], y[n:], serve_as=sides[1])
    return int(count)


@pytest.mark.parametrize(("n", "trials"), [(19, 4_000), (99, 2_000)])
def test_paper_risk_has_its_exact_value(n, trials):
    """P(C misses G') = alpha = 0.1 for ``prob``, queries that no candidate answers (13 %) included.

    At n = 19 a rank off by one (0.05, 0.15) passes with probability below 1e-5; a set without the
    null column (0.19) with probability below 1e-9.
    """
    world = World(1, trials * (n + 1))
    missed = misses(world, n, alpha=0.1, score=Score.PROB, risk_target=RiskTarget.PAPER)
    assert_binomial(missed, trials, p=0.1, false_alarm=FALSE_ALARM)


def test_answerable_risk_has_its_exact_value():
    """P(C misses G | G not empty) = 0.1, and rows that no candidate answers change nothing.

    Each calibration has 19 rows that count and 11 that do not. Taking n = 30 (one miss more,
    0.15) passes with probability below 1e-5.
    """
    n, extra, trials = 19, 11, 4_000
    answerable = World(2, trials * (n + 1), answerable=True)
    unanswerable = World(3, trials * extra, answerable=False)
    missed = 0
    for (f, y), (g, z) in zip(answerable.trials(n + 1), unanswerable.trials(extra), strict=True):
        rows = np.vstack([g, f[:n]]), np.vstack([z, y[:n]])
        calibration = calibration_of(*rows, alpha=0.1, score=Score.PROB)
        missed += is_missed(calibration, f[n:], y[n:])
    assert_binomial(missed, trials, p=0.1, false_alarm=FALSE_ALARM)


def tau_for(share: float, fog: float) -> float:
    """The p_null that this share of answerable queries exceeds."""
    p_null = 1.0 - World(4, 20_000, answerable=True, fog=fog).scores.max(axis=1)
    return float(np.quantile(p_null, 1.0 - share))


def test_misses_and_false_abstentions_stay_below_alpha_together():
    """10 % of answerable queries abstain by tau; with the misses they are at most alpha = 0.2.

    Serving with a tau that the calibration did not know (risk 0.28) passes with probability below
    1e-9; the last line shows that it is seen.
    """
    n, alpha, trials, fog = 19, 0.2, 4_000, 0.8
    world = World(5, trials * (n + 1), answerable=True, fog=fog)
    known = {"alpha": alpha, "null_threshold": tau_for(0.1, fog)}
    assert_at_most(misses(world, n, **known), trials, p=alpha, false_alarm=FALSE_ALARM)
    unknown = misses(world, n, alpha=alpha, served=known)
    assert unknown > stats.binom.isf(FALSE_ALARM, trials, alpha)


def test_smoothing_on_both_sides_keeps_the_law():
    """Most critical gaps are exactly 0; smoothed there are no ties, so the risk is 0.2 = 10/50.

    Unsmoothed, or smoothed in calibration alone (0.15), it passes with probability below 1e-4;
    smoothed in serving alone (0.74) with probability below 1e-9.
    """
    n, trials = 49, 4_000
    world = World(8, trials * (n + 1), fog=0.0)
    missed = misses(world, n, alpha=0.2, risk_target=RiskTarget.PAPER, smoothing_salt=b"both")
    assert_binomial(missed, trials, p=0.2, false_alarm=FALSE_ALARM)


def test_ties_behind_the_first_candidate_are_broken_at_random():
    """Scores on a grid of quarters: smoothed, P(miss | answerable) is 0.1 = 5/50 all the same.

    Unsmoothed it is below 0.085, which passes with probability below 1e-3.
    """
    n, trials = 49, 4_000
    world = World(9, trials * (n + 1), answerable=True, fog=0.6)
    world.scores = np.round(world.scores * 4) / 4
    missed = misses(world, n, alpha=0.1, smoothing_salt=b"both")
    assert_binomial(missed, trials, p=0.1, false_alarm=FALSE_ALARM)
    tied = misses(world, n, alpha=0.1)
    assert tied < 0.085 * trials


def test_no_set_is_emptied_at_random():
    """At alpha 0.5 the first candidate alone misses less; it is called for every query."""
    world = World(10, 200, answerable=True, fog=0.0)
    calibration = calibration_of(world.scores, world.labels, alpha=0.5, smoothing_salt=b"both")
    sets = calibration.sets(
        world.scores, calibration.fingerprints, calibration.lambda_hat(), Score.GAP
    )
    assert (sets.selected.sum(axis=1) == 1).all()


def test_every_alpha_that_the_rows_are_enough_for_has_a_finite_threshold():
    """30 % of the answerable rows are refused by tau, and alpha is 0.05 = 1/20: whatever is drawn.

    Were refused rows missed at every threshold, nearly every threshold would be infinite, and those
    that are finite the lucky rest. Over all draws the risk is 0.05; of 4,000, false alarm 1e-6.
    """
    n, alpha, trials, fog = 19, 0.05, 4_000, 0.8
    world = World(11, trials * (n + 1), answerable=True, fog=fog)
    options = {"alpha": alpha, "null_threshold": tau_for(0.3, fog)}
    finite = [
        np.isfinite(calibration_of(f[:n], y[:n], **options).lambda_hat())
        for f, y in world.trials(n + 1)
    ]
    assert all(finite)
    missed = misses(world, n, smoothing_salt=b"both", **options)
    assert_binomial(missed, trials, p=alpha, false_alarm=FALSE_ALARM)
