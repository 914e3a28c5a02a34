"""Rules for a cascade: laws on small tasks by hand, and Firstpass's published figures again.

Its records are no part of the repository: `DATA=... pytest tests/benchmarks/test_firstpass.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cascade_rules import (
    NEVER,
    POOL,
    Cascade,
    firstpass_conformal,
    firstpass_ltt,
    halves,
    hoeffding_upper,
    most_served,
    ranked,
    rounds,
)
from racer_core.calibration.learn_then_test import clopper_pearson_upper

FILES = {
    name: path
    for name in ("mbpp-974-opus", "mbpp-974-sonnet-k5")
    for path in Path(os.environ.get("DATA", os.devnull)).rglob(f"{name}.jsonl.gz")
}
published = pytest.mark.skipif(len(FILES) < 2, reason="Firstpass's records are not in $DATA")


def tasks(counts: dict[float, tuple[int, int]]) -> Cascade:
    """Score -> numbers of right and of wrong cheap answers; the strong candidate is right."""
    rows = [
        (score, place < right)
        for score, (right, wrong) in counts.items()
        for place in range(right + wrong)
    ]
    score = np.array([score for score, _ in rows])
    return Cascade(
        number=np.arange(len(rows)),
        score=score,
        scores=np.column_stack([score, np.ones(len(rows))]),
        cheap=np.array([right for _, right in rows]),
        strong=np.ones(len(rows), dtype=bool),
        cost=np.tile([1.0, 10.0], (len(rows), 1)),
    )


def test_a_policy_pays_for_each_call_that_it_makes() -> None:
    """A cheap answer that fails its check is paid for, too; errors are of what is served."""
    given_ = tasks({1.0: (3, 1), 0.0: (0, 4)})
    served = given_.served(1.0)
    assert served.dollars.tolist() == [1.0] * 4 + [11.0] * 4
    assert served.errors(of_cheap=True) == (1, 4)
    assert served.errors(of_cheap=False) == (1, 8)
    assert given_.strong_alone().dollars.tolist() == [10.0] * 8
    assert given_.served(NEVER).figures()["cheap"] == 0.0


def test_the_default_rule_certifies_a_prefix_and_serves_the_whole_level() -> None:
    """Of 100 that tie at 0.5 it counts those before the bound breaks: the level itself fails.

    Hoeffding's bound of the level is 90 wrong of 500, 0.18 + 0.055.
    """
    rows = tasks({1.0: (400, 0), 0.5: (10, 90)})
    found = firstpass_conformal(rows, 0.1)
    assert found.threshold == 0.5
    assert 400 < found.served < 500
    assert hoeffding_upper(found.wrong, found.served, 0.05) <= 0.1
    assert hoeffding_upper(90, 500, 0.05) == pytest.approx(0.18 + 0.0547, abs=1e-4)
    assert rows.served(0.5).errors(of_cheap=True) == (90, 500)
    assert found.is_cut(rows, 0.1)
    assert not firstpass_conformal(tasks({1.0: (400, 0)}), 0.1).is_cut(tasks({1.0: (400, 0)}), 0.1)
    assert firstpass_ltt(rows, 0.1) == 1.0, "exact tests of whole levels refuse it"


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=60, max_size=200),
    st.sampled_from([0.05, 0.1, 0.2]),
)
@settings(max_examples=60)
def test_rules_pass_what_clopper_and_pearson_bound(
    rows: list[tuple[float, bool]], alpha: float
) -> None:
    """Every level that an exact rule passes has a bound at 95 % within the limit."""
    score = np.array([each for each, _ in rows])
    given_ = Cascade(
        number=np.arange(len(rows)),
        score=score,
        scores=np.column_stack([score, score]),
        cheap=np.array([right for _, right in rows]),
        strong=np.ones(len(rows), dtype=bool),
        cost=np.ones((len(rows), 2)),
    )
    orders = (given_.levels[1:], ranked(given_, of_cheap=True))
    chosen = [most_served(given_, each, alpha, of_cheap=True) for each in orders]
    for threshold in (firstpass_ltt(given_, alpha), *chosen):
        if threshold != NEVER:
            errors = given_.served(threshold).errors(of_cheap=True)
            assert clopper_pearson_upper(*errors) <= alpha + 1e-12


def test_no_task_calibrates_and_is_served() -> None:
    """Nor does one fit and test: the parts of a split are disjoint, and all tasks are in them."""
    simulated = Cascade.simulated(101)
    parts = halves(simulated, np.random.default_rng(0))
    assert sorted(int(number) for each in parts for number in each.number) == list(range(101))
    assert list(map(len, parts)) == [12, 38, 51]


def test_rounds_begin_with_the_order_that_is_given() -> None:
    """Cheap first, most tasks end with one call; the fitted order calls the strong one first."""
    simulated = Cascade.simulated(900)
    fit, rows, test = halves(simulated, np.random.default_rng(0))
    cheap_first, _ = rounds(fit, rows, test, 0.2, 0.05, order=POOL)
    fitted, missed = rounds(fit, rows, test, 0.2, 0.05, order=None)
    assert cheap_first.figures()["cheap"] > 0.5
    assert fitted.figures()["cheap"] < 0.1
    assert fitted.dollars.mean() >= test.strong_alone().dollars.mean()
    assert missed <= 0.2


def test_rounds_keep_their_promise_over_tasks() -> None:
    """At most alpha is missed but for a share delta of calibrations.

    100 independent draws of 450 tasks; 15 or more above alpha have a probability of 1.4e-4.
    """
    above = 0
    for seed in range(100):
        fit, rows, test = halves(Cascade.simulated(450, seed), np.random.default_rng(seed))
        many = Cascade.simulated(4_000, 10_000 + seed)
        _, missed = rounds(fit, rows.joined(test), many, 0.1, 0.05, order=POOL)
        above += missed > 0.1 + 0.014  # three standard deviations of what 4,000 tasks show
    assert above < 15


@published
@pytest.mark.parametrize(
    ("name", "success", "total"),
    [
        ("mbpp-974-opus", (0.7834, 0.9435, 0.9333), (1.3396, 7.2849, 2.9961)),
        ("mbpp-974-sonnet-k5", (0.7906, 0.9333, 0.9230), (10.6287, 13.6393, 15.2522)),
    ],
)
def test_its_published_policies_come_out_again(
    name: str, success: tuple[float, ...], total: tuple[float, ...]
) -> None:
    """Always cheap, always strong, and its own policy: shares and dollars to the last digit.

    Where a judge joined the check, a full pass scores 0.5 or more.
    """
    rows = Cascade.read(FILES[name])
    full = 1.0 if name == "mbpp-974-opus" else 0.5
    cheap = rows.serving(np.ones(len(rows), dtype=bool), rows.cost[:, 0])
    served = (cheap, rows.strong_alone(), rows.served(full))
    assert tuple(round(float(each.right.mean()), 4) for each in served) == success
    assert tuple(round(float(each.dollars.sum()), 4) for each in served) == total


@published
def test_its_published_bound_comes_out_again() -> None:
    """Halves by parity: 0.5, risk 0.0379, 81 %; then 0.0521 of 403 answers. None for the other."""
    rows = Cascade.read(FILES["mbpp-974-opus"])
    even, odd = rows.at(np.arange(0, 974, 2)), rows.at(np.arange(1, 974, 2))
    found = firstpass_conformal(even, 0.1)
    assert found.threshold == 0.5
    assert round(found.wrong / found.served, 4) == 0.0379
    assert round(found.served / len(even), 2) == 0.81
    wrong, served = odd.served(0.5).errors(of_cheap=True)
    assert (round(wrong / served, 4), served) == (0.0521, 403)
    judged = Cascade.read(FILES["mbpp-974-sonnet-k5"])
    assert firstpass_conformal(judged.at(np.arange(0, 974, 2)), 0.1).threshold == NEVER
