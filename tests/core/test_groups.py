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
from racer_core.types import RiskTarget, Score
from tests.core.kinds import Kinds, missed
from tests.core.laws import assert_split_risk
from tests.kit.strategies import calibration_of, calibration_options, fingerprints_of, tables
from tests.kit.synthetic import synthetic_rows

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


def assert_law(misses, trials, n, queries, alpha):
    """Within the law of distinct scores."""
    rate = misses / trials / queries
    assert_split_risk(
        rate, splits=trials, n=n, n_test=queries, alpha=alpha, false_alarm=FALSE_ALARM
    )


@pytest.mark.parametrize("score", [Score.COVER, Score.STATIC])
def test_risk_within_each_group_has_its_exact_value(score):
    """0.1 in every kind, n = 19 of each; a rank off passes with probability below 1e-3."""
    trials, n, queries, alpha = 400, 19, 10, 0.1
    misses = [0, 0, 0]
    for world, trial, rows, tested in blocks(11, trials, n, queries):
        salt = f"trial {trial}".encode()
        calibration = world.calibration(stacked(rows), score=score, smoothing_salt=salt)
        for kind in range(3):
            group = calibration.group(str(kind))
            misses[kind] += missed(group, tested[kind], group.lambda_hat(alpha, score), trial)
    for count in misses:
        assert_law(count, trials, n, queries, alpha)


def test_rows_of_no_group_keep_their_law():
    """24 rows of no group beside eight of another kind, alpha = 0.08 = 2/25.

    A rank off by one passes with probability below 1e-3.
    """
    trials, queries, alpha = 600, 8, 0.08
    world, misses = Kinds(12), 0
    for trial in range(trials):
        block = world.draw(32 + queries, answerable=True)
        salt = f"trial {trial}".encode()
        rows = replace(block[:32], groups=np.array([None] * 24 + ["small"] * 8))
        calibration = world.calibration(rows, score=Score.COVER, smoothing_salt=salt)
        served = calibration.group(None)
        assert math.isinf(calibration.group("small").lambda_hat(alpha, Score.COVER))
        misses += missed(served, block[32:], served.lambda_hat(alpha, Score.COVER), trial)
    assert_law(misses, trials, 24, queries, alpha)


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
