"""The random-split protocol: the gateway's own sets, and controls of the same sizes."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest

from racer_core.aggregation.batch import RowAnswers
from racer_core.calibration.metrics import set_metrics
from racer_core.calibration.null_threshold import choose_null_threshold
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import AssertionRefuted, InputError
from racer_core.offline.assertions import Assertion
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import AVERAGE, MERGED, Setting
from racer_core.offline.protocol import CalibrationScope, Control, Protocol, Shares, split
from racer_core.offline.selection import ScoredRows
from racer_core.offline.table import EvaluationTable, GroupOrders, build_table
from racer_core.types import BINARY_TARGETS, LabelledRow, LabelledRows, RiskTarget, Score
from tests.kit.synthetic import POOL, synthetic_rows

ONE, TWO = "one", "two"
PRICES = (1.0, 2.0, 4.0)
ALPHAS = (0.02, 0.1, 0.3)


def measured(table):
    """The evaluation of a table."""
    return evaluate(table, encoder="char-ngrams", router="knn")


def scored(files, **protocol):
    """A table of some files."""
    return build_table(
        files, encoder=CharNgramEncoder(), router="knn", protocol=Protocol(**protocol)
    )


@pytest.fixture(scope="module")
def files():
    """Two benchmarks with recorded answers."""
    return {
        ONE: synthetic_rows(300, seed=31, answers=True),
        TWO: synthetic_rows(200, seed=32, answers=True),
    }


def part_of(rows, where):
    """Some of scored rows."""
    return ScoredRows(
        pool=rows.pool,
        fingerprints=tuple(rows.fingerprints[i] for i in where),
        scores=rows.scores[where],
        neighbours=None if rows.neighbours is None else rows.neighbours[where],
        labels=rows.labels[where],
    )


@pytest.fixture(scope="module")
def tables():
    """A benchmark without answers, scored by a router with neighbours and by one without."""
    rows = {ONE: synthetic_rows(300, seed=31)}
    options = {"encoder": CharNgramEncoder(), "protocol": Protocol()}
    return {kind: build_table(rows, router=kind, **options) for kind in ("knn", "mlp")}


@pytest.mark.parametrize("budget", [0.2, None])
@pytest.mark.parametrize("router", ["knn", "mlp"])
@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_sets_are_those_that_a_calibration_serves(tables, target, budget, router):
    """Rank, truth, tau and null model by `Calibration` on the same rows: every number agrees.

    Validation rows choose tau, calibration rows the threshold, and test rows are measured.
    """
    protocol = Protocol(
        splits=1,
        shares=Shares(calibration=0.4, validation=0.4),  # enough validation rows for a tau
        alphas=(*ALPHAS, 0.002),  # the last is infeasible: whole pool, no abstention
        scores=tuple(Score),
        risk_targets=(target,),
        false_abstain_budget=budget,
        prices=PRICES,
        seed=5,
    )
    table = tables[router]
    table = replace(table, patterns=table.patterns[:1], protocol=protocol)  # nothing to choose
    rng = np.random.default_rng(protocol.seed)
    parts = split(table.benchmarks[ONE], protocol.of(ONE), rng)
    held_out, test = part_of(table.rows, parts.validation), part_of(table.rows, parts.test)
    tau = budget and choose_null_threshold(held_out.scores, held_out.labels, budget)
    assert budget is None or np.any(1.0 - test.scores.max(axis=1) >= tau)
    calibration = part_of(table.rows, parts.calibration).calibration(
        CalibrationOptions(risk_target=target, null_threshold=tau, smoothing_salt=SMOOTHING_SALT),
        table.patterns[0],
        PRICES,
    )
    evaluation = measured(table)
    assert evaluation.rows[ONE] == (72, 72, 36)
    for setting, runs in evaluation.cells.items():
        lambda_hat = calibration.lambda_hat(setting.alpha, setting.score)
        sets = calibration.sets(
            test.scores, test.fingerprints, lambda_hat, setting.score, test.neighbours
        )
        expected = set_metrics(sets.selected, sets.null_selected, test.labels)
        for field in fields(expected):
            assert runs[field.name] == [pytest.approx(getattr(expected, field.name))], setting
        assert runs["null"] == [pytest.approx(sets.null_selected.mean())]
        assert runs["cost"] == [pytest.approx((sets.selected @ np.array(PRICES)).mean())]


def test_random_sets_are_as_large_as_the_sets(files):
    """Random sets of the whole pool miss nothing; small ones miss more than the router's."""
    evaluation = measured(scored({ONE: files[ONE]}, splits=20, alphas=(0.005, 0.15)))
    full = Setting(scope=ONE, risk_target=RiskTarget.ANSWERABLE, score=Score.GAP, alpha=0.005)
    assert evaluation.mean(full, "size") == len(POOL)
    assert evaluation.cells[full]["random_miss"] == [0.0] * 20
    controls = evaluation.controls[ONE]
    assert evaluation.cells[full]["random_majority"] == controls["full pool majority"]
    small = replace(full, alpha=0.15)
    assert evaluation.mean(small, "size") < 1.7
    assert evaluation.mean(small, "random_miss") > evaluation.mean(small, "miss_given_answerable")


