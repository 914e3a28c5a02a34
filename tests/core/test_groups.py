"""Mondrian groups: each has the threshold of its own rows, however few they are.

The statistical tests have a fixed seed and a false-alarm probability of 1e-6.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.calibration import Calibration
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, Score
from tests.core.kinds import Kinds, missed
from tests.core.laws import assert_split_risk
from tests.kit.lazy import LazyModule
from tests.kit.strategies import calibration_of, calibration_options, fingerprints_of, tables
from tests.kit.synthetic import synthetic_rows

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
names = st.sampled_from(["a", "b", None])


@given(table=tables(), options=calibration_options(), data=st.data())
def test_a_group_is_calibrated_on_its_own_rows(table, options, data):
    """As if the others had not been uploaded: scores, labels, neighbours, and each row's noise."""
    groups = tuple(data.draw(st.lists(names, min_size=len(table), max_size=len(table))))
    rows = [i for i, group in enumerate(groups) if group == "a"]
    pooled = replace(table.calibration(**options), groups=groups)
    prints = fingerprints_of(len(table))
    alone = Calibration(
        pool=pooled.pool,
        fingerprints=tuple(prints[i] for i in rows),
        scores=table.scores[rows],
        labels=table.labels[rows],
        options=pooled.options,
        neighbours=None if table.neighbours is None else table.neighbours[rows],
        patterns=table.patterns,
        prices=table.prices,
    )
    group = pooled.group("a")
    assert group.n == alone.n
    assert group.fingerprints == alone.fingerprints
    assert group.groups == ("a",) * len(rows)
    for kind in Score:
        for alpha in (0.1, 0.34, 0.5, 0.9):
            assert group.lambda_hat(alpha, kind) == alone.lambda_hat(alpha, kind)


@given(table=tables(), options=calibration_options(), alpha=st.sampled_from([0.1, 0.3, 0.5]))
def test_one_group_for_all_is_no_group(table, options, alpha):
    """Queries of no group belong to a population without rows: the whole pool is called."""
    plain = table.calibration(**options)
    grouped = replace(plain, groups=("a",) * len(table))
    for one in (grouped.group("a"), plain.group(None)):
        assert one.lambda_hat(alpha, Score.COVER) == plain.lambda_hat(alpha, Score.COVER)
    rest = grouped.group(None)
    assert rest.n == 0
    assert math.isinf(rest.lambda_hat(alpha, Score.GAP))


def grouped(sizes, *, unanswerable=0, **options):
    """A calibration with given numbers of answerable rows per group; the first has others too."""
    groups = [name for name, size in sizes.items() for _ in range(size)]
    groups = [*groups, *[next(iter(sizes))] * unanswerable]
    rng = np.random.default_rng(1)
    labels = np.ones((len(groups), 2), dtype=bool)
    labels[len(groups) - unanswerable :] = False
    return calibration_of(rng.random((len(groups), 2)), labels, groups=tuple(groups), **options)


@pytest.mark.parametrize(("alpha", "enough"), [(0.1, 9), (0.05, 19), (0.5, 1)])
def test_smallest_group_with_a_finite_threshold(alpha, enough):
    """1/(n + 1) <= alpha; one row fewer and the whole pool is called. No other group gets a row."""
    for size in (enough, enough - 1):
        calibration = grouped({"small": size, "large": 100, None: 30})
        own = calibration.group("small")
        assert own.n == size
        assert math.isfinite(own.lambda_hat(alpha, Score.GAP)) == (size == enough)
        assert own.decide(b"q", [0.5, 0.25], alpha=alpha).trivial == (size < enough)
        assert calibration.group(None).n == 30


