"""Alarms read after every query: fair bets, stated false alarms, detection, restarts.

Simulations have fixed seeds and a false-alarm probability of 1e-6 each; what can be enumerated is.
"""

import itertools
import json
import math

import numpy as np
import pytest

from racer_core.calibration.martingales import (
    EPSILONS,
    JUMP,
    ExchangeabilityMartingale,
    ProjectionMartingale,
    UpwardMartingale,
    smoothed_p_value,
)
from racer_core.calibration.monitoring import DriftState, split_false_alarm
from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.wager import Wager
from racer_core.errors import CalibrationError, InputError
from tests.core.laws import assert_at_most
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
NAN = math.nan


def martingale(calibration, *, level=0.05, cap=10_000, seed=0):
    """A monitor on these calibration values."""
    rng = np.random.default_rng(seed)
    return ExchangeabilityMartingale(
        np.array(calibration, dtype=np.float64), level=level, rng=rng, cap=cap
    )


def feed(monitor, values, rng):
    """Updates until the alarm, or None."""
    draws = rng.random((len(values), 2)).tolist()
    for count, (value, (tie, evict)) in enumerate(zip(values, draws, strict=True), start=1):
        monitor.update(float(value), tie, evict)
        if monitor.alarmed:
            return count
    return None


def judge(monitor, losses):
    """Updates until the alarm, or None."""
    for count, loss in enumerate(losses, start=1):
        monitor.update(float(loss))
        if monitor.alarmed:
            return count
    return None


# --- p-values and the martingale ----------------------------------------------------------------


@pytest.mark.parametrize("values", [[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 1, 2], [5]])
def test_smoothed_p_value_is_uniform_whichever_value_is_newest(values):
    """Averaged over the newest of the values, P(p <= x) = x; leaving out ties or itself fails."""
    draws = (np.arange(1_000) + 0.5) / 1_000
    p = [
        smoothed_p_value(sorted(values[:i] + values[i + 1 :]), values[i], draw)
        for i in range(len(values))
        for draw in draws
    ]
    for x in (0.1, 0.25, 0.5, 0.9):
        assert np.mean(np.array(p) <= x) == pytest.approx(x, abs=1e-3)


def expected_capital(values, first, cap, evict):
    """Mean capital over every order of the values and every eviction, by enumeration.

    The capital is linear in each tie draw, and these are independent: 1/2 for all of them is the
    exact mean over them. ``evict`` lists the evictions possible after an update, as draws.
    """
    total, weight = 0.0, 0.0
    for order in itertools.permutations(values):
        paths = [(martingale(order[:first], cap=cap), 1.0)]
        for value in order[first:]:
            paths = [
                (step(monitor, value, draw), mass * share)
                for monitor, mass in paths
                for draw, share in evict(monitor, value)
            ]
        total += sum(mass * monitor.e_value for monitor, mass in paths)
        weight += sum(mass for _, mass in paths)
    return total / weight


def step(monitor, value, draw):
    """A copy of the monitor, one update later."""
    copy = ExchangeabilityMartingale.from_state(monitor.to_state())
    copy.update(value, 0.5, draw)
    return copy


def evict_any(monitor, value):
    """Each value of a full bag leaves with the same probability, the newest too."""
    size = len(monitor.bag) + 1
    if size <= monitor.cap:
        return [(0.0, 1.0)]
    return [((k + 0.5) / size, 1.0 / size) for k in range(size)]


def evict_newest(monitor, value):
    """The bag never changes."""
    return [((np.searchsorted(monitor.bag, value) + 0.5) / (monitor.cap + 1), 1.0)]


@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5), (0, 0, 1, 1, 2), (7, 7, 7, 7, 7)])
@pytest.mark.parametrize(("first", "cap"), [(2, 2), (1, 2), (3, 10), (0, 10)])
def test_capital_has_mean_one_in_every_order(values, first, cap):
    """The martingale property, exactly, ties and evictions included: 1 to 1e-12."""
    assert expected_capital(values, first, cap, evict_any) == pytest.approx(1.0, abs=1e-12)


