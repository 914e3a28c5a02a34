"""Exact law of groups: the miss rate of certified requests, with numbers of rows drawn at random.

Rows and requests are of group g with probability p_g. A request of a group with n rows is missed
with probability m(n)/(n + 1), where m(n) = floor(alpha (n + 1)); 0 where that is infeasible. So the
rate of g is the mean of this over Bin(N, p_g) rows. Rules that join a group with others because its
rows are few have no such law: the joined rows have fewer of the group than their requests.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np

from app.routing.groups import GroupedRows
from racer_core.types import Score
from tests.core.laws import assert_at_most, assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.strategies import calibration_of

stats = LazyModule("scipy.stats")

ROWS, TRIALS, ALPHA = 19, 600_000, 0.1  # 2/20: a threshold of all rows has no slack
FALSE_ALARM = 1e-6 / 12  # of each of twelve checks
GROUPS = {
    "hard": 0.4,
    "easy": 0.2,
    "plain": 0.2,
    None: 0.2,
}  # every critical score of "hard" is above others'
NAMES = tuple(GROUPS)

Served = tuple[str | None, tuple[int, ...], int]


@cache
def served(counts: tuple[int, ...], name: str | None) -> Served | None:
    """The named group, the rows that set the threshold by group, and the misses; None: void."""
    groups = tuple(each for each, n in zip(NAMES, counts, strict=True) for _ in range(n))
    calibration = calibration_of(
        np.ones((ROWS, 1)), np.ones((ROWS, 1), dtype=bool), groups=groups, score=Score.PROB
    )
    rows = GroupedRows(calibration)
    applied = rows.serving(rows.plan(name))
    if not applied.is_calibrated:
        return None
    group_of = dict(zip(calibration.fingerprints, groups, strict=True))
    used = Counter(group_of[each] for each in applied.calibration.fingerprints)
    return applied.group, tuple(used[each] for each in NAMES), applied.calibration.misses(ALPHA)


def missed(rng: np.random.Generator, trials: int, name: str | None, rule: Served) -> int:
    """The missed requests of a group in ``trials`` draws of the critical scores."""
    _, used, misses = rule
    if misses < 0:
        return 0
    shift = np.repeat([name == "hard" for name in NAMES], used)
    ascending = np.sort(rng.random((trials, sum(used))) + shift, axis=1)
    query = rng.random(trials) + (name == "hard")
    return int((query > ascending[:, -1 - misses]).sum())


def test_certified_requests_of_every_group_keep_the_exact_law() -> None:
    """Which rows apply follows from the request's group alone, never from the counts drawn."""
    rng = np.random.default_rng(17)
    worlds = rng.multinomial(ROWS, list(GROUPS.values()), TRIALS)
    requests = rng.choice(len(NAMES), TRIALS, p=list(GROUPS.values()))
    draws, sizes = np.unique(np.column_stack([worlds, requests]), axis=0, return_counts=True)
    held, losses, trials_of, misses_of = (Counter[str | None]() for _ in range(4))
    cases: list[list[int]] = draws.tolist()
    for case, trials in zip(cases, sizes.tolist(), strict=True):
        name = NAMES[case[-1]]
        if (rule := served(tuple(case[:-1]), name)) is None:
            continue
        lost = missed(rng, trials, name, rule)
        held[name] += trials
        losses[name] += lost
        trials_of[rule[0]] += trials
        misses_of[rule[0]] += lost
    for group, trials in trials_of.items():  # what `guarantee.group` claims
        assert_at_most(misses_of[group], trials, ALPHA, FALSE_ALARM)
    for name, share in GROUPS.items():
        n = np.arange(1, ROWS + 1)
        chance = stats.binom.pmf(n, ROWS, share)
        risk = np.array([math.floor(ALPHA * (each + 1) + 1e-9) / (each + 1) for each in n])
        expected = float(chance @ risk / chance.sum())
        assert_at_most(losses[name], held[name], ALPHA, FALSE_ALARM)
        assert_binomial(losses[name], held[name], expected, FALSE_ALARM)
