"""The bound on wrong final answers at the threshold that the same rows set, against known truth.

Each population has a known rate at every threshold. Seeds are fixed; the false-alarm probability of
each check is 1e-6.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.learn_then_test import clopper_pearson_upper
from racer_core.calibration.served_answer_risk import AnswerRisk, served_answer_risk
from racer_core.calibration.threshold import allowed_misses
from racer_core.types import BoolArray, FloatArray, Score
from tests.core.laws import assert_at_most, assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.strategies import calibration_of

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
ALPHA, DELTA = 0.1, 0.05


@dataclass(frozen=True, kw_only=True)
class World:
    """Queries whose final answer is right with a probability that depends on the threshold.

    Attributes:
        right: P(the vote is right | covered), by the threshold.
        uncounted: P(no candidate is right).
        refused: P(tau refuses), for queries that count and for the others.
        atoms: Distinct critical scores; None: a uniform.
        called_from: A query is called from this part of its critical score on; 0: always.
    """

    right: Callable[[float], float]
    uncounted: float = 0.0
    refused: tuple[float, float] = (0.0, 0.0)
    atoms: int | None = None
    called_from: float = 0.0

    def rate(self, threshold: float) -> float:
        """P(final answer wrong | answered)."""
        covered = threshold
        if self.atoms is not None:
            covered = min(threshold + 1.0 / self.atoms, 1.0)
        count, other = 1.0 - self.uncounted, self.uncounted
        answering = count * (1.0 - self.refused[0]) + other * (1.0 - self.refused[1])
        right = count * (1.0 - self.refused[0]) * covered * self.right(threshold)
        if self.called_from > 0.0:  # called if called_from * s <= threshold
            answering *= min(threshold / self.called_from, 1.0)
        return 1.0 - right / answering

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, FloatArray | BoolArray]:
        """Rows, and the uniform that decides a row's vote."""
        counted = rng.random(rows) >= self.uncounted
        score = rng.random(rows)
        if self.atoms is not None:
            score = np.floor(score * self.atoms) / self.atoms
        refused = rng.random(rows) < np.where(counted, *self.refused)
        return {"counted": counted, "s": score, "refused": refused, "vote": rng.random(rows)}

    def judged(
        self, drawn: dict[str, FloatArray | BoolArray], threshold: float
    ) -> tuple[BoolArray, BoolArray]:
        """Rows that are answered at a threshold, and right."""
        answered = ~drawn["refused"] & (self.called_from * drawn["s"] <= threshold)
        covered = drawn["counted"] & (drawn["s"] <= threshold)
        return answered, answered & covered & (drawn["vote"] < self.right(threshold))


def critical_of(drawn: dict[str, FloatArray | BoolArray]) -> FloatArray:
    """s_i; NaN where a row does not count."""
    return np.where(drawn["counted"], np.where(drawn["refused"], np.inf, drawn["s"]), np.nan)


def threshold_of(critical: FloatArray) -> tuple[float, int]:
    """The served threshold of these rows, and its misses."""
    ascending = np.sort(critical[~np.isnan(critical)])
    misses = allowed_misses(ascending.size, ALPHA)
    return float(ascending[ascending.size - 1 - misses]), misses


def served(
    world: World, drawn: dict[str, FloatArray | BoolArray], delta: float = DELTA
) -> tuple[AnswerRisk, float]:
    """The bound of these rows, and the threshold that they serve."""
    critical = critical_of(drawn)
    threshold, misses = threshold_of(critical)
    answered, right = world.judged(drawn, threshold)
    risk = served_answer_risk(
        critical,
        misses,
        eligible=~np.asarray(drawn["refused"], bool),
        answered=answered,
        right=right,
        may_be_empty=world.called_from > 0.0,
        delta=delta,
    )
    return risk, threshold


def memorising(threshold: float) -> float:
    """The vote that makes Clopper-Pearson on 400 rows' own answers fail most often."""
    places, best = worst_rates(400)
    return float(np.interp(threshold, places, best))


@cache
def worst_rates(n: int) -> tuple[FloatArray, FloatArray]:
    """Places p of the threshold, and the worst rate of right answers at each.

    At that rate n rows, k - 1 of them below p, most often look better than the bound allows.
    """
    k = n - allowed_misses(n, ALPHA)
    lower = np.append(0.0, stats.beta.ppf(DELTA, np.arange(1, n + 1), n - np.arange(n)))
    rates = np.linspace(0.01, 1.0, 100)
    places = np.linspace(0.7, 1.0, 61)
    fewest = np.searchsorted(lower, places[:, None] * rates, side="right")
    fails = stats.binom.sf(fewest - 1, k - 1, rates)
    return places, rates[fails.argmax(axis=1)]


def window(threshold: float) -> float:
    """Nearly every answer is wrong where 400 rows put their threshold, and right beside it."""
    return 0.1 if abs(threshold - 0.9) < 0.008 else 0.95