def test_a_fixed_bag_would_not_be_fair():
    """Negative control: p-values against the same two values share its accidents; mean above 1."""
    assert expected_capital((1, 2, 3, 4, 5), 2, 2, evict_newest) > 1.0 + 1e-3


def test_unchanged_queries_alarm_no_more_often_than_stated():
    """Level 0.2 over 1,500 queries, a bag of 50 that is replaced 30 times; Ville's inequality."""
    rng, runs = np.random.default_rng(31), 300
    alarms = sum(
        feed(
            martingale(rng.standard_normal(50), level=0.2, cap=50), rng.standard_normal(1_500), rng
        )
        is not None
        for _ in range(runs)
    )
    assert_at_most(alarms, runs, 0.2, FALSE_ALARM)


def test_betting_on_a_fixed_bag_alarms_without_cause():
    """Negative control for the test above: the same bets against 50 values that never change."""
    rng, runs, alarms = np.random.default_rng(32), 60, 0
    for _ in range(runs):
        bag, wager = sorted(rng.standard_normal(50).tolist()), Wager(len(EPSILONS), JUMP)
        for value, draw in zip(rng.standard_normal(1_500), rng.random(1_500), strict=True):
            p = smoothed_p_value(bag, value, draw)
            wager.settle([1.0 + epsilon * (p - 0.5) for epsilon in EPSILONS])
        alarms += wager.log_peak >= -math.log(0.2)
    assert alarms > stats.binom.isf(FALSE_ALARM, runs, 0.2)


@pytest.mark.parametrize("before", [0, 2_000])
@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_new_kinds_of_queries_are_seen_soon(before, shift):
    """A shift by one standard deviation, early or late, up or down: median delay 22 or 60 queries.

    200 is generous; a stream without restarts needs several times that after 2,000 quiet queries.
    """
    rng, delays = np.random.default_rng(33), []
    for _ in range(15):
        values = rng.standard_normal(before + 400)
        values[before:] += shift
        alarm = feed(martingale(rng.standard_normal(1_000)), values, rng)
        delays.append(math.inf if alarm is None else alarm - before)
    assert 0 < np.median(delays) < 200


def test_the_first_query_is_compared_with_calibration():
    """A value above all 99 calibration rows has p <= 1/100 at once."""
    monitor = martingale(range(99))
    assert monitor.update(1e6, 0.999, 0.0) <= 0.01
    assert martingale(range(99)).update(-1e6, 0.0, 0.0) == 0.99


def test_memory_is_bounded():
    """Neither many rows nor many queries make the bag larger than its cap; it stays sorted."""
    rng = np.random.default_rng(34)
    monitor = martingale(rng.random(500), cap=100)
    assert len(monitor.bag) == 100
    feed(monitor, rng.random(300), rng)
    assert len(monitor.bag) == 100
    assert monitor.bag == sorted(monitor.bag)


@pytest.mark.parametrize(
    ("value", "tie", "evict"),
    [(NAN, 0.5, 0.5), (math.inf, 0.5, 0.5), (0.5, 1.0, 0.5), (0.5, 0.5, -0.1), (0.5, NAN, 0.5)],
)
def test_values_that_are_not_finite_are_refused_without_a_change(value, tie, evict):
    """A NaN would sort anywhere; a draw of 1 would evict past the end."""
    monitor = martingale([0.1, 0.2])
    before = monitor.to_state()
    with pytest.raises(InputError):
        monitor.update(value, tie, evict)
    assert monitor.to_state() == before


def test_calibration_values_must_be_finite():
    """One NaN in the bag would spoil every search in it."""
    with pytest.raises(InputError, match="finite"):
        martingale([0.1, NAN])


# --- the wager's arithmetic ---------------------------------------------------------------------


