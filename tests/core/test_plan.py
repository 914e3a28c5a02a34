"""Plans of labels: laws of the realised risk by the number of rows, and calls by a fixed order."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.threshold import allowed_misses, calibrate_threshold, fewest_rows
from racer_core.errors import InputError
from racer_core.offline.plan import LabelledSample, Outlook, Plan, part_sizes, rows_within
from racer_core.records.split import TUNING_SHARES, UNTUNED_SHARES, split_rows
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, Score
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")
LEVELS = st.floats(0.01, 0.6)
DELTAS = st.none() | st.floats(0.01, 0.5)


# The law of the realised risk ---------------------------------------------------------------------


@settings(max_examples=40)
@given(n=st.integers(1, 3_000), alpha=LEVELS, delta=DELTAS)
def test_realised_risk_is_beta(n, alpha, delta):
    """Mean and quantiles of Beta(m, n + 1 - m); infeasible where no rank is left."""
    found = Outlook.of(n, alpha, delta)
    m = allowed_misses(n, alpha, delta) + 1
    assert found.is_feasible == (m > 0) == (n >= fewest_rows(alpha, delta))
    if m == 0:
        assert (found.mean, found.quantile(0.05), found.quantile(0.95)) == (0.0, 0.0, 0.0)
        return
    law = stats.beta(m, n + 1 - m)
    assert found.mean == pytest.approx(law.mean())
    for q in (0.05, 0.95):
        assert found.quantile(q) == pytest.approx(law.ppf(q), rel=1e-6)
    risks, mass = found.density()
    assert mass @ risks == pytest.approx(law.mean(), rel=1e-3)
    assert mass @ (risks - law.mean()) ** 2 == pytest.approx(law.var(), rel=1e-2)


def test_realised_risk_has_this_law_where_thresholds_are_set():
    """The share of 4,000 thresholds above the 95 % point, for uniform scores, whose risk is known.

    False alarm 6e-7 (five standard deviations); a rank off by one moves the share by 0.03.
    """
    n, alpha = 68, 0.1
    rng = np.random.default_rng(12)
    risks = np.array([1.0 - calibrate_threshold(rng.random(n), alpha) for _ in range(4_000)])
    found = Outlook.of(n, alpha)
    above = np.mean(risks > found.quantile(0.95))
    assert abs(above - 0.05) < 5 * np.sqrt(0.05 * 0.95 / 4_000)
    assert abs(risks.mean() - found.mean) < 5 * risks.std() / np.sqrt(4_000)


# Rows for a realised risk -------------------------------------------------------------------------


@settings(max_examples=40)
@given(alpha=st.floats(0.05, 0.5), factor=st.floats(1.3, 3.0), delta=st.none() | st.just(0.1))
def test_fewest_rows_for_a_realised_risk_are_those_of_a_search(alpha, factor, delta):
    """By the quantile of every number of rows: all from it on, and not the one before it."""
    limit = factor * alpha
    found = rows_within(limit, alpha, delta)
    if limit >= 1.0:
        assert found == fewest_rows(alpha, delta)
        return
    fewest = fewest_rows(alpha, delta)
    for n in range(max(fewest, found - 1), found + 3 * math.ceil(1 / alpha)):
        excess = Outlook.of(n, alpha, delta).quantile(0.95) - limit
        assert abs(excess) < 1e-9 or (excess <= 0.0) == (n >= found)


@pytest.mark.parametrize(
    ("alpha", "rows"), [(0.05, (240, 881)), (0.1, (110, 420)), (0.2, (45, 185))]
)
def test_rows_for_one_and_a_half_and_one_and_a_quarter_alpha(alpha, rows):
    """With probability 0.95; a tenth of alpha takes about ten times as many."""
    assert (rows_within(1.5 * alpha, alpha), rows_within(1.25 * alpha, alpha)) == rows


def test_small_levels_are_planned_at_once():
    """At alpha 1e-6 some 350 million rows; not counted one by one."""
    assert 3e7 < rows_within(1.25e-6, 1e-6) < 4e8


# Calls by a fixed order ---------------------------------------------------------------------------


def chances(rng, rows):
    """Three candidates; each covers a part of what those before it miss. Some rows have none."""
    draws = rng.random(rows)
    ends = np.array([0.45, 0.65, 0.8])
    return (draws[:, None] < ends) & (draws[:, None] >= [0.0, 0.45, 0.65])


@pytest.mark.parametrize(("n", "alpha"), [(60, 0.1), (30, 0.05), (200, 0.3)])
def test_calls_are_those_of_calibrations_with_the_fixed_order(n, alpha):
    """The mean size over 150 calibrations of n answerable rows with `static`, as it is served.

    The sample is so large that its order and shares are exact to 0.005. False alarm 6e-7.
    """
    rng = np.random.default_rng(5)
    sample = LabelledSample(labels=chances(rng, 100_000), risk_target=RiskTarget.ANSWERABLE)
    expected = sample.calls(Outlook.of(n, alpha))
    patterns = PatternModel.of(sample.labels)
    pool, options = (
        ("a", "b", "c"),
        CalibrationOptions(alpha=alpha, score=Score.STATIC, smoothing_salt=SMOOTHING_SALT),
    )
    sizes = []
    prints = [i.to_bytes(8) for i in range(60_000)]
    for trial in range(150):
        labels = chances(rng, 3 * n)
        labels = labels[labels.any(axis=1)][:n]
        own = prints[trial * 400 : trial * 400 + 400]
        flat = np.full((400, 3), 0.5)
        calibration = Calibration(
            pool=pool, fingerprints=tuple(own[:n]), scores=flat[:n], labels=labels,
            options=options, patterns=patterns,
        )  # fmt: skip
        assert calibration.n == n
        threshold = calibration.lambda_hat(alpha, Score.STATIC)
        queries = own[n:]
        sets = calibration.sets(flat[n:], queries, threshold, Score.STATIC)
        sizes.append(sets.selected.sum(axis=1).mean())
    assert abs(np.mean(sizes) - expected) < 5 * np.std(sizes) / np.sqrt(150) + 0.005


def test_without_a_finite_threshold_all_candidates_are_called():
    """The planner says so before anything is labelled."""
    sample = LabelledSample(
        labels=chances(np.random.default_rng(1), 50), risk_target=RiskTarget.ANSWERABLE
    )
    assert sample.calls(Outlook.of(8, 0.1)) == 3.0
    assert sample.calls(Outlook.of(9, 0.1)) < 3.0


def test_the_null_model_is_no_call():
    """Under `paper` rows without a right candidate count, and the null model covers them."""
    labels = np.array([[True, False]] * 60 + [[False, False]] * 40)
    paper = LabelledSample(labels=labels, risk_target=RiskTarget.PAPER)
    assert paper.counted == 1.0
    assert LabelledSample(labels=labels, risk_target=RiskTarget.ANSWERABLE).counted == 0.6
    # One call covers 60 %; the null model the rest.
    assert paper.calls(Outlook.of(999, 0.05)) == pytest.approx(1.0, abs=0.01)


# Questions ----------------------------------------------------------------------------------------


@given(questions=st.integers(4, 3_000))
def test_sizes_of_the_parts_are_those_of_a_split(questions):
    """Of one group, by `racer split`."""
    for shares in (TUNING_SHARES, UNTUNED_SHARES):
        sizes = part_sizes(questions, shares)
        assert sum(sizes.values()) == questions
    if questions < 200:
        rows = tuple(LabelledRow(query=f"q{i}", correct=frozenset("a")) for i in range(questions))
        parts = split_rows(LabelledRows(pool=("a",), rows=rows), *shares.values(), by_group=True)
        assert list(map(len, parts)) == list(sizes.values())


@given(
    alpha=st.sampled_from([0.05, 0.1, 0.2]),
    counted=st.floats(0.3, 1.0),
    rows=st.integers(1, 900),
    tuned=st.booleans(),
)
def test_questions_for_a_number_of_rows_are_the_fewest(alpha, counted, rows, tuned):
    """One question less gives fewer rows that count."""
    shares = TUNING_SHARES if tuned else UNTUNED_SHARES
    plan = Plan(questions=1, alpha=alpha, counted=counted, shares=shares)
    found = plan.questions_for(rows)
    assert plan.questions_tuned(rows) >= plan.questions_to_tune
    for questions, enough in ((found, True), (found - 1, False)):
        if questions:
            size = part_sizes(questions, shares)["calibration"]
            assert (int(size * counted + 1e-9) >= rows) == enough


@pytest.mark.parametrize(
    ("questions", "parts", "n", "misses"),
    [
        (60, {"train": 24, "calibration": 36}, 27, 1),
        (200, {"train": 80, "calibration": 120}, 90, 8),
        (444, {"train": 178, "calibration": 266}, 199, 19),
        (445, {"train": 178, "validation": 134, "calibration": 133}, 99, 9),
        (12, {"train": 5, "calibration": 7}, 5, -1),
        (1, {"train": 0, "calibration": 1}, 0, -1),
    ],
)
def test_plans_of_some_numbers_of_questions(questions, parts, n, misses):
    """Three in four count; validation rows calibrate until there are 445 questions."""
    plan = Plan(questions=questions, alpha=0.1)
    assert plan.parts == parts
    assert plan.outlook == Outlook(n=n, misses=misses)
    assert plan.questions_to_tune == 445
    assert plan.fewest == 9
    assert plan.calls is None


def test_shares_that_are_given_are_kept():
    """Of `racer bootstrap --share`."""
    plan = Plan(questions=500, alpha=0.1, shares=UNTUNED_SHARES)
    assert plan.parts == {"train": 200, "calibration": 300}


def test_questions_for_a_realised_risk():
    """At alpha 0.1: 245 questions for 0.15 and 933 for 0.125, if three in four count."""
    plan = Plan(questions=200, alpha=0.1)
    found = [plan.questions_for(plan.rows_within(factor)) for factor in (1.5, 1.25)]
    assert found == [245, 933]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 1.0}, "alpha must lie strictly between 0 and 1"),
        ({"alpha": 0.1, "delta": 0.0}, "delta must lie strictly between 0 and 1"),
        ({"alpha": 1e-309}, "no number of rows is enough for alpha 1e-309: take larger ones"),
        ({"alpha": 1e-309, "delta": 0.1}, "alpha 1e-309 and delta 0.1: take larger ones"),
        ({"alpha": 0.1, "questions": 0}, "at least one question"),
        ({"alpha": 0.1, "counted": 0.0}, "no question is answered right by any candidate"),
    ],
)
def test_what_cannot_be_planned_says_what_helps(wrong, message):
    """One sentence each."""
    with pytest.raises(InputError, match=message):
        Plan(**({"questions": 100} | wrong))