@pytest.mark.slow
def test_random_sets_hit_as_often_as_their_sizes_say(files):
    """K candidates, k drawn at random: G is missed with C(K - g, k) / C(K, k).

    Averaged over 60 splits within 0.03; sets one larger or smaller are off by 0.2.
    """
    one_right = tuple(row for row in files[ONE].rows if len(row.correct) == 1)
    rows = {ONE: replace(files[ONE], rows=one_right)}
    evaluation = measured(scored(rows, splits=60, alphas=(0.1, 0.2)))
    for alpha in (0.1, 0.2):
        setting = Setting(
            scope=ONE, risk_target=RiskTarget.ANSWERABLE, score=Score.COVER, alpha=alpha
        )
        expected = 1.0 - evaluation.mean(setting, "size") / len(POOL)
        assert evaluation.mean(setting, "random_miss") == pytest.approx(expected, abs=0.03)


def test_average_is_the_mean_over_benchmarks_in_every_split(files):
    """Each benchmark has the same weight at any size."""
    evaluation = measured(scored(files, splits=4, alphas=(0.1,)))
    assert evaluation.scopes == (ONE, TWO, AVERAGE)
    for setting, runs in evaluation.cells.items():
        if setting.scope == AVERAGE:
            parts = [evaluation.cells[replace(setting, scope=name)] for name in files]
            for name, values in runs.items():
                np.testing.assert_allclose(values, np.mean([p[name] for p in parts], axis=0))
    for name, values in evaluation.controls[AVERAGE].items():
        parts = [evaluation.controls[each][name] for each in files]
        np.testing.assert_allclose(values, np.mean(parts, axis=0))


def test_merged_calibration_has_the_rows_of_all(files):
    """One threshold for all benchmarks: one scope, all rows."""
    merged = measured(scored(files, splits=2, alphas=(0.1,), calibrated=CalibrationScope.MERGED))
    each = measured(scored(files, splits=2, alphas=(0.1,)))
    assert merged.scopes == (MERGED,)
    assert merged.rows[MERGED] == tuple(np.sum([each.rows[name] for name in files], axis=0))
    alone = measured(
        scored({ONE: files[ONE]}, splits=2, alphas=(0.1,), calibrated=CalibrationScope.MERGED)
    )
    assert alone.scopes == (ONE,)


def test_choices_are_made_per_split_target_and_score(files):
    """One alpha and one vote each; their numbers are those of the cell in that split."""
    evaluation = measured(scored({ONE: files[ONE]}, splits=3, alphas=ALPHAS))
    keys = [(each.risk_target, each.score) for each in evaluation.choices]
    assert sorted(keys) == sorted(
        [(t, s) for t in BINARY_TARGETS for s in evaluation.protocol.scores] * 3
    )
    for number, choice in enumerate(evaluation.choices):
        runs = evaluation.cells[
            Setting(
                scope=ONE, risk_target=choice.risk_target, score=choice.score, alpha=choice.alpha
            )
        ]
        run = number // (len(evaluation.choices) // 3)
        assert choice.accuracy == runs[f"accuracy_{choice.rule}"][run]
        assert choice.size == runs["size"][run]


