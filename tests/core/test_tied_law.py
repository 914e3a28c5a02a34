"""The realised risk where critical scores tie: its exact law, and the bounds that are reported.

Worlds are atoms with probabilities. Small ones are enumerated, without chance; large ones are drawn
with fixed seeds and a false-alarm probability of 1e-6 each.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.realised_risk import BAND_DELTA, TIE_LEVEL, RealisedRisk
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from racer_core.types import Score
from tests.core.laws import assert_at_most
from tests.kit.lazy import LazyModule
from tests.kit.strategies import calibration_of

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6


@cache
def upper(risk: RealisedRisk) -> float:
    """The bound, computed once: many calibration sets have the same ranks."""
    return risk.upper()


@cache
def lower(risk: RealisedRisk) -> float:
    """The bound, computed once."""
    return risk.lower()


@cache
def misses_among(risk: RealisedRisk, trials: int) -> tuple[int, int]:
    """The interval, computed once."""
    return risk.misses_among(trials)


def ranks(risk: RealisedRisk) -> RealisedRisk:
    """The same evidence with any number of ties: only whether there are some matters."""
    return replace(risk, tied=min(risk.tied, 2))


def compositions(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write n as a sum of counts."""
    if parts == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in compositions(n - first, parts - 1):
            yield (first, *rest)


def outcomes(masses: np.ndarray, n: int, misses: int) -> list[tuple[float, float, RealisedRisk]]:
    """Probability, realised risk and evidence of every calibration set of n rows on these atoms."""
    risks = np.append(1.0 - np.cumsum(masses), 0.0)
    found = []
    for counts in compositions(n, len(masses)):
        log = math.lgamma(n + 1) - sum(math.lgamma(each + 1) for each in counts)
        chance = math.exp(log) * np.prod(masses ** np.array(counts))
        ascending = np.repeat(np.arange(len(masses), dtype=float), counts)
        atom = int(threshold_from_sorted(ascending, misses))
        risk = max(float(risks[atom]), 0.0) if atom < len(masses) - 1 else 0.0
        found.append((float(chance), risk, ranks(RealisedRisk.of(ascending, misses))))
    assert sum(chance for chance, _, _ in found) == pytest.approx(1.0)
    return found


def worlds(count: int, seed: int) -> Iterator[np.ndarray]:
    """Atoms that are alike, and atoms of which one has nearly everything."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        yield rng.dirichlet(np.full(2 + i % 3, (0.2, 1.0, 5.0)[i % 3]))


SIZES = [(9, 0.1), (12, 0.25), (16, 0.4), (19, 0.1)]


@pytest.mark.parametrize(("n", "alpha"), SIZES)
def test_the_risk_is_the_beta_variable_rounded_down(n: int, alpha: float) -> None:
    """P(R <= x) for every x, enumerated: R is the largest risk of a threshold that is at most B."""
    misses = allowed_misses(n, alpha)
    for masses in worlds(12, seed=n):
        found = outcomes(masses, n, misses)
        possible = sorted({risk for _, risk, _ in found})
        for low, above in pairwise([*possible, 1.0]):
            at_most = sum(chance for chance, risk, _ in found if risk <= low)
            assert at_most == pytest.approx(stats.beta.cdf(above, misses + 1, n - misses), abs=1e-9)


@pytest.mark.parametrize(("n", "alpha"), SIZES)
def test_the_bounds_hold_for_every_law_of_ties(n: int, alpha: float) -> None:
    """Enumerated: the upper one fails for 5 % and the ties' level, the lower one for that level."""
    misses = allowed_misses(n, alpha)
    for masses in worlds(30, seed=100 + n):
        found = outcomes(masses, n, misses)
        above = sum(chance for chance, risk, rank in found if risk > upper(rank))
        below = sum(p for p, risk, rank in found if not rank.is_distinct and risk < lower(rank))
        assert above <= 0.05 + TIE_LEVEL
        assert below <= TIE_LEVEL


@pytest.mark.parametrize(("n", "misses"), [(9, 0), (300, 29), (1_000, 99), (1_000, 84)])
def test_distinct_scores_have_the_exact_law(n: int, misses: int) -> None:
    """Both points are quantiles of the Beta law, and the misses to come are beta-binomial."""
    risk = RealisedRisk.of(np.random.default_rng(n).random(n).cumsum(), misses)
    assert (risk.missed, risk.tied) == (misses, 1)
    for tail in (0.025, 0.05):
        beta = stats.beta(misses + 1, n - misses)
        assert risk.lower(tail) == pytest.approx(beta.ppf(tail), abs=1e-9)
        assert risk.upper(tail) == pytest.approx(beta.ppf(1 - tail), abs=1e-9)
    expected = stats.betabinom.interval(0.95, 350, misses + 1, n - misses)
    assert risk.misses_among(350) == expected