WORLDS = {
    "distinct": World(right=lambda t: 0.6 + 0.3 * t),
    "hopeless queries, abstention": World(right=lambda _: 0.85, uncounted=0.2, refused=(0.02, 0.5)),
    "ties": World(right=lambda _: 0.9, atoms=4, uncounted=0.1, refused=(0.01, 0.2)),
    "one atom": World(right=lambda _: 0.7, atoms=1),
    "paper, empty sets": World(right=lambda _: 0.8, called_from=1.0),
    "memorising": World(right=memorising),
    "window": World(right=window),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_bound_holds_for_the_served_threshold(name: str) -> None:
    """Below the served rate in at most delta of 400 draws of 400 rows."""
    world, rng, broken = WORLDS[name], np.random.default_rng(len(name)), 0
    for _ in range(400):
        risk, threshold = served(world, world.draw(rng, 400))
        broken += risk.upper < world.rate(threshold)
    assert_at_most(broken, 400, DELTA, FALSE_ALARM)


def upper_by_hand(first: int, then: int, answers: int | None, rows: int, delta: float) -> float:
    """The bound from its three parts, 3/5, 1/5 and 1/5 of delta; no ``answers``: no empty sets."""
    counts = [0]
    while counts[-1] < rows - 1:
        counts.append(min(counts[-1] + max(1, int(1.5 * math.sqrt(counts[-1]))), rows - 1))

    def distance(part: float) -> float:
        return math.sqrt(math.log(1.0 / part) / (2.0 * rows))

    band, others = 1.0, rows - first
    if others < rows:
        count = next(each for each in counts if each >= others)
        beta = stats.beta.isf(0.3 * delta / len(counts), count + 1, rows - count)
        band = min(beta, others / rows + distance(0.3 * delta))
    right = 1.0 - band + max(0.0, then / rows - distance(0.2 * delta))
    empty = 0.0 if answers is None else max(0.0, 1.0 - answers / rows - distance(0.2 * delta))
    return min(max(1.0 - right / (1.0 - empty), 0.0), 1.0)


@pytest.mark.parametrize("name", WORLDS)
def test_the_bound_is_the_sum_of_its_parts(name: str) -> None:
    """Rows in order, right ones first among ties; 30 draws of 5 to 3,000 rows, delta 0.01 to 0.5.

    An equality: nothing is left to chance.
    """
    world, rng = WORLDS[name], np.random.default_rng(len(name))
    for rows in np.geomspace(5, 3_000, 30).astype(int).tolist():
        drawn, delta = world.draw(rng, rows), float(rng.uniform(0.01, 0.5))
        critical = critical_of(drawn)
        counted = int(np.count_nonzero(~np.isnan(critical)))
        if not counted or allowed_misses(counted, ALPHA) < 0:
            continue
        threshold, misses = threshold_of(critical)
        answered, right = world.judged(drawn, threshold)
        if not answered.any():
            continue
        order = sorted(
            (value, not is_right)
            for value, is_right in zip(critical.tolist(), right.tolist(), strict=True)
            if not math.isnan(value)
        )
        place = counted - misses - 1
        first = sum(not is_wrong for _, is_wrong in order[:place])
        then = sum(value == threshold and not is_wrong for value, is_wrong in order[place + 1 :])
        answers = int(answered.sum()) if world.called_from > 0.0 else None
        eligible = int(np.count_nonzero(~np.asarray(drawn["refused"], bool)))
        expected = upper_by_hand(first, then, answers, eligible, delta)
        assert served(world, drawn, delta)[0].upper == pytest.approx(expected, abs=1e-12)


def test_the_first_band_fails_exactly_as_often_as_its_law_says() -> None:
    """One rate at every threshold: the right rows before it are Bin(30, 0.4555), whatever it is.

    3,000 draws, delta 0.5: 0.038 of them fail, two-sided, with a false alarm of 1e-6; at twice
    this delta 0.080 would. The threshold is below 0.4555 with probability below 1e-6.
    """
    rows, right, delta, runs = 30, 0.4555, 0.5, 3_000
    world, rng = World(right=lambda t: min(right / t, 1.0)), np.random.default_rng(6)
    fails = [upper_by_hand(count, 0, None, rows, delta) < 1.0 - right for count in range(rows + 1)]
    chance = stats.binom.pmf(np.arange(rows + 1), rows, right)[fails].sum()
    broken = 0
    for _ in range(runs):
        risk, threshold = served(world, world.draw(rng, rows), delta)
        broken += risk.upper < world.rate(threshold)
    assert_binomial(broken, runs, p=chance, false_alarm=FALSE_ALARM)


def test_a_whole_pool_needs_no_band() -> None:
    """An infeasible alpha calls the whole pool whatever the rows: Clopper-Pearson is exact."""
    yes = np.ones(20, bool)
    risk = served_answer_risk(
        np.zeros(20), -1, eligible=yes, answered=yes, right=np.arange(20) >= 4, may_be_empty=False
    )
    assert (risk.errors, risk.answered, risk.rate) == (4, 20, 0.2)
    assert risk.upper == clopper_pearson_upper(4, 20)


def test_a_calibration_counts_at_its_own_threshold() -> None:
    """Rows whose set is empty are not answered; rows that decide to call the pool bound nothing."""
    rng = np.random.default_rng(8)
    scores = rng.random((200, 3))
    labels = rng.random((200, 3)) < scores
    calibration = calibration_of(scores, labels, score=Score.PROB, alpha=0.2)
    assert isinstance(calibration, Calibration)
    sets = calibration.sets(scores, calibration.fingerprints, calibration.lambda_hat(), Score.PROB)
    called = sets.selected.any(axis=1)
    right = (sets.selected & labels).any(axis=1)
    recorded = np.arange(200) % 4 > 0
    risk = calibration.answer_risk(called, right, recorded)
    assert risk is not None
    assert risk.answered == (called & recorded).sum()
    assert risk.errors == (called & ~right & recorded).sum()
    assert risk.rate < risk.upper < 1.0
    missing = np.arange(200) < 60
    partly = calibration_of(
        scores, labels & ~missing[:, None], score=Score.PROB, alpha=0.2, unlabelled=missing
    )
    assert partly.answer_risk(called, right, recorded) is None