def test_nothing_is_chosen_on_calibration_rows(files):
    """Other calibration labels move thresholds, and leave every choice as it was."""
    table = scored({ONE: files[ONE]}, splits=1, alphas=ALPHAS, seed=9)
    rng = np.random.default_rng(9)
    rows = split(table.benchmarks[ONE], table.protocol.of(ONE), rng).calibration
    labels = table.rows.labels.copy()
    labels[rows] = np.random.default_rng(1).random(labels[rows].shape) < 0.5
    other = replace(table, rows=replace(table.rows, labels=labels))
    one, two = measured(table), measured(other)
    assert [runs["size"] for runs in one.cells.values()] != [
        runs["size"] for runs in two.cells.values()
    ]
    found = [[(c.risk_target, c.score, c.alpha, c.rule) for c in each.choices]
             for each in (one, two)]  # fmt: skip
    assert found[0] == found[1]


def test_nothing_is_chosen_on_test_rows(files):
    """Other test labels leave every choice as it was: tau, patterns, temperature, alpha, vote."""
    table = scored({ONE: files[ONE]}, splits=1, alphas=ALPHAS, seed=9)
    rng = np.random.default_rng(9)
    test = split(table.benchmarks[ONE], table.protocol.of(ONE), rng).test
    labels = table.rows.labels.copy()
    labels[test] = np.random.default_rng(1).random(labels[test].shape) < 0.5
    other = replace(table, rows=replace(table.rows, labels=labels))
    found = [[(c.risk_target, c.score, c.alpha, c.rule) for c in measured(t).choices]
             for t in (table, other)]  # fmt: skip
    assert found[0] == found[1]


def hand_made(protocol, held_out_score, test_score):
    """One good candidate, and one that is always wrong, with given scores in each part.

    Of the calibration rows 85 % score the good one 0.9 and the others 0.5: with `prob` sets reach
    down to a score of 0.5 at alpha 0.1, and to 0.9 at alpha 0.2.
    """
    parts = split(np.arange(200), protocol.of(ONE), np.random.default_rng(protocol.seed))
    scores = np.tile([0.9, 0.0], (200, 1))
    scores[parts.calibration[:15], 0] = 0.5
    scores[parts.validation, 1] = held_out_score
    scores[parts.test, 1] = test_score
    labels = np.tile([True, False], (200, 1))
    return EvaluationTable(
        benchmarks={ONE: np.arange(200)},
        rows=ScoredRows(
            pool=("good", "bad"),
            fingerprints=tuple(number.to_bytes(16, "big") for number in range(200)),
            scores=scores,
            neighbours=None,
            labels=labels,
        ),
        patterns=(PatternModel.of(labels),),
        answers=RowAnswers(classes=np.tile(np.array([0, 1], dtype=np.int16), (200, 1))),
        stacked=None,
        n_train=10,
        copies=0,
        protocol=protocol,
    )


def test_equally_accurate_choices_are_not_ranked_by_their_size_on_test_rows():
    """Every vote is right at both alphas; only test rows tell which sets are smaller: the first."""
    protocol = Protocol(
        splits=1,
        alphas=(0.1, 0.2),
        scores=(Score.PROB,),
        risk_targets=(RiskTarget.ANSWERABLE,),
        false_abstain_budget=None,
        seed=3,
    )
    evaluation = measured(hand_made(protocol, 0.0, 0.6))
    on_test = [
        evaluation.mean(
            Setting(scope=ONE, risk_target=RiskTarget.ANSWERABLE, score=Score.PROB, alpha=each),
            "size",
        )
        for each in protocol.alphas
    ]
    assert on_test == [2.0, 1.0]
    (choice,) = evaluation.choices
    assert choice.accuracy == 1.0
    assert choice.alpha == 0.1


