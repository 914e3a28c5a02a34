"""Recorded confidences: how good an evaluator is, which one is chosen, and what its vote wins."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.vote import Weight
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import EvaluatorKey
from racer_core.offline.evaluation_tables import evaluators, unmeasured
from racer_core.offline.evaluators import MIN_ROWS, EvaluatorChoice, RatedAnswers
from racer_core.offline.protocol import Protocol, Shares, split
from racer_core.offline.selection import ScoredRows
from racer_core.offline.table import EvaluationTable, build_table
from racer_core.offline.votes import Rule
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, Score

POOL = ("a", "b", "c")
ONE = "one"


def row(number, right, confidences, group=None, answers=("x", "y", "z")):
    """A row whose first candidate is right, or other ones; confidences by evaluator, p_true."""
    return LabelledRow(
        query=f"question {number}",
        correct=frozenset(right),
        answers=dict(zip(POOL, answers, strict=True)),
        group=group,
        confidences={
            name: {"p_true": dict(zip(POOL, values, strict=True))}
            for name, values in confidences.items()
        },
    )


CONFIDENCES = st.none() | st.integers(0, 4).map(lambda k: k / 4)


@given(
    table=st.lists(
        st.tuples(st.lists(CONFIDENCES, min_size=3, max_size=3), st.sets(st.sampled_from(POOL))),
        min_size=1,
        max_size=6,
    )
)
def test_auc_is_the_share_of_pairs_within_questions(table):
    """Counted pair by pair: a larger confidence of the right answer 1, a tie or a gap one half."""
    rated = RatedAnswers.of(
        [row(i, right, {"judge": values}) for i, (values, right) in enumerate(table)], POOL
    )
    won = []
    for values, right in table:
        by_name = dict(zip(POOL, values, strict=True))
        for good in right:
            for bad in set(POOL) - right:
                pair = by_name[good], by_name[bad]
                won.append(0.5 if None in pair else 0.5 + 0.5 * np.sign(pair[0] - pair[1]))
    (quality,) = rated.qualities()
    assert quality.auc == (
        pytest.approx(np.mean(won)) if won else pytest.approx(np.nan, nan_ok=True)
    )
    assert quality.contested == sum(0 < len(right) < 3 for _, right in table)
    gaps = sum(value is None for values, _ in table for value in values)
    assert quality.failed == pytest.approx(gaps / (3 * len(table)))


KNOWS, ERRS = (0.9, 0.1, 0.1), (0.1, 0.9, 0.9)


@pytest.mark.parametrize(("count", "own"), [(MIN_ROWS, True), (MIN_ROWS - 1, False)])
def test_a_group_has_an_evaluator_of_its_own_where_it_has_the_rows(count, own):
    """The scholar knows law, the abacist sums; there are more rows of law."""
    rows = [row(i, "a", {"abacist": ERRS, "scholar": KNOWS}, "law") for i in range(3 * MIN_ROWS)]
    rows += [row(1_000 + i, "a", {"abacist": KNOWS, "scholar": ERRS}, "sums") for i in range(count)]
    rated = RatedAnswers.of(rows, POOL)
    choice = rated.choose(Weight.P_TRUE)
    assert choice == EvaluatorChoice(common="scholar", of_groups={"sums": "abacist"} if own else {})
    ratings = rated.ratings(Weight.P_TRUE, choice)
    np.testing.assert_array_equal(ratings[0], KNOWS)
    np.testing.assert_array_equal(ratings[-1], KNOWS if own else ERRS)


def test_a_kind_that_some_rows_lack_is_not_measured():
    """Null is a rating; rows without any readable answer need none."""
    rows = [row(0, "a", {"judge": (None, None, None)}), row(1, "", {}, answers=(None,) * 3)]
    rated = RatedAnswers.of(rows, POOL)
    assert list(rated.values) == [Weight.P_TRUE]
    assert rated.unrated == {Weight.VERBAL: 1}
    other = RatedAnswers.of([*rows, row(2, "a", {})], POOL)
    assert other.values == {}
    assert other.unrated == {Weight.VERBAL: 2, Weight.P_TRUE: 1}


# What the votes win -----------------------------------------------------------------------------

MAJORITY_RIGHT, INFORMED = 0.3, 0.9


def outvoted(count, seed):
    """One right candidate against two that agree; in 30 % of the rows two right ones against one.

    The judge's P(True) is 1 for right answers and 0 for wrong ones in 90 % of the rows, and the
    other way round in the rest; the coin's is noise. Verbal verdicts are always 1.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        order = rng.permutation(POOL)
        right = set(order[: 2 if rng.random() < MAJORITY_RIGHT else 1])
        informed = rng.random() < INFORMED
        p_true = {name: float((name in right) == informed) for name in POOL}
        coin = {name: float(rng.random()) for name in POOL}
        ones = dict.fromkeys(POOL, 1.0)
        rows.append(
            LabelledRow(
                query=f"question {number} of {seed}",
                correct=frozenset(right),
                answers={name: "right" if name in right else "wrong" for name in POOL},
                confidences={
                    "coin": {"verbal": ones, "p_true": coin},
                    "judge": {"verbal": ones, "p_true": p_true},
                },
            )
        )
    return LabelledRows(pool=POOL, rows=tuple(rows))