def test_rows_that_are_never_missed_tie_although_one_row_alone_shows_it() -> None:
    """30 % of queries are never missed; a threshold of -inf misses the other 70 %."""
    n, misses = 4, 3
    below = chance_of_one = 0.0
    for never in range(n + 1):
        chance = math.comb(n, never) * 0.3**never * 0.7 ** (n - never)
        ascending = np.append(np.full(never, -math.inf), np.arange(n - never, dtype=float))
        risk = RealisedRisk.of(ascending, misses)
        if never:
            assert not risk.is_distinct
            assert risk.upper() <= stats.beta.ppf(0.95, misses + 1, n - misses)
            below += chance * (risk.lower() > 0.7)
            chance_of_one += chance * (never == 1)
    assert chance_of_one > 0.4
    assert below <= TIE_LEVEL


WORLDS = {
    "one atom has most": (0.0, [0.9, 0.05, 0.05]),
    "an atom at the threshold, the rest distinct": (0.7, [0.3]),
    "two atoms on either side": (0.0, [0.885, 0.06, 0.055]),
    "a lattice": (0.0, [0.02] * 50),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_bounds_hold_for_a_thousand_rows(name: str) -> None:
    """1,500 calibrations; the risk is that of the world, and queries to come are drawn from it."""
    spread, masses = WORLDS[name]
    n, alpha, trials, future = 1_000, 0.1, 1_500, 500
    misses = allowed_misses(n, alpha)
    rng = np.random.default_rng(len(name))
    edges = np.cumsum(masses)[:-1]  # of U: the score falls in U; atoms have the smallest scores
    above = below = outside = 0
    for _ in range(trials):
        u = rng.random(n)
        # Scores in 1 - U: atoms are steps of it, and the spread part is 1 - U itself.
        level = 1.0 - u
        atoms = np.searchsorted(edges, level, side="right").astype(float)
        score = np.where(level < 1.0 - spread, atoms, len(masses) + level)
        ascending = np.sort(score)
        threshold = threshold_from_sorted(ascending, misses)
        if threshold < len(masses):
            ends = [*edges, 1.0 - spread]
            truth = 1.0 - ends[int(threshold)]
        else:
            truth = 1.0 - (threshold - len(masses))
        risk = ranks(RealisedRisk.of(ascending, misses))
        above += truth > upper(risk)
        below += truth < lower(risk) - 1e-12
        low, high = misses_among(risk, future)
        outside += not low <= rng.binomial(future, min(max(truth, 0.0), 1.0)) <= high
    assert_at_most(above, trials, 0.05 + TIE_LEVEL, FALSE_ALARM)
    assert_at_most(below, trials, 0.05, FALSE_ALARM)
    assert_at_most(outside, trials, 0.05 + TIE_LEVEL, FALSE_ALARM)


@pytest.mark.parametrize("atoms", [4, 10_000])
def test_the_band_holds_for_an_alpha_picked_by_its_outcome(atoms: int) -> None:
    """The worst alpha of 49 picked with the true risks in view: the strongest choice there is."""
    rng = np.random.default_rng(73 + atoms)
    n, trials, broken, beyond = 200, 400, 0, 0
    alphas = np.arange(1, 50) / 100
    for _ in range(trials):
        ascending = np.sort(rng.integers(atoms, size=n).astype(float))
        found = [ranks(RealisedRisk.of(ascending, allowed_misses(n, a))) for a in alphas]
        truths = [1.0 - (ascending[-1 - each.misses] + 1.0) / atoms for each in found]
        broken += any(t > each.band() for t, each in zip(truths, found, strict=True))
        beyond += any(t > upper(each) for t, each in zip(truths, found, strict=True))
    assert_at_most(broken, trials, BAND_DELTA, FALSE_ALARM)
    if atoms > n:
        assert beyond > stats.binom.isf(FALSE_ALARM, trials, 0.05)


def test_a_calibration_reads_its_ties_off_its_rows() -> None:
    """Ties are of the score that it decides by; where all are called nothing is bound."""
    scores = np.column_stack([np.repeat([0.9, 0.2], [95, 5]), np.repeat([0.1, 0.8], [95, 5])])
    labels = np.column_stack([np.ones(100, bool), np.zeros(100, bool)])
    calibration = calibration_of(scores, labels, score=Score.PROB)
    assert isinstance(calibration, Calibration)
    assert calibration.realised_risk(0.1) == RealisedRisk(n=100, misses=9, missed=5, tied=95)
    assert calibration.risk_q95(0.1) == calibration.realised_risk(0.1).upper()
    assert calibration.realised_risk(0.001) is None
    missing = np.arange(100) < 10  # one more than may be missed
    partly = calibration_of(
        scores, labels & ~missing[:, None], score=Score.PROB, unlabelled=missing
    )
    assert partly.misses(0.1) == 9
    assert partly.realised_risk(0.1) is None
    assert partly.risk_q95(0.1) == 0.0