def test_capital_neither_overflows_nor_vanishes():
    """10,000 doublings are 2**10,000; then 200,000 halvings bring it back to what is kept back."""
    wager = Wager(2)
    for _ in range(10_000):
        wager.settle([2.0, 1.0])
    # Half of what was released in the first round (0.41) has doubled every time, and so on.
    assert wager.log_value == pytest.approx(10_000 * math.log(2.0), abs=2.0)
    peak = wager.log_peak
    for _ in range(200_000):
        wager.settle([0.5, 0.5])
    assert wager.log_value == pytest.approx(-math.log1p(math.log1p(210_000)), abs=1e-4)
    assert wager.log_peak == peak


def test_fair_coins_leave_the_expected_capital_at_one():
    """Every path of eight fair rounds, with restarts and jumps: the mean is 1 to 1e-12."""
    total = 0.0
    for path in itertools.product((0.5, 1.5), repeat=8):
        wager = Wager(3, jump=0.2)
        for factor in path:
            wager.settle([factor, 2.0 - factor, 1.0])
        total += math.exp(wager.log_value)
    assert total / 2**8 == pytest.approx(1.0, abs=1e-12)


# --- the risk e-process -------------------------------------------------------------------------


def expected_risk_capital(risk, rho, rounds=8):
    """Mean capital over every sequence of losses of 0 and 1."""
    total = 0.0
    for losses in itertools.product((0, 1), repeat=rounds):
        monitor = RiskEProcess(rho, level=0.05)
        judge(monitor, losses)
        total += risk ** sum(losses) * (1.0 - risk) ** (rounds - sum(losses)) * monitor.e_value
    return total


@pytest.mark.parametrize("rho", [0.01, 0.116, 0.5, 0.97])
def test_capital_at_the_boundary_has_mean_one(rho):
    """Exactly, by enumeration; below the boundary it loses, above it gains."""
    assert expected_risk_capital(rho, rho) == pytest.approx(1.0, abs=1e-12)
    assert expected_risk_capital(rho * 0.8, rho) < 1.0
    assert expected_risk_capital(1.0 - (1.0 - rho) * 0.8, rho) > 1.0


def expected_weighted_capital(rates, losses, rho, weigh):
    """Mean capital over which queries came and which of them were sampled.

    Each round one of the kinds comes, all equally likely, with its own loss and sampling rate.
    """
    largest = 1.0 / min(rates)
    kinds = zip(rates, losses, strict=True)
    events = [(rate / len(rates), loss, rate) for rate, loss in kinds]
    events.append((1.0 - sum(mass for mass, _, _ in events), None, 1.0))
    total = 0.0
    for path in itertools.product(events, repeat=5):
        monitor = RiskEProcess(rho, level=0.05, max_weight=largest)
        for _, loss, rate in path:
            if loss is not None:
                monitor.update(loss, 1.0 / rate if weigh else 1.0)
        total += math.prod(mass for mass, _, _ in path) * monitor.e_value
    return total


def test_weights_undo_unequal_sampling():
    """Hard queries sampled at 0.8, easy ones at 0.2, mean loss rho: weighted, the mean is 1.

    Unweighted, the hard ones count four times and the mean is above 1: false alarms.
    """
    rates, losses = (0.8, 0.2, 0.2), (0.9, 0.0, 0.3)
    assert expected_weighted_capital(rates, losses, 0.4, weigh=True) == pytest.approx(1, abs=1e-12)
    assert expected_weighted_capital(rates, losses, 0.4, weigh=False) > 1.01


def test_risk_at_the_boundary_alarms_no_more_often_than_stated():
    """Level 0.2 over 2,000 losses at mean rho; looked at after each."""
    rng, runs = np.random.default_rng(41), 300
    alarms = sum(
        judge(RiskEProcess(0.1, level=0.2), rng.random(2_000) < 0.1) is not None
        for _ in range(runs)
    )
    assert_at_most(alarms, runs, 0.2, FALSE_ALARM)


def alarms_after_calibrating(build, runs, seed):
    """Alarms over calibration sets of n = 99 at alpha = 0.1 and 3,000 losses without any drift."""
    rng = np.random.default_rng(seed)
    risks = rng.beta(10, 90, runs)  # the exact law of the realised risk at 9 misses
    return sum(judge(build(), rng.random(3_000) < risk) is not None for risk in risks)