def test_easy_rows_of_a_group_do_not_lend_the_others_their_risk():
    """P(miss) <= alpha over all queries, each served by its rows: those of no group omit "easy".

    With the easy rows in it the miss rate of the others would be 0.61 and of all queries 0.14.
    """
    rng = np.random.default_rng(5)
    trials, alpha, missed_by_rest = 400, 0.1, 0
    for _ in range(trials):
        easy, hard = rng.random(230), 10.0 + rng.random(20)
        scores = np.concatenate([easy, hard])[:, None] / 20.0  # s = 1 - r rises with it
        calibration = calibration_of(
            1.0 - scores,
            np.ones((250, 1), dtype=bool),
            groups=("easy",) * 230 + (None,) * 20,
            score=Score.PROB,
        )
        rest = calibration.group(None)
        query = (10.0 + rng.random()) / 20.0
        missed_by_rest += query > rest.lambda_hat(alpha, Score.PROB)
    # Exactly 2/21; more than 0.61 of that world, or 0.1 in 400 by chance, with probability 1e-6.
    assert missed_by_rest <= stats.binom.isf(FALSE_ALARM, trials, 2 / 21)


def test_delta_asks_for_larger_groups():
    """29 rows at alpha 0.1 and delta 0.05, where 9 do for the mean."""
    calibration = grouped({"nine": 9, "few": 28, "enough": 29}, delta=0.05)
    assert [
        math.isfinite(calibration.group(name).lambda_hat(0.1, Score.GAP))
        for name in ("nine", "few", "enough")
    ] == [False, False, True]


def test_rows_that_do_not_count_do_not_make_a_group_large_enough():
    """Eight answerable rows and fifty that no candidate answers are eight."""
    sizes = {"small": 8, "large": 100}
    few = grouped(sizes, unanswerable=50).group("small")
    assert few.decide(b"q", [0.5, 0.25], alpha=0.1).trivial
    paper = grouped(sizes, unanswerable=50, risk_target=RiskTarget.PAPER).group("small")
    assert (few.n, paper.n) == (8, 58)
    assert not paper.decide(b"q", [0.5, 0.25], alpha=0.1).trivial


@pytest.mark.parametrize("name", ["stranger", "", "None", "SMALL"])
def test_a_group_that_no_row_names_has_no_rows(name):
    """A request may name any group; the rows of no group are not its rows."""
    calibration = grouped({"small": 20, None: 25})
    assert calibration.group(name).n == 0
    assert calibration.group(name).decide(b"q", [0.5, 0.25], alpha=0.1).trivial
    assert calibration.group(None).n == 25
    assert replace(calibration, groups=None).group(None).n == 45


def test_a_group_of_a_sub_pool_and_a_sub_pool_of_a_group_are_the_same():
    """An outage while a tenant asks: both ways of taking rows and columns commute."""
    world = Kinds(1)
    calibration = world.calibration(world.draw(200))
    left = ["m3", "m0"]
    one, other = calibration.restrict(left).group("1"), calibration.group("1").restrict(left)
    assert one.n == other.n
    for kind in Score:
        assert one.lambda_hat(0.1, kind) == other.lambda_hat(0.1, kind)


def blocks(seed, trials, n, queries):
    """For each trial the rows (n of each kind) and the queries of each kind, all answerable."""
    world = Kinds(seed)
    drawn = world.draw(5 * trials * (n + queries), answerable=True)
    places = [np.flatnonzero(drawn.groups == str(kind)) for kind in range(3)]
    for trial in range(trials):
        start = trial * (n + queries)
        rows = [drawn[of_kind[start : start + n]] for of_kind in places]
        tested = [drawn[of_kind[start + n : start + n + queries]] for of_kind in places]
        assert [len(each) for each in rows + tested] == [n] * 3 + [queries] * 3
        yield world, trial, rows, tested


def stacked(parts):
    """All rows of several parts, in one."""
    fields = ("scores", "neighbours", "labels", "groups")
    return type(parts[0])(
        *(np.concatenate([getattr(each, name) for each in parts]) for name in fields)
    )