@pytest.fixture(scope="module")
def outvoted_evaluation():
    """600 such rows, 20 splits."""
    protocol = Protocol(
        splits=20, alphas=(0.001, 0.3), scores=(Score.STATIC,), shares=Shares(validation=0.3)
    )
    rows = outvoted(600, seed=7)
    table = build_table({ONE: rows}, encoder=CharNgramEncoder(), router="knn", protocol=protocol)
    return rows, evaluate(table, encoder="char-ngrams", router="knn")


def test_an_informed_p_true_wins_where_the_majority_is_wrong(outvoted_evaluation):
    """By INFORMED - MAJORITY_RIGHT = 0.6 on whole pools: every vote's accuracy is known exactly."""
    rows, evaluation = outvoted_evaluation
    controls = {name: np.array(runs) for name, runs in evaluation.controls[ONE].items()}
    informed = np.mean([
        row.confidences["judge"]["p_true"][name] == (name in row.correct)
        for row in rows.rows for name in POOL
    ])  # fmt: skip
    majority = np.mean([len(row.correct) == 2 for row in rows.rows])
    # 60 test rows a split, 20 splits of 360 rows: the spread of a mean is below 0.03.
    assert controls["full pool p_true"].mean() == pytest.approx(informed, abs=0.05)
    assert controls["full pool majority"].mean() == pytest.approx(majority, abs=0.08)
    np.testing.assert_array_equal(controls["full pool verbal"], controls["full pool majority"])
    np.testing.assert_array_equal(controls["full pool tuned"], controls["full pool p_true"])
    whole_pool = next(
        setting for setting in evaluation.cells
        if (setting.alpha, setting.risk_target) == (0.001, RiskTarget.ANSWERABLE)
    )  # fmt: skip
    runs = evaluation.cells[whole_pool]
    gain = np.mean(runs["accuracy_p_true"]) - np.mean(runs["accuracy_majority"])
    assert gain == pytest.approx(INFORMED - MAJORITY_RIGHT, abs=0.08)
    assert {choice.rule for choice in evaluation.choices} == {Rule.P_TRUE}


def test_the_informed_evaluator_is_chosen_and_shown(outvoted_evaluation):
    """In every split; the report and results.json have its AUC beside the coin's."""
    _, evaluation = outvoted_evaluation
    judge = EvaluatorKey(scope=ONE, weight=Weight.P_TRUE, evaluator="judge")
    assert evaluation.evaluators[judge]["chosen"] == [1.0] * 20
    assert np.mean(evaluation.evaluators[judge]["auc"]) == pytest.approx(INFORMED, abs=0.03)
    coin = evaluation.evaluators[replace(judge, evaluator="coin")]
    assert coin["chosen"] == [0.0] * 20
    assert np.mean(coin["auc"]) == pytest.approx(0.5, abs=0.06)
    (grid,) = evaluators(evaluation)
    assert [line[:3] for line in grid.rows] == [
        (ONE, weight, name) for weight in ("verbal", "p_true") for name in ("coin", "judge")
    ]
    shown = evaluation.as_json()["evaluators"]
    assert {(each["weight"], each["evaluator"], each["mean"]["chosen"]) for each in shown} >= {
        ("p_true", "judge", 1.0),
        ("p_true", "coin", 0.0),
    }
    assert not any("evaluator" in each for each in unmeasured(evaluation))


def test_the_evaluator_and_its_temperature_are_chosen_on_validation_rows():
    """One evaluator knows the validation rows alone, the other the test rows alone.

    Chosen on test rows, the vote by P(True) would be right on every one of them; chosen on
    validation rows it is right on none. There is no chance in it.
    """
    protocol = Protocol(
        splits=1,
        shares=Shares(validation=0.2),
        alphas=(0.2,),
        scores=(Score.PROB,),
        risk_targets=(RiskTarget.ANSWERABLE,),
        false_abstain_budget=None,
        seed=4,
    )
    parts = split(np.arange(200), protocol.of(ONE), np.random.default_rng(4))
    labels = np.tile([True, False, False], (200, 1))
    knows, errs = (np.tile(each, (200, 1)) for each in (KNOWS, ERRS))
    validation, test = (np.isin(np.arange(200), each) for each in (parts.validation, parts.test))
    table = EvaluationTable(
        benchmarks={ONE: np.arange(200)},
        rows=ScoredRows(
            pool=POOL,
            fingerprints=tuple(number.to_bytes(16, "big") for number in range(200)),
            scores=np.tile([0.5, 0.5, 0.5], (200, 1)),
            neighbours=None,
            labels=labels,
        ),
        patterns=(PatternModel.of(labels),),
        answers=RowAnswers(classes=np.tile([0, 1, 2], (200, 1)).astype(np.int16)),
        stacked=None,
        n_train=10,
        copies=0,
        protocol=protocol,
        rated=RatedAnswers(
            values={
                Weight.P_TRUE: {
                    "test": np.where(test[:, None], knows, errs),
                    "validation": np.where(validation[:, None], knows, errs),
                }
            },
            unrated={},
            labels=labels,
            given=np.ones_like(labels),
            groups=np.full(200, ""),
        ),
    )
    evaluation = evaluate(table, encoder="char-ngrams", router="knn")
    (runs,) = evaluation.cells.values()
    assert runs["accuracy_p_true"] == [0.0]
    assert evaluation.controls[ONE]["full pool p_true"] == [0.0]
    by_router = replace(
        table, rated=replace(table.rated, values={Weight.P_TRUE: {"router": table.rows.scores}})
    )
    (runs,) = evaluate(by_router, encoder="char-ngrams", router="knn").cells.values()
    assert runs["accuracy_p_true"] == runs["accuracy_weighted"]