def opposed(protocol, mirrored):
    """Three candidates whose vote needs a small T on validation rows and a large one on test rows.

    The first has the highest score; the other two give one answer. Against them it wins the
    weighted vote at T <= 0.5 and loses it at 1. It alone is right on three in five validation rows,
    and the others are right on the test rows (``mirrored``: the other way round). On the remaining
    validation rows, and on all calibration rows, all answers differ and the candidate with the
    lowest score alone is right: every set of a test row, whose lowest score is less low, is the
    whole pool, and no vote is right.
    """
    parts = split(np.arange(200), protocol.of(ONE), np.random.default_rng(protocol.seed))
    first, others = ([True, False, False], [0, 1, 1]), ([False, True, True], [0, 1, 1])
    held_out, tested = (others, first) if mirrored else (first, others)
    labels, classes = np.tile([False, False, True], (200, 1)), np.tile([0, 1, 2], (200, 1))
    deciding = parts.validation[np.arange(len(parts.validation)) % 5 > 1]
    scores = np.tile([0.9, 0.5, 0.4], (200, 1))
    scores[parts.test, 2] = 0.45
    labels[deciding], classes[deciding] = held_out
    labels[parts.test], classes[parts.test] = tested
    return EvaluationTable(
        benchmarks={ONE: np.arange(200)},
        rows=ScoredRows(
            pool=("first", "second", "third"),
            fingerprints=tuple(number.to_bytes(16, "big") for number in range(200)),
            scores=scores,
            neighbours=None,
            labels=labels,
        ),
        patterns=(PatternModel.of(labels),),
        answers=RowAnswers(classes=classes.astype(np.int16)),
        stacked=None,
        n_train=10,
        copies=0,
        protocol=protocol,
    )


