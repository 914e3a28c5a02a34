"""Judge correction: the bound holds for any judge, and a good one makes sets smaller.

Statistical tests have a fixed seed and a false-alarm probability of 1e-6 for what must hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from racer_core.calibration.judge_correction import Losses, Parts, corrected_thresholds
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from tests.core.laws import assert_at_most
from tests.kit.judges import Draw, errors, losses, population
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-6
WORLD = population(20_000)
DRAWS, ROWS, LABELLED, ALPHA, DELTA = 500, 400, 60, 0.08, 0.2
JUDGES = ("lenient 0.15", "symmetric 0", "symmetric 0.1", "symmetric 0.3", "lenient 0.3",
          "strict 0.2", "hard 0.2", "partial 0.1")  # fmt: skip


def broken(kind: str, seed: int, threshold: Callable[[Draw], float], draws: int = DRAWS) -> int:
    """How many of the draws have a threshold whose true risk exceeds alpha."""
    rng = np.random.default_rng(seed)
    wrong = errors(kind, WORLD)
    found = [threshold(Draw.of(WORLD, wrong, ROWS, LABELLED, rng)) for _ in range(draws)]
    return sum(WORLD.risk(each) > ALPHA for each in found)


def corrected(draw: Draw) -> float:
    """The threshold of the rows, corrected."""
    return float(draw.thresholds([ALPHA], DELTA)[0])


def binomial(rows: Losses) -> float:
    """The exact binomial rule."""
    critical = np.sort(rows.critical[rows.counted])
    return threshold_from_sorted(critical, allowed_misses(len(critical), ALPHA, DELTA))


@pytest.mark.parametrize(
    "kind", [JUDGES[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in JUDGES[1:])]
)
def test_the_risk_exceeds_alpha_in_at_most_delta_of_500_draws(kind: str):
    """Whatever the judge gets wrong. 100 are expected at most; measured are 14 and 65."""
    assert_at_most(broken(kind, 1, corrected), DRAWS, DELTA, FALSE_ALARM)


def test_a_good_judge_makes_sets_smaller_than_labels_alone():
    """Mean sizes of 10 draws at alpha 0.1, delta 0.05."""
    rng = np.random.default_rng(2)
    wrong = errors("symmetric 0", WORLD)
    draws = [Draw.of(WORLD, wrong, 3_000, 300, rng) for _ in range(10)]
    ours = np.mean([WORLD.size(float(each.thresholds([0.1], 0.05)[0])) for each in draws])
    alone = np.mean([WORLD.size(labels_alone(each, 0.1, 0.05)) for each in draws])
    assert ours < alone - 0.05


def labels_alone(draw: Draw, alpha: float, delta: float) -> float:
    """The exact binomial rule on the rows that people labelled."""
    found = draw.people.take(np.arange(draw.m))
    critical = np.sort(found.critical[found.counted])
    return threshold_from_sorted(critical, allowed_misses(len(critical), alpha, delta))


def test_rows_without_verdict_or_label_are_missed_at_every_level():
    """Verdicts are missing of exactly the hardest tenth of queries; the bound holds."""
    ordered = np.sort(WORLD.losses.critical[WORLD.losses.counted])
    hardest = ordered[int(0.9 * len(ordered))]

    def thresholds(draw: Draw, *, drop: bool) -> float:
        lost = draw.people.counted & (draw.people.critical > hardest)
        rows = len(lost)
        people, judge = (
            Losses(critical=np.where(lost, np.inf, each.critical), counted=each.counted | lost)
            for each in (draw.people, draw.judge)
        )
        chosen = np.flatnonzero(~lost) if drop else np.arange(rows)
        labelled = np.zeros(rows, bool)
        labelled[np.flatnonzero(~lost)[:LABELLED]] = True
        parts = Parts.of([int(i).to_bytes(4) for i in chosen], labelled[chosen], ~lost[chosen])
        found = corrected_thresholds(
            people.take(chosen),
            judge.take(chosen),
            parts,
            np.array([ALPHA]),
            DELTA,
            nonconformity=draw.nonconformity[chosen],
        )
        return float(found.thresholds[0])

    def worst(draw: Draw) -> float:
        return thresholds(draw, drop=False)

    def dropped(draw: Draw) -> float:
        return thresholds(draw, drop=True)

    draws = 100
    assert_at_most(broken("symmetric 0.05", 4, worst, draws), draws, DELTA, FALSE_ALARM)
    lost = broken("symmetric 0.05", 4, dropped, draws)
    assert lost > stats.binom.isf(FALSE_ALARM, draws, DELTA)


def test_a_larger_alpha_never_has_the_larger_threshold():
    """Also where its own test fails first."""
    rng = np.random.default_rng(5)
    alphas = [i / 25 for i in range(1, 20)]
    for _ in range(2):
        draw = Draw.of(WORLD, errors("symmetric 0.1", WORLD), 500, 100, rng)
        found = draw.thresholds(alphas, 0.1)
        assert (np.diff(np.where(np.isinf(found), 2.0, found)) <= 0.0).all()
        assert found[0] < math.inf


def test_one_alpha_or_many_at_once_give_the_same():
    """Up to the maximum over larger alphas."""
    draw = Draw.of(WORLD, errors("hard 0.1", WORLD), 800, 150, np.random.default_rng(6))
    alphas = [i / 50 for i in range(4, 20)]
    alone = [float(draw.thresholds([alpha], 0.1)[0]) for alpha in alphas]
    expected = np.maximum.accumulate(np.array(alone)[::-1])[::-1]
    np.testing.assert_array_equal(draw.thresholds(alphas, 0.1), expected)


def test_the_order_of_the_file_changes_nothing():
    """The random order is that of the fingerprints' digest."""
    rng = np.random.default_rng(7)
    draw = Draw.of(WORLD, errors("symmetric 0.1", WORLD), 500, 100, rng)
    prints = [rng.bytes(16) for _ in range(500)]
    labelled, judged = np.arange(500) < 100, np.ones(500, bool)
    found = []
    for order in (np.arange(500), rng.permutation(500)):
        parts = Parts.of([prints[i] for i in order], labelled[order], judged)
        people, judge = draw.people.take(order), draw.judge.take(order)
        scores = draw.nonconformity[order]
        alphas = np.array([ALPHA])
        found.append(
            corrected_thresholds(people, judge, parts, alphas, DELTA, nonconformity=scores)
        )
    assert found[0].thresholds == found[1].thresholds < math.inf


def test_rows_without_verdict_keep_their_places_in_the_random_order():
    """Of 300 rows 30 have neither; some of these are among the first 100, the part of m rows."""
    rng = np.random.default_rng(8)
    judged = rng.random(300) > 0.1
    labelled = np.zeros(300, bool)
    labelled[np.flatnonzero(judged)[:100]] = True
    parts = Parts.of([rng.bytes(16) for _ in range(300)], labelled, judged)
    assert sorted([*parts.labelled, *parts.judged]) == list(range(300))
    assert len(parts.labelled) == 100
    assert (labelled | ~judged)[parts.labelled].all()
    share = float((~judged)[parts.labelled].mean())
    assert 0.0 < share < 0.3


def test_without_rows_that_count_no_level_passes():
    """Nothing is certified from nothing."""
    rows = losses(np.zeros((50, 2)), np.zeros((50, 2), bool))
    parts = Parts.of([i.to_bytes(4) for i in range(50)], np.arange(50) < 10, np.ones(50, bool))
    found = corrected_thresholds(
        rows, rows, parts, np.array([0.1]), 0.05, nonconformity=np.zeros((50, 2))
    )
    assert found.thresholds == math.inf