@pytest.mark.parametrize("score", [Score.COVER, Score.STATIC])
def test_risk_within_each_group_has_its_exact_value(score):
    """0.1 in every kind, n = 19 of each; a rank off passes with probability below 1e-8."""
    trials, n, queries, alpha = 600, 19, 10, 0.1
    misses = [0, 0, 0]
    for world, trial, rows, tested in blocks(11, trials, n, queries):
        salt = f"trial {trial}".encode()
        calibration = world.calibration(stacked(rows), score=score, smoothing_salt=salt)
        for kind in range(3):
            group = calibration.group(str(kind))
            misses[kind] += missed(group, tested[kind], group.lambda_hat(alpha, score), trial)
    for count in misses:
        assert_split_risk(
            count / trials / queries,
            splits=trials,
            n=n,
            n_test=queries,
            alpha=alpha,
            false_alarm=FALSE_ALARM,
        )


def test_pooled_threshold_does_not_bound_the_risk_within_a_group():
    """Negative control: calibrated for 0.2 on all kinds, one kind is missed far more often.

    One query of each kind a trial, so that trials are independent; were the risk of every kind at
    most 0.2, a kind would be missed so often with probability 3e-6.
    """
    trials, n, alpha = 500, 19, 0.2
    misses = [0, 0, 0]
    for world, trial, rows, tested in blocks(11, trials, n, 1):
        calibration = world.calibration(
            stacked(rows), score=Score.STATIC, smoothing_salt=f"trial {trial}".encode()
        )
        threshold = calibration.lambda_hat(alpha, Score.STATIC)
        for kind in range(3):
            misses[kind] += missed(calibration, tested[kind], threshold, trial)
    assert max(misses) > stats.binom.isf(FALSE_ALARM, trials, alpha)


def test_rows_of_no_group_keep_their_law():
    """24 rows of no group beside eight of another kind, alpha = 0.08 = 2/25.

    A rank off by one passes with probability below 1e-9.
    """
    trials, queries, alpha = 1_000, 8, 0.08
    world = Kinds(12)
    drawn = world.draw(trials * (32 + queries), answerable=True)
    misses = 0
    for trial in range(trials):
        block = drawn[trial * (32 + queries) : (trial + 1) * (32 + queries)]
        salt = f"trial {trial}".encode()
        rows = replace(block[:32], groups=np.array([None] * 24 + ["small"] * 8))
        calibration = world.calibration(rows, score=Score.COVER, smoothing_salt=salt)
        served = calibration.group(None)
        assert math.isinf(calibration.group("small").lambda_hat(alpha, Score.COVER))
        misses += missed(served, block[32:], served.lambda_hat(alpha, Score.COVER), trial)
    assert_split_risk(
        misses / trials / queries,
        splits=trials,
        n=24,
        n_test=queries,
        alpha=alpha,
        false_alarm=FALSE_ALARM,
    )


def test_groups_of_rows_reach_the_calibration(racer):
    """A row without a group is in none; rows of which none has one make no groups."""
    rows = synthetic_rows(40, seed=31)
    tagged = tuple(
        replace(row, group="tenant" if i % 4 == 0 else None) for i, row in enumerate(rows.rows)
    )
    calibration = racer.calibrate(replace(rows, rows=tagged))
    assert calibration.groups == tuple(row.group for row in tagged)
    assert racer.calibrate(rows).groups is None
    answerable = [row for row in tagged if row.group and row.correct]
    assert calibration.group("tenant").n == len(answerable)


def test_groups_stay_with_rows_that_bring_their_scores(racer):
    """Rows of scores alone have groups too."""
    row = LabelledRow(
        query="", correct=frozenset({"adder"}), scores=(0.5, 0.25, 0.125), group="tenant"
    )
    rows = LabelledRows(pool=racer.pool, rows=(row, replace(row, group=None)))
    calibration = racer.calibrate(rows)
    assert calibration.groups == ("tenant", None)
    assert calibration.neighbours is None
