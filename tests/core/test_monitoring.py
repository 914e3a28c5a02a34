"""Alarms read after every query: fair bets, stated false alarms, detection, restarts.

Simulations have fixed seeds and a false-alarm probability of 1e-6 each; what can be enumerated is.
"""

import itertools
import json
import math

import numpy as np
import pytest

from racer_core.calibration.martingales import (
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


def expected_capital(values, first, cap):
    """Mean capital over every order of the values and every eviction, by enumeration.

    The capital is linear in each tie draw, and these are independent: 1/2 for all of them is the
    exact mean over them. Each value of a full bag leaves with the same probability, the newest too.
    """
    total = 0.0
    for order in itertools.permutations(values):
        paths = [(martingale(order[:first], cap=cap), 1.0)]
        for value in order[first:]:
            size = first + 1 if cap == first else 1
            draws = [(k + 0.5) / size for k in range(size)]
            paths = [(step(old, value, draw), mass / size) for old, mass in paths for draw in draws]
        total += sum(mass * monitor.e_value for monitor, mass in paths)
    return total / math.factorial(len(values))


def step(monitor, value, draw):
    """A copy of the monitor, one update later."""
    copy = ExchangeabilityMartingale.from_state(monitor.to_state())
    copy.update(value, 0.5, draw)
    return copy


@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5), (0, 0, 1, 1, 2)])
@pytest.mark.parametrize(("first", "cap"), [(2, 2), (0, 10)])
def test_capital_has_mean_one_in_every_order(values, first, cap):
    """The martingale property, exactly, ties and evictions included: 1 to 1e-12."""
    assert expected_capital(values, first, cap) == pytest.approx(1.0, abs=1e-12)


def test_unchanged_queries_alarm_no_more_often_than_stated():
    """Level 0.2 over 500 queries, a bag of 20 that is replaced 25 times; false alarm 1e-6."""
    rng, runs = np.random.default_rng(31), 80
    fresh = (
        feed(martingale(rng.standard_normal(20), level=0.2, cap=20), rng.standard_normal(500), rng)
        for _ in range(runs)
    )
    assert_at_most(sum(alarm is not None for alarm in fresh), runs, 0.2, FALSE_ALARM)


@pytest.mark.parametrize(("before", "shift"), [(0, 1.0), (2_000, -1.0)])
def test_new_kinds_of_queries_are_seen_soon(before, shift):
    """A shift by one standard deviation, early or late, up or down: median delay 22 or 60 queries.

    200 is generous; a stream without restarts needs several times that after 2,000 quiet queries.
    """
    rng, delays = np.random.default_rng(33), []
    for _ in range(7):
        values = rng.standard_normal(before + 400)
        values[before:] += shift
        alarm = feed(martingale(rng.standard_normal(1_000)), values, rng)
        delays.append(math.inf if alarm is None else alarm - before)
    assert 0 < np.median(delays) < 200


# --- the wager's arithmetic ---------------------------------------------------------------------


def test_capital_neither_overflows_nor_vanishes():
    """10,000 doublings are 2**10,000; then 30,000 halvings bring it back to what is kept back."""
    wager = Wager(2)
    for _ in range(10_000):
        wager.settle([2.0, 1.0])
    # Half of what was released in the first round (0.41) has doubled every time, and so on.
    assert wager.log_value == pytest.approx(10_000 * math.log(2.0), abs=2.0)
    peak = wager.log_peak
    for _ in range(30_000):
        wager.settle([0.5, 0.5])
    assert wager.log_value == pytest.approx(-math.log1p(math.log1p(40_000)), abs=1e-3)
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
    """Level 0.2 over 800 losses, at mean rho, and at the risk of 100 calibrations of 99 rows.

    The latter watch what 9 misses promise at 0.15; the 95 % point fails for the other 0.05.
    """
    rng, runs = np.random.default_rng(41), 100
    alarms = calibrated = 0
    for _ in range(runs):
        alarms += judge(RiskEProcess(0.1, level=0.2), rng.random(800) < 0.1) is not None
        risk = rng.beta(10, 90)  # the exact law of the realised risk at 9 misses
        promised = RiskEProcess.for_calibration(distinct(99, 9), level=0.15)
        calibrated += judge(promised, rng.random(800) < risk) is not None
    assert_at_most(alarms, runs, 0.2, FALSE_ALARM)
    assert_at_most(calibrated, runs, 0.2, FALSE_ALARM)


def distinct(n, misses):
    """The risk of the threshold that leaves this number of n distinct scores above it."""
    return RealisedRisk(n=n, misses=misses, missed=misses, tied=1)


def test_rho_is_the_beta_point_of_the_calibration():
    """For n = 1,000 and 99 misses the 95 % point; far less where nearly all rows tie."""
    monitor = RiskEProcess.for_calibration(distinct(1_000, 99), level=0.025)
    assert monitor.rho == pytest.approx(stats.beta.ppf(0.95, 100, 901), abs=1e-12)
    assert monitor.level == monitor.false_alarm == 0.025
    tied = RealisedRisk(n=1_000, misses=99, missed=25, tied=975)
    assert RiskEProcess.for_calibration(tied, level=0.025).rho == tied.upper() < 0.052