@pytest.mark.parametrize("mirrored", [False, True])
def test_votes_are_tuned_on_validation_rows_even_where_that_is_wrong_on_test_rows(mirrored):
    """The temperature of sets and of the full pool, and the full pool's rule: all votes fail.

    Tuned on test rows each of them would be right on every one. There is no chance in it.
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
    evaluation = measured(opposed(protocol, mirrored))
    (runs,) = evaluation.cells.values()
    assert runs["size"] == [3.0]
    assert runs["accuracy_weighted"] == [0.0]
    controls = evaluation.controls[ONE]
    assert controls["full pool weighted"] == [0.0]
    assert controls["full pool tuned"] == [0.0]
    by_rule = {controls[f"full pool {rule}"][0] for rule in ("majority", "log_odds")}
    assert 1.0 in by_rule or not mirrored  # a rule chosen on test rows would be right


def test_best_single_here_is_the_best_of_its_benchmark():
    """The first candidate is right on all of one benchmark, the second on all of the other."""
    protocol = Protocol(splits=2, alphas=(0.2,), scores=(Score.PROB,))
    table = hand_made(protocol, 0.0, 0.0)
    labels = np.repeat([[True, False], [False, True]], [120, 80], axis=0)
    table = replace(
        table,
        benchmarks={ONE: np.arange(120), TWO: np.arange(120, 200)},
        rows=replace(table.rows, labels=labels),
    )
    controls = measured(table).controls
    assert [controls[name]["best single"] for name in (ONE, TWO)] == [[1.0] * 2, [0.0] * 2]
    assert [controls[name]["best single here"] for name in (ONE, TWO)] == [[1.0] * 2] * 2
    assert controls[AVERAGE]["best single here"] == [1.0] * 2


@pytest.mark.parametrize(("alphas", "chosen"), [((0.05, 0.2), [0.2]), ((0.05,), [])])
def test_an_alpha_for_which_validation_rows_are_too_few_is_not_chosen(alphas, chosen):
    """Halves of ten rows: 0.05 takes 19. Its whole pools are as good as the sets at 0.2."""
    protocol = Protocol(
        splits=1,
        alphas=alphas,
        scores=(Score.PROB,),
        risk_targets=(RiskTarget.ANSWERABLE,),
        false_abstain_budget=None,
        seed=3,
    )
    evaluation = measured(hand_made(protocol, 0.9, 0.5))
    assert [choice.alpha for choice in evaluation.choices] == chosen
    assert all("accuracy_weighted" in runs for runs in evaluation.cells.values())


def test_infeasible_splits_are_counted_and_not_asserted():
    """The splits in which alpha is below 1/(n + 1), where n is the answerable calibration rows."""
    rows = {ONE: single_candidate(60, 0.5)}
    evaluation = measured(scored(rows, splits=30, alphas=(0.1, 0.3), scores=(Score.PROB,)))
    for setting, runs in evaluation.cells.items():
        too_few = [n + 1 < 1 / setting.alpha for n in runs["calibration_rows"]]
        assert evaluation.infeasible(setting) == sum(too_few)
    setting = Setting(scope=ONE, risk_target=RiskTarget.ANSWERABLE, score=Score.PROB, alpha=0.1)
    assert 0 < evaluation.infeasible(setting) < 30
    assert evaluation.infeasible(replace(setting, alpha=0.3)) == 0
    bound = Assertion.parse("risk<=alpha")
    settings = "in 3 settings, the closest.*; 1 settings with infeasible splits were left out"
    with_alpha = re.compile(f"asserted: risk<=alpha {settings}")
    assert with_alpha.match(bound.check(evaluation))
    alone = replace(evaluation, cells={setting: evaluation.cells[setting]})
    with pytest.raises(AssertionRefuted, match="not asserted of any setting"):
        bound.check(alone)


def test_copies_with_different_labels_are_kept_and_counted(files):
    """Sampled answers to one query are right one time and wrong the next."""
    row = files[ONE].rows[7]
    wrong = replace(row, correct=frozenset(POOL) - row.correct)
    both = {ONE: files[ONE], TWO: replace(files[TWO], rows=(*files[TWO].rows, row, wrong))}
    table = scored(both)
    assert table.copies == 2
    assert table.n_train + len(table.rows.labels) == sum(map(len, both.values()))


@pytest.mark.parametrize("share", ["train", "calibration", "validation"])
@pytest.mark.parametrize("value", [float("nan"), 0.0, 1.0, -0.1, float("inf")])
def test_shares_that_are_none_are_refused(share, value):
    """NaN compares as neither too small nor too large."""
    with pytest.raises(InputError, match="shares"):
        Shares(**{share: value})


def single_candidate(count, share):
    """One candidate that is right on a share of the rows."""
    right = np.random.default_rng(6).random(count) < share
    rows = tuple(
        LabelledRow(
            query=f"question {number} of many",
            correct=frozenset(["only"] if good else []),
            answers={"only": "yes"},
        )
        for number, good in enumerate(right)
    )
    return LabelledRows(pool=("only",), rows=rows)


def test_a_pool_of_one_candidate_is_measured():
    """There is nothing to route; every vote is its answer, and random sets are the sets."""
    evaluation = measured(scored({ONE: single_candidate(120, 0.6)}, splits=3, alphas=(0.1,)))
    for runs in evaluation.cells.values():
        assert runs["random_miss"] == runs["miss_given_answerable"]
        assert runs["accuracy_majority"] == runs["random_majority"]
    assert evaluation.controls[ONE]["full pool majority"] == evaluation.controls[ONE]["best single"]


def test_few_validation_rows_are_no_error():
    """One or two validation rows, at times without any right candidate: everything is measured."""
    evaluation = measured(scored({ONE: single_candidate(30, 0.3)}, splits=20, alphas=(0.1,)))
    assert evaluation.rows[ONE] == (9, 2, 7)
    assert all(len(runs["size"]) == 20 for runs in evaluation.cells.values())


@pytest.mark.parametrize("calibrated", list(CalibrationScope))
def test_the_same_seed_gives_the_same_numbers(files, calibrated):
    """To the last digit; another seed gives others."""
    options = {"splits": 2, "alphas": (0.1,), "calibrated": calibrated}
    first, second, other = (measured(scored(files, seed=seed, **options)) for seed in (3, 3, 4))
    assert first.as_json() == second.as_json()
    assert first.as_json() != other.as_json()


def test_order_by_group_is_the_fixed_order_of_the_groups_own_training_rows(files):
    """By hand: candidates in the order of the mass that they add among the group's patterns.

    Every row of a group has the same scores; the two benchmarks have different orders.
    """
    first_right, last_right = (frozenset([POOL[0]]), frozenset([POOL[-1]]))
    rows = {
        name: replace(
            files[name],
            rows=tuple(
                replace(row, correct=right if number % 10 else other)
                for number, row in enumerate(files[name].rows)
            ),
        )
        for name, right, other in (
            (ONE, first_right, last_right),
            (TWO, last_right, first_right),
        )
    }
    table = scored(rows)
    fit = table.nonconformity(RiskTarget.ANSWERABLE, Control.STATIC_BY_GROUP, 0)
    assert fit.shape == (len(table.rows.labels), len(POOL))
    for name, first, second in ((ONE, 0, len(POOL) - 1), (TWO, len(POOL) - 1, 0)):
        own = np.floor(fit[table.benchmarks[name]] / 1e-6) * 1e-6  # without the noise
        assert (np.abs(own - own[0]) < 2e-6).all()
        assert own[0][first] == 0.0
        assert 0.7 < own[0][second] < 0.9  # 0.9, drawn towards the other benchmark's share
        assert own[0].argsort(kind="stable")[:2].tolist() == [first, second]
    setting = Setting(
        scope=AVERAGE,
        risk_target=RiskTarget.ANSWERABLE,
        score=Control.STATIC_BY_GROUP,
        alpha=0.2,
    )
    evaluation = measured(replace(table, protocol=Protocol(splits=4, alphas=(0.2,))))
    assert evaluation.mean(setting, "size") == 1.0
    assert evaluation.mean(setting, "miss_given_answerable") == pytest.approx(0.1, abs=0.04)


def test_groups_of_rows_have_orders_of_their_own(files):
    """One benchmark whose rows name groups; without groups the control says nothing new."""
    plain = scored({ONE: files[ONE]})
    assert plain.groups is None
    assert Control.STATIC_BY_GROUP not in plain.orders
    assert (
        Control.STATIC_BY_GROUP
        not in measured(replace(plain, protocol=Protocol(splits=1, alphas=(0.2,)))).protocol.scores
    )
    rows = tuple(
        replace(row, group="odd" if number % 2 else None)
        for number, row in enumerate(files[ONE].rows)
    )
    tasks = tuple(
        replace(row, task="odd" if number % 2 else "even")
        for number, row in enumerate(files[ONE].rows)
    )
    for named in (rows, tasks):
        grouped = scored({ONE: replace(files[ONE], rows=named)})
        assert grouped.orders == Protocol().scores
        assert sorted(set(grouped.groups.of.tolist())) == [0, 1]


def test_group_without_training_rows_has_the_overall_order():
    """The weights are drawn towards the overall shares: nothing else is known of that group."""
    labels = np.array([[True, False], [True, False], [False, True]])
    model = PatternModel.of(labels)
    orders = GroupOrders.fit(model, labels, np.array([4, 4, 5]), np.array([9, 5]))
    assert orders.of.tolist() == [2, 1]
    np.testing.assert_allclose(orders.weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(orders.weights[2], model.frequencies)
    right_second = int(np.flatnonzero(model.patterns[:, 1])[0])
    assert orders.weights[1, right_second] == pytest.approx((1 + 20 / 3) / 21)


def test_every_division_trains_on_rows_of_its_own(files):
    """Splits are shared among the divisions, and their spread holds the training rows' luck."""
    protocol = Protocol(splits=5, divisions=2, alphas=(0.2,))
    assert [protocol.splits_of(each) for each in range(2)] == [3, 2]
    tables = [
        build_table(
            {ONE: files[ONE]},
            encoder=CharNgramEncoder(),
            router="knn",
            protocol=protocol,
            division=division,
        )
        for division in range(2)
    ]
    first, second = tables
    assert set(first.rows.fingerprints) != set(second.rows.fingerprints)
    both = evaluate(*tables, encoder="char-ngrams", router="knn")
    for runs in both.cells.values():
        assert len(runs["size"]) == 5
    alone = evaluate(
        replace(tables[0], protocol=replace(protocol, splits=3, divisions=1)),
        encoder="char-ngrams",
        router="knn",
    )
    for setting, runs in alone.cells.items():
        assert both.cells[setting]["size"][:3] == runs["size"]
    wrong = np.zeros_like(second.rows.labels)
    unlike = replace(second, rows=replace(second.rows, labels=wrong))
    controls = evaluate(first, unlike, encoder="char-ngrams", router="knn").controls[ONE]
    assert [share > 0.0 for share in controls["answerable"]] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("divisions", [0, 6])
def test_divisions_without_a_split_are_refused(divisions):
    """Five splits cannot be shared by six divisions."""
    with pytest.raises(InputError, match=f"{divisions} divisions of 5 splits"):
        Protocol(splits=5, divisions=divisions)
