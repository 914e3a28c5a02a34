"""Shadow sampling: sampled queries, bounds from their labels, and bounds from feedback alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.shadow import (
    RIGHT,
    UNKNOWN,
    WRONG,
    drawn_turns,
    estimate_risk,
    feedback_bounds,
    hajek,
    horvitz_thompson,
    is_sampled,
)
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from racer_core.errors import InputError
from racer_core.types import BINARY_TARGETS, FloatArray, RiskTarget
from tests.core.laws import assert_at_most, assert_binomial
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
KEY = b"a secret"
NAN = math.nan


# --- which decisions ----------------------------------------------------------------------------


def ids(count):
    """Distinct decision ids."""
    return [f"decision {i}".encode() for i in range(count)]


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_the_share_sampled_is_the_rate(rate):
    """Binomial over 20,000 decisions, false alarm 1e-6."""
    sampled = sum(is_sampled(KEY, decision, rate) for decision in ids(20_000))
    assert_binomial(sampled, 20_000, rate, FALSE_ALARM)


def test_replicas_agree_and_keys_do_not():
    """Same key and decision: same choice; another key chooses independently."""
    first = [is_sampled(KEY, decision, 0.5) for decision in ids(2_000)]
    assert first == [is_sampled(KEY, decision, 0.5) for decision in ids(2_000)]
    other = [is_sampled(b"another", decision, 0.5) for decision in ids(2_000)]
    assert_binomial(int(np.sum(np.array(first) == other)), 2_000, 0.5, FALSE_ALARM)


def test_samples_are_nested_in_the_rate():
    """A higher rate samples a superset; 0 samples none, 1 all; a NaN would silently sample none."""
    samples = [
        {decision for decision in ids(500) if is_sampled(KEY, decision, rate)}
        for rate in (0.0, 0.1, 0.4, 1.0)
    ]
    assert all(small <= large for small, large in itertools.pairwise(samples))
    assert (len(samples[0]), len(samples[-1])) == (0, 500)
    for rate in (-0.1, 1.1, NAN):
        with pytest.raises(InputError, match="shadow_rate"):
            is_sampled(KEY, b"decision", rate)
    with pytest.raises(InputError, match="key"):
        is_sampled(b"", b"decision", 0.5)


# --- estimates ----------------------------------------------------------------------------------

LOSSES = np.array([1.0, 0.0, 1.0, 0.3, 0.0])
RATES = np.array([0.9, 0.2, 0.5, 0.7, 0.1])


def mean_over_samples(estimate):
    """The exact mean of an estimate over all samples of the five decisions."""
    total = 0.0
    for choice in itertools.product((False, True), repeat=len(LOSSES)):
        taken = np.array(choice)
        chance = np.prod(np.where(taken, RATES, 1.0 - RATES))
        total += chance * estimate(LOSSES[taken], RATES[taken])
    return total


def test_horvitz_thompson_is_unbiased():
    """Summed over all 32 samples; the sampled mean, unweighted, is off by more than a tenth."""
    unbiased = mean_over_samples(lambda losses, rates: horvitz_thompson(losses, rates, 5))
    assert unbiased == pytest.approx(LOSSES.mean(), abs=1e-12)
    plain = mean_over_samples(lambda losses, rates: losses.mean() if losses.size else 0.0)
    assert abs(plain - LOSSES.mean()) > 0.1


def test_hajek_is_the_mean_at_one_rate_and_never_leaves_the_range():
    """Horvitz-Thompson can say more than 1."""
    assert hajek(LOSSES, np.full(5, 0.1)) == pytest.approx(LOSSES.mean())
    lucky = np.ones(3), np.full(3, 0.1)
    assert horvitz_thompson(*lucky, decisions=10) > 1.0
    assert hajek(*lucky) == pytest.approx(1.0)


@pytest.mark.parametrize(("errors", "n"), [(0, 1), (1, 1), (0, 40), (7, 40), (40, 40)])
def test_one_rate_gives_clopper_pearson(errors, n):
    """The exact two-sided interval, as scipy has it; how many were not sampled does not matter."""
    losses = np.repeat([1.0, 0.0], [errors, n - errors])
    estimate = estimate_risk(losses, np.full(n, 0.05), decisions=10_000, delta=0.1)
    oracle = stats.binomtest(errors, n).proportion_ci(0.9, method="exact")
    assert (estimate.lower, estimate.upper) == pytest.approx(oracle, abs=1e-12)
    assert estimate.risk == errors / n
    assert (estimate.method, estimate.sampled) == ("clopper_pearson", n)


@pytest.mark.parametrize("fractional", [False, True])
def test_other_samples_get_an_interval_that_holds(fractional):
    """Rates that follow the loss, or losses between 0 and 1: delta = 0.2, 400 runs."""
    rng, runs, missed, widths = np.random.default_rng(71), 400, 0, []
    for _ in range(runs):
        wrong = rng.random(3_000) < 0.2
        losses = np.where(wrong, 1.0, 0.0) if not fractional else 0.4 * rng.random(3_000)
        rates = np.where(wrong, 0.8, 0.2) if not fractional else np.full(3_000, 0.3)
        taken = rng.random(3_000) < rates
        estimate = estimate_risk(losses[taken], rates[taken], 3_000, delta=0.2)
        assert estimate.method == "empirical_bernstein"
        assert estimate.lower <= estimate.risk <= estimate.upper
        missed += not estimate.lower <= 0.2 <= estimate.upper
        widths.append(estimate.upper - estimate.lower)
    assert_at_most(missed, runs, 0.2, FALSE_ALARM)
    assert max(widths) < 0.15


@pytest.mark.parametrize(
    ("losses", "rates", "decisions"),
    [
        ([NAN], [0.5], 10), ([1.5], [0.5], 10), ([0.5], [NAN], 10), ([0.5], [0.0], 10),
        ([0.5], [1.5], 10), ([0.5], [0.5, 0.5], 10), ([0.0, 1.0], [0.5, 0.5], 1),
    ],
)  # fmt: skip
def test_samples_that_cannot_be_are_refused(losses, rates, decisions):
    """A NaN would become the estimate; no sample at all bounds nothing, and is no number."""
    with pytest.raises(InputError):
        estimate_risk(np.array(losses), np.array(rates), decisions)
    estimate = estimate_risk(np.empty(0), np.empty(0), decisions=100)
    assert math.isnan(estimate.risk)
    assert (estimate.lower, estimate.upper, estimate.sampled) == (0.0, 1.0, 0)


# --- feedback -----------------------------------------------------------------------------------


def bounds(verdicts, selected, null=False, target=RiskTarget.ANSWERABLE, r=1):
    """Bounds for one decision."""
    found = feedback_bounds(
        np.array([verdicts], dtype=np.int8), np.array([selected]), np.array([null]), target, r
    )
    return found.lower, found.upper


PAPER, ANSWERABLE = RiskTarget.PAPER, RiskTarget.ANSWERABLE


def completions(verdicts):
    """Every way to fill in the unknown verdicts, as labels (n, K)."""
    for values in itertools.product((False, True), repeat=int((verdicts == UNKNOWN).sum())):
        labels = verdicts == RIGHT
        labels[verdicts == UNKNOWN] = values
        yield labels


def risk_of(labels, selected, null, target, r):
    """The definition of both risks; None when no row counts."""
    hits, right = (labels & selected).sum(axis=1), labels.sum(axis=1)
    missed = np.where(right > 0, hits < np.minimum(r, right), ~null)
    counted = np.ones(len(labels), bool) if target is RiskTarget.PAPER else right > 0
    return float(missed[counted].mean()) if counted.any() else None


@given(
    verdicts=st.lists(
        st.tuples(*[st.sampled_from([RIGHT, WRONG, UNKNOWN])] * 3), min_size=1, max_size=3
    ),
    bits=st.integers(0, 2**12 - 1),
    target=st.sampled_from(BINARY_TARGETS),
    r=st.integers(1, 3),
)
def test_bounds_are_the_extremes_over_all_truths(verdicts, bits, target, r):
    """By trying every way to fill in what is unknown: neither wider nor narrower."""
    known = np.array(verdicts, dtype=np.int8)
    flags = np.array([bool(bits >> i & 1) for i in range(4 * len(known))]).reshape(-1, 4)
    selected, null = flags[:, :3], flags[:, 3]
    risks = [risk_of(labels, selected, null, target, r) for labels in completions(known)]
    possible = [x for risk in risks for x in ([0.0, 1.0] if risk is None else [risk])]
    found = feedback_bounds(known, selected, null, target, r)
    assert (found.lower, found.upper) == pytest.approx((min(possible), max(possible)), abs=1e-12)
    assert found.decisions == len(known)


@pytest.mark.parametrize(
    ("verdicts", "selected", "null", "r"),
    [
        ([[2, 0]], [[True, False]], [False], 1),
        ([[1, 0]], [[True]], [False], 1),
        ([[1, 0]], [[True, False]], [False, True], 1),
        ([[1, 0]], [[True, False]], [False], 0),
    ],
)
def test_feedback_that_does_not_fit_is_refused(verdicts, selected, null, r):
    """Shapes, verdicts and r."""
    with pytest.raises(InputError):
        feedback_bounds(
            np.array(verdicts, np.int8), np.array(selected), np.array(null), ANSWERABLE, r
        )


# --- refusals belong to the sample --------------------------------------------------------------

TAU = 0.45  # of these queries every fifth is refused


def queries(rng, count, *, hopeless_right):
    """Scores and labels; those that will be refused are right with this chance, others by f."""
    scores = rng.beta(2.0, 2.0, (count, 3))
    hopeless = 1.0 - scores.max(axis=1) >= TAU
    chances = np.where(hopeless[:, None], hopeless_right, scores)
    return scores, rng.random(scores.shape) < chances


def calibrated(rng, *, hopeless_right):
    """A calibration that refuses, on 600 rows at alpha 0.2."""
    scores, labels = queries(rng, 600, hopeless_right=hopeless_right)
    return Calibration(
        pool=("a", "b", "c"),
        fingerprints=tuple(b"%d" % number for number in range(600)),
        scores=scores,
        labels=labels,
        options=CalibrationOptions(alpha=0.2, null_threshold=TAU),
    )


def judged(calibration, scores, labels):
    """The losses of the answerable queries, and which of these were refused."""
    options = calibration.options
    threshold = calibration.lambda_hat(options.alpha, options.score)
    sets = calibration.sets(scores, [b""] * len(scores), threshold, options.score)
    counts = labels.any(axis=1)
    misses = ~(labels & sets.selected).any(axis=1)
    return misses[counts].astype(float), ~sets.selected.any(axis=1)[counts]


def test_the_sample_holds_the_risk_only_with_refusals_in_it():
    """Truth from 200,000 queries; the interval of 5,000 misses it with probability 1e-6.

    Negative control: without the refused, whose refusals are misses, it lies below the truth.
    """
    rng = np.random.default_rng(71)
    calibration = calibrated(rng, hopeless_right=0.1)
    truth = judged(calibration, *queries(rng, 200_000, hopeless_right=0.1))[0].mean()
    losses, refused = judged(calibration, *queries(rng, 5_000, hopeless_right=0.1))

    def interval(of):
        return estimate_risk(of, np.ones(of.size), of.size, delta=FALSE_ALARM)

    whole, called = interval(losses), interval(losses[~refused])
    assert whole.lower <= truth <= whole.upper
    assert called.upper < truth


TURN_KEY = b"a key of the tests"

ALPHA = 0.1

ROWS = 19

TRIALS = 400

LONG = 15  # later turns of a long conversation

RATE = 1 / 16


def test_each_of_the_first_turns_is_drawn_at_its_rate() -> None:
    """Of 1 / 0.15 turns the first four are, and later ones never. False alarm below 1e-6."""
    low, high = stats.binom.interval(1.0 - 1e-7, 2_000, 0.15)
    assert drawn_turns(0.15) == 4
    for turn in (0, 1, 2, 3, 4, 300, 2**60):
        drawn = sum(is_sampled(TURN_KEY, b"c%d" % each, 0.15, turn) for each in range(2_000))
        assert (low <= drawn <= high) if turn < 4 else drawn == 0


@pytest.mark.parametrize("turns", [1, 2, 8, 32])
def test_of_as_many_turns_as_the_rate_allows_one_is_drawn(turns: int) -> None:
    """Exactly one at the rate 1 / turns, a power of two; a lower rate draws a part of them."""
    for each in range(200):
        name = b"conversation %d" % each
        drawn = {turn for turn in range(turns) if is_sampled(TURN_KEY, name, 1 / turns, turn)}
        assert len(drawn) == 1
        assert {t for t in range(turns) if is_sampled(TURN_KEY, name, 0.7 / turns, t)} <= drawn


def traffic(rng: np.random.Generator, conversations: int) -> tuple[FloatArray, FloatArray]:
    """The critical scores of all requests, and their conversations; half of them are long.

    The score is that of the conversation, larger if the turn is late, or the conversation long.
    """
    length = np.where(rng.random(conversations) < 0.5, LONG, 1)
    names = np.repeat(np.arange(conversations), length)
    turn = np.concatenate([np.arange(1, 1 + each) for each in length])
    return rng.random(conversations)[names] + 0.01 * turn + 0.3 * (length[names] > 1), names


def test_rows_drawn_by_their_conversation_have_the_exact_law_of_a_random_request() -> None:
    """How often a threshold's risk is above the 95 % point of independent rows. False alarm 1e-6.

    Half of the conversations are long, and as hard as a whole.
    """
    rng, found = np.random.default_rng(1), 0
    requests = np.sort(traffic(rng, 20_000)[0])
    misses = allowed_misses(ROWS, ALPHA, None)
    largest = stats.beta.ppf(0.95, misses + 1, ROWS - misses)
    for trial in range(TRIALS):
        scores, names = traffic(rng, 110)
        turns = np.arange(len(names)) - np.searchsorted(names, names) + 1
        rows = [
            score
            for score, name, turn in zip(scores, names, turns.tolist(), strict=True)
            if is_sampled(TURN_KEY, b"%d %d" % (trial, name), RATE, turn)
        ][:ROWS]
        assert len(rows) == ROWS
        limit = threshold_from_sorted(np.sort(rows), misses)
        found += 1.0 - np.searchsorted(requests, limit, "right") / len(requests) > largest
    low, high = stats.binom.interval(1.0 - 1e-6, TRIALS, 0.05)
    assert low <= found <= high