def test_the_alarm_comes_within_the_stated_number_of_losses():
    """95 % of 200 changes after 50 quiet losses; false alarm 1e-6. Half as many miss it often."""
    rng, runs = np.random.default_rng(43), 200
    monitor = RiskEProcess(0.08, level=0.005)
    judge(monitor, [0.0] * 50)
    state, stated = monitor.to_state(), monitor.alarm_within(0.5)
    assert stated == 44

    def raised(within):
        losses = rng.random((runs, within)) < 0.5
        return sum(judge(RiskEProcess.from_state(state), each) is not None for each in losses)

    assert raised(stated) >= stats.binom.ppf(FALSE_ALARM, runs, 0.95)
    assert raised(stated // 2) < stats.binom.ppf(FALSE_ALARM, runs, 0.95)
    certain = monitor.from_state(state)  # a rate of at most rho raises none
    assert judge(certain, [1.0] * certain.alarm_within(0.999)) is not None
    assert (certain.alarm_within(0.5), RiskEProcess(0.5, level=0.1).alarm_within(0.5)) == (0, None)
    for _ in range(1_000):
        certain.update(0.0)
    assert certain.alarmed  # a lucky streak does not unsay it


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


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda: RiskEProcess.for_calibration(None, level=0.05), "no finite threshold"),
        *((lambda rho=rho: RiskEProcess(rho, level=0.05), "rho") for rho in (0.0, 1.0, NAN, True)),
        *(
            (lambda most=most: RiskEProcess(0.1, level=0.05, max_weight=most), "max_weight")
            for most in (0.0, -1.0, NAN, math.inf)
        ),
        (lambda: martingale([0.1, NAN]), "finite"),
        *(
            (lambda weights=weights: split_false_alarm(0.05, weights), "sum to one")
            for weights in ({}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": NAN, "b": 1.0})
        ),
        (
            lambda: DriftState(
                delta=0.05, streams={name: RiskEProcess(0.1, level=0.05) for name in "ab"}
            ),
            "split_false_alarm",
        ),
    ],
)
def test_watches_that_prove_nothing_are_refused(use, named):
    """At rho 0 the first error would be infinite evidence; two streams at 0.05 are not 0.05."""
    with pytest.raises((InputError, CalibrationError), match=named):
        use()


@pytest.mark.parametrize(
    ("made", "arguments"),
    [
        *(
            (lambda: martingale([0.1, 0.2]), values)
            for values in (
                (NAN, 0.5, 0.5), (math.inf, 0.5, 0.5), (0.5, 1.0, 0.5), (0.5, 0.5, -0.1),
                (0.5, NAN, 0.5),
            )
        ),
        *(
            (lambda: RiskEProcess(0.1, level=0.05, max_weight=2.0), values)
            for values in (
                (NAN, 1.0), (-0.1, 1.0), (1.1, 1.0), (0.5, NAN), (0.5, 0.0), (0.5, 2.5),
            )
        ),
        *(
            (lambda: projection([[0.1, 0.2], [0.3, 0.4]]), (vector, [(0.5, 0.5)] * 2))
            for vector in ([0.1], [0.1, NAN], [0.1, 0.2, 0.3])
        ),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_without_a_change(made, arguments):
    """A NaN would sort anywhere, a draw of 1 evict past the end, a factor could be negative."""
    monitor = made()
    before = json.dumps(monitor.to_state())
    with pytest.raises(InputError):
        monitor.update(*arguments)
    assert json.dumps(monitor.to_state()) == before


def test_unchanged_vectors_alarm_no_more_often_than_stated():
    """Level 0.2 over 200 queries; three coordinates, of which two are the same number."""
    rng, runs, alarms = np.random.default_rng(48), 60, 0
    for _ in range(runs):
        values = rng.standard_normal((230, 2)).round(1)[:, [0, 1, 1]]
        monitor = projection(values[:30], level=0.2, cap=30)
        alarms += feed_vectors(monitor, values[30:], rng) is not None
    assert_at_most(alarms, runs, 0.2, FALSE_ALARM)


def test_a_shift_of_one_coordinate_of_six_is_seen():
    """By one standard deviation, after 1,000 queries like the rows: within 400 queries."""
    rng = np.random.default_rng(49)
    values = rng.standard_normal((2_400, 6))
    values[2_000:, 5] -= 1.0
    alarm = feed_vectors(projection(values[:1_000]), values[1_000:], rng)
    assert alarm is not None
    assert 1_000 < alarm < 1_400


# --- critical scores of judged queries ----------------------------------------------------------


def upward(calibration, *, tail=0.1, level=0.05, cap=10_000, seed=0):
    """A monitor of larger values."""
    values, rng = np.array(calibration, dtype=np.float64), np.random.default_rng(seed)
    return UpwardMartingale(values, tail=tail, level=level, rng=rng, cap=cap)


@pytest.mark.parametrize("tail", [0.001, 0.05, 0.1, 0.5, 0.97])
def test_every_bet_on_larger_values_is_fair(tail):
    """Each factor has mean 1 over a uniform p, exactly, and none is below 1/4."""
    monitor = upward([0.0], tail=tail)
    below = np.array(monitor.factors(tail / 2.0))
    above = np.array(monitor.factors((tail + 1.0) / 2.0))
    assert tail * below + (1.0 - tail) * above == pytest.approx(np.ones(below.size), abs=1e-12)
    ends = np.array([monitor.factors(p) for p in (0.0, tail, tail + 1e-12, 1.0)])
    assert ends.min() >= 0.25 - 1e-12


@pytest.mark.parametrize("decimals", [0, 6])
def test_unchanged_critical_scores_alarm_no_more_often_than_stated(decimals):
    """Level 0.2 over 300 judged queries; with values of which most tie, and a bag that evicts."""
    rng, runs = np.random.default_rng(45), 60
    fresh = (
        feed(
            upward(rng.standard_normal(30).round(decimals), level=0.2, cap=30),
            rng.standard_normal(300).round(decimals),
            rng,
        )
        for _ in range(runs)
    )
    assert_at_most(sum(alarm is not None for alarm in fresh), runs, 0.2, FALSE_ALARM)


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