def distinct(n, misses):
    """The risk of the threshold that leaves this number of n distinct scores above it."""
    return RealisedRisk(n=n, misses=misses, missed=misses, tied=1)


def promised():
    """Watch what 9 misses of 99 promise; the 95 % point fails for the other 0.05."""
    return RiskEProcess.for_calibration(distinct(99, 9), level=0.15)


def naive():
    """Watch alpha as if every calibrated threshold kept it."""
    return RiskEProcess(0.1, level=0.2)


def test_calibration_luck_is_part_of_the_false_alarm():
    """Over calibration sets and losses together the alarm is false with probability <= delta."""
    assert_at_most(alarms_after_calibrating(promised, 200, 42), 200, 0.2, FALSE_ALARM)


def test_watching_alpha_itself_alarms_without_drift():
    """Negative control: half of all calibrated thresholds exceed alpha; the watch finds them."""
    alarms = alarms_after_calibrating(naive, 200, 42)
    assert alarms > stats.binom.isf(FALSE_ALARM, 200, 0.2)


def test_rho_is_the_beta_point_of_the_calibration():
    """For n = 1,000 and 99 misses the 95 % point; far less where nearly all rows tie."""
    monitor = RiskEProcess.for_calibration(distinct(1_000, 99), level=0.025)
    assert monitor.rho == pytest.approx(stats.beta.ppf(0.95, 100, 901), abs=1e-12)
    assert monitor.level == monitor.false_alarm == 0.025
    tied = RealisedRisk(n=1_000, misses=99, missed=25, tied=975)
    assert RiskEProcess.for_calibration(tied, level=0.025).rho == tied.upper() < 0.052


def test_the_alarm_comes_within_the_stated_number_of_losses():
    """95 % of 400 changes after 50 quiet losses; false alarm 1e-6. Half as many miss it often."""
    rng, runs = np.random.default_rng(43), 400
    monitor = RiskEProcess(0.08, level=0.005)
    judge(monitor, [0.0] * 50)
    state, stated = monitor.to_state(), monitor.alarm_within(0.5)
    assert stated == 44

    def raised(within):
        losses = rng.random((runs, within)) < 0.5
        return sum(judge(RiskEProcess.from_state(state), each) is not None for each in losses)

    assert raised(stated) >= stats.binom.ppf(FALSE_ALARM, runs, 0.95)
    assert raised(stated // 2) < stats.binom.ppf(FALSE_ALARM, runs, 0.95)


def test_the_stated_number_of_losses_is_enough_in_any_order():
    """Nearly all losses are 1: certain. A rate of at most rho may raise none."""
    monitor = RiskEProcess(0.08, level=0.005)
    count = monitor.alarm_within(0.999)
    assert judge(monitor, [1.0] * count) is not None
    assert (monitor.alarm_within(0.5), RiskEProcess(0.5, level=0.1).alarm_within(0.5)) == (0, None)


def test_without_a_finite_threshold_there_is_no_risk_to_watch():
    """The whole pool is called then."""
    with pytest.raises(CalibrationError, match="no finite threshold"):
        RiskEProcess.for_calibration(None, level=0.05)


@pytest.mark.parametrize(("n", "misses"), [(1, 0), (10, 9), (10**6, 0), (10**6, 99_999)])
def test_extreme_calibrations_can_be_watched(n, misses):
    """From rho near 1 to rho near 4e-6: finite bets, and a run of errors raises the alarm."""
    monitor, fresh = (
        RiskEProcess.for_calibration(distinct(n, misses), level=0.025) for _ in range(2)
    )
    assert judge(monitor, itertools.repeat(1.0, 10_000)) is not None
    assert judge(fresh, [0.0] * 1_000) is None


@pytest.mark.parametrize(("before", "bound"), [(0, 100), (5_000, 250)])
def test_worse_answers_are_seen_soon(before, bound):
    """Risk 0.3 instead of 0.1, at once or after 5,000 losses: median delay 25 or 77 losses."""
    rng, delays = np.random.default_rng(44), []
    for _ in range(11):
        risks = np.where(np.arange(before + 2_000) < before, 0.1, 0.3)
        alarm = judge(RiskEProcess(0.1, level=0.05), rng.random(risks.size) < risks)
        delays.append(math.inf if alarm is None else alarm - before)
    assert 0 < np.median(delays) < bound


def test_a_long_good_time_does_not_hide_a_change():
    """After 5,000 losses of 0 twelve errors in a row alarm: money kept back is still there.

    Had all been bet at the start, no bet would be worth more than 0.9961**5000 = 3e-9 of its share.
    """
    monitor = RiskEProcess(0.1, level=0.05)
    assert judge(monitor, [0.0] * 5_000) is None
    assert judge(monitor, [1.0] * 12) is not None


def test_an_alarm_stays():
    """The statement is about ever reaching the level, so a lucky streak does not unsay it."""
    monitor = RiskEProcess(0.1, level=0.05)
    judge(monitor, [1.0] * 20)
    monitor.update(0.0)
    for _ in range(2_000):
        monitor.update(0.0)
    assert monitor.e_value < 1.0
    assert monitor.alarmed


@pytest.mark.parametrize(
    ("loss", "weight"),
    [(NAN, 1.0), (-0.1, 1.0), (1.1, 1.0), (0.5, NAN), (0.5, 0.0), (0.5, -1.0), (0.5, 2.5)],
)
def test_impossible_losses_and_weights_are_refused(loss, weight):
    """A weight above ``max_weight`` could make a factor negative."""
    monitor = RiskEProcess(0.1, level=0.05, max_weight=2.0)
    before = monitor.to_state()
    with pytest.raises(InputError):
        monitor.update(loss, weight)
    assert monitor.to_state() == before


@pytest.mark.parametrize("rho", [0.0, 1.0, NAN, True])
def test_rho_must_be_a_probability_between(rho):
    """At 0 the first error would be infinite evidence, at 1 nothing would be."""
    with pytest.raises(InputError, match="rho"):
        RiskEProcess(rho, level=0.05)


@pytest.mark.parametrize("max_weight", [0.0, -1.0, NAN, math.inf])
def test_largest_weight_must_be_positive(max_weight):
    """It divides every weight."""
    with pytest.raises(InputError, match="max_weight"):
        RiskEProcess(0.1, level=0.05, max_weight=max_weight)


# --- embeddings ---------------------------------------------------------------------------------


def projection(rows, *, level=0.05, cap=10_000):
    """A monitor of vectors."""
    rng = np.random.default_rng(0)
    return ProjectionMartingale(np.asarray(rows), level=level, rng=rng, cap=cap)


def feed_vectors(monitor, vectors, rng):
    """Updates until the alarm, or None."""
    for count, vector in enumerate(vectors.tolist(), start=1):
        monitor.update(vector, rng.random((monitor.dimension, 2)).tolist())
        if monitor.alarmed:
            return count
    return None


def test_unchanged_vectors_alarm_no_more_often_than_stated():
    """Level 0.2 over 400 queries; three coordinates, of which two are the same number."""
    rng, runs, alarms = np.random.default_rng(48), 200, 0
    for _ in range(runs):
        values = rng.standard_normal((450, 2)).round(1)[:, [0, 1, 1]]
        monitor = projection(values[:50], level=0.2, cap=50)
        alarms += feed_vectors(monitor, values[50:], rng) is not None
    assert_at_most(alarms, runs, 0.2, FALSE_ALARM)


@pytest.mark.parametrize("coordinate", [0, 5])
def test_a_shift_of_one_coordinate_of_six_is_seen(coordinate):
    """By one standard deviation, after 1,000 queries like the rows: within 400 queries."""
    rng = np.random.default_rng(49)
    values = rng.standard_normal((2_400, 6))
    values[2_000:, coordinate] -= 1.0
    alarm = feed_vectors(projection(values[:1_000]), values[1_000:], rng)
    assert alarm is not None
    assert 1_000 < alarm < 1_400


@pytest.mark.parametrize("vector", [[0.1], [0.1, NAN], [0.1, 0.2, 0.3]])
def test_an_impossible_vector_is_refused_and_changes_nothing(vector):
    """Every coordinate is checked before the first bag changes."""
    monitor = projection([[0.1, 0.2], [0.3, 0.4]])
    before = json.dumps(monitor.to_state())
    with pytest.raises(InputError, match="projection"):
        monitor.update(vector, [(0.5, 0.5)] * 2)
    assert json.dumps(monitor.to_state()) == before


# --- critical scores of judged queries ----------------------------------------------------------


def upward(calibration, *, tail=0.1, level=0.05, cap=10_000, seed=0):
    """A monitor of larger values."""
    values, rng = np.array(calibration, dtype=np.float64), np.random.default_rng(seed)
    return UpwardMartingale(values, tail=tail, level=level, rng=rng, cap=cap)


@pytest.mark.parametrize("tail", [0.001, 0.05, 0.1, 0.5, 0.97])
def test_every_bet_on_larger_values_is_fair(tail):
    """Each factor has mean 1 over a uniform p, exactly, and none is below 1/4.

    Each is linear on both sides of the tail, so its mean there is its value in the middle.
    """
    monitor = upward([0.0], tail=tail)
    below = np.array(monitor.factors(tail / 2.0))
    above = np.array(monitor.factors((tail + 1.0) / 2.0))
    assert tail * below + (1.0 - tail) * above == pytest.approx(np.ones(below.size), abs=1e-12)
    ends = np.array([monitor.factors(p) for p in (0.0, tail, tail + 1e-12, 1.0)])
    assert ends.min() >= 0.25 - 1e-12


@pytest.mark.parametrize("decimals", [0, 6])
def test_unchanged_critical_scores_alarm_no_more_often_than_stated(decimals):
    """Level 0.2 over 600 judged queries; with values of which most tie, and a bag that evicts."""
    rng, runs = np.random.default_rng(45), 200
    alarms = sum(
        feed(
            upward(rng.standard_normal(50).round(decimals), level=0.2, cap=50),
            rng.standard_normal(600).round(decimals),
            rng,
        )
        is not None
        for _ in range(runs)
    )
    assert_at_most(alarms, runs, 0.2, FALSE_ALARM)


def test_smaller_critical_scores_raise_no_alarm():
    """Queries that became easier miss less: 2,000 of them, one standard deviation lower."""
    rng = np.random.default_rng(46)
    monitor = upward(rng.standard_normal(500), level=0.2)
    assert feed(monitor, rng.standard_normal(2_000) - 1.0, rng) is None


def test_critical_scores_show_a_larger_risk_sooner_than_losses():
    """Risk 0.1 becomes 0.15 with 1,000 rows: the medians are about 300 and 1,350 judged queries.

    All critical scores move, by 0.245 standard deviations: one in ten was above the threshold of
    the rows, and 0.15 are now.
    """
    rng, shift = np.random.default_rng(47), stats.norm.isf(0.1) - stats.norm.isf(0.15)
    delays: dict[str, list[float]] = {"critical": [], "loss": []}
    for _ in range(21):
        rows, values = rng.standard_normal(1_000), rng.standard_normal(800) + shift
        alarms = {
            "critical": feed(upward(rows, level=0.0025), values, rng),
            "loss": judge(
                RiskEProcess.for_calibration(distinct(1_000, 99), level=0.0025),
                values > stats.norm.isf(0.1),
            ),
        }
        for name, alarm in alarms.items():
            delays[name].append(math.inf if alarm is None else alarm)
    assert np.median(delays["critical"]) < 600 < np.median(delays["loss"])


# --- several streams ----------------------------------------------------------------------------


def watch_of(delta=0.06):
    """Three label-free streams, and two of judged queries."""
    shares = split_false_alarm(
        delta, {"score": 0.125, "size": 0.125, "place": 0.125, "critical": 0.125, "risk": 0.5}
    )
    rows = np.random.default_rng(51).random(200)
    return DriftState(
        delta=delta,
        streams={
            "score": martingale(rows, level=shares["score"]),
            "size": martingale(np.round(3 * rows), level=shares["size"], cap=50),
            "place": projection(np.stack([rows, -rows], axis=1), level=shares["place"]),
            "critical": upward(rows, level=shares["critical"]),
            "risk": RiskEProcess.for_calibration(
                distinct(200, 20), level=shares["risk"], max_weight=10.0
            ),
        },
    )


def test_shares_add_up_to_the_stated_false_alarm():
    """The total is delta."""
    watch = watch_of()
    assert sum(stream.false_alarm for stream in watch.streams.values()) == pytest.approx(0.06)
    assert watch.raised == ()
    assert not watch.alarmed


def test_a_watch_names_the_streams_that_raised():
    """The others stay silent."""
    watch = watch_of()
    judge(watch.streams["risk"], [1.0] * 200)
    assert watch.raised == ("risk",)
    assert watch.alarmed


def test_streams_that_alarm_more_often_than_stated_are_refused():
    """Two at 0.05 are not 0.05."""
    streams = {name: RiskEProcess(0.1, level=0.05) for name in ("one", "two")}
    with pytest.raises(InputError, match="split_false_alarm"):
        DriftState(delta=0.05, streams=streams)


@pytest.mark.parametrize(
    "weights", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": NAN, "b": 1.0}, {"a": 1.0, "b": 0.0}]
)
def test_weights_of_streams_must_sum_to_one(weights):
    """More would break the total; less would waste it unseen."""
    with pytest.raises(InputError, match="sum to one"):
        split_false_alarm(0.05, weights)


def test_a_restart_loses_nothing():
    """Through JSON text and back, then the same updates: the same state to the last bit."""
    rng = np.random.default_rng(52)
    uninterrupted = watch_of()
    update(uninterrupted, rng.random((400, 3)))
    restarted = DriftState.from_state(json.loads(json.dumps(uninterrupted.to_state())))
    assert restarted.to_state() == uninterrupted.to_state()
    later = 0.5 + rng.random((400, 3)) / 2.0
    update(uninterrupted, later)
    update(restarted, later)
    assert restarted.to_state() == uninterrupted.to_state()
    assert (
        restarted.raised == uninterrupted.raised == ("score", "size", "place", "critical", "risk")
    )


def update(watch, rows):
    """One query each: a value, and two draws that also make its loss."""
    for value, tie, evict in rows.tolist():
        watch.streams["score"].update(value, tie, evict)
        watch.streams["size"].update(round(3 * value), tie, evict)
        watch.streams["place"].update((value, -value), [(tie, evict), (evict, tie)])
        watch.streams["critical"].update(value, tie, evict)
        watch.streams["risk"].update(float(tie > 0.5), 10.0 * (1.0 - evict))


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state["streams"]["risk"]["wager"]["capital"].pop(),
        lambda state: state["streams"]["risk"]["wager"].update(log_peak=NAN),
        lambda state: state["streams"]["risk"]["wager"].update(rounds=-1),
        lambda state: state["streams"]["size"]["wager"]["capital"].__setitem__(0, -1.0),
        lambda state: state["streams"]["size"].update(bag=[NAN]),
        lambda state: state["streams"]["size"].update(kind="other"),
        lambda state: state["streams"]["size"].pop("cap"),
        lambda state: state["streams"]["risk"].update(wager=None),
        lambda state: state["streams"]["risk"].update(rho="0.1"),
        lambda state: state["streams"]["critical"].update(tail=1.5),
        lambda state: state["streams"]["critical"].pop("tail"),
        lambda state: state["streams"]["place"].update(bags=[[0.1], [0.1, 0.2]]),
        lambda state: state["streams"]["place"].update(bags=[]),
        lambda state: state["streams"]["place"]["bags"].pop(),
        lambda state: state.update(delta=0.01),
    ],
)
def test_a_damaged_state_is_refused(damage):
    """Rather than watched with: evidence that cannot be is no evidence."""
    state = json.loads(json.dumps(watch_of().to_state()))
    damage(state)
    with pytest.raises(InputError):
        DriftState.from_state(state)
