"""`evaluate` under the risk target quality: grades, their shortfall, and the bound on its mean."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from racer_core.aggregation.rule import AnswerRule
from racer_core.calibration.null_threshold import choose_null_threshold
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import AssertionRefuted, InputError, RowsError
from racer_core.offline.assertions import FALSE_ALARM, Assertion
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import SHORTFALL, Setting
from racer_core.offline.paired import shortfall_adjusted_costs
from racer_core.offline.protocol import Protocol, Shares, split_benchmarks
from racer_core.offline.table import build_table
from racer_core.offline.tune import check_rows, tune
from racer_core.types import RiskTarget, Score
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import POOL, synthetic_rows

stats = LazyModule("scipy.stats")

pytestmark = pytest.mark.slow

ONE, TWO = "one", "two"
ALPHAS = (0.001, 0.03, 0.1, 0.25)
SCORES = (Score.GAP, Score.COVER, Score.STATIC)
BOUND = Assertion.parse("risk<=alpha")


def graded(rows, seed, *, places=2):
    """The rows with a grade of each answer, higher where it was right."""
    rng = np.random.default_rng(seed)

    def of(row):
        right = np.array([name in row.correct for name in POOL])
        quality = np.round(np.clip(0.35 + 0.4 * right + rng.normal(0, 0.15, 3), 0, 1), places)
        correct = frozenset(n for n, q in zip(POOL, quality, strict=True) if q >= 0.5)
        return replace(row, quality=tuple(map(float, quality)), correct=correct)

    return replace(rows, rows=tuple(map(of, rows.rows)))


def scored(files, **options):
    """A table of graded files."""
    wanted = {"risk_targets": ("quality",), "alphas": ALPHAS, "scores": SCORES, **options}
    return build_table(files, encoder=CharNgramEncoder(), router="knn", protocol=Protocol(**wanted))


@pytest.fixture(scope="module")
def files():
    """Two graded benchmarks with answers."""
    return {
        ONE: graded(synthetic_rows(160, seed=31, answers=True), 1),
        TWO: graded(synthetic_rows(120, seed=32, answers=True), 2),
    }


@pytest.fixture(scope="module")
def table(files):
    """Their table; no row abstains, and there is one setting of the patterns."""
    table = scored(files, splits=4, seed=3, false_abstain_budget=None)
    return replace(table, patterns=table.patterns[:1])


@pytest.fixture(scope="module")
def evaluation(table):
    """Its evaluation."""
    return evaluate(table, encoder="char-ngrams", router="knn")


def lost(fit, quality, threshold):
    """The shortfall of one row at a threshold, as a fraction."""
    grades = [Fraction(f"{q:.6f}") for q in quality]
    called = [g for g, s in zip(grades, fit, strict=True) if s <= threshold]
    return max(grades) - max(called, default=Fraction(0))


def by_definition(fit, quality, alpha):
    """The smallest score with (sum of losses + 1) / (n + 1) <= alpha; None if there is none."""
    for threshold in sorted({float(s) for row in fit for s in row}):
        total = sum(lost(f, q, threshold) for f, q in zip(fit, quality, strict=True))
        if float((total + 1) / (len(fit) + 1)) <= alpha:
            return threshold
    return None


def test_every_split_is_measured_as_the_definitions_say(table, evaluation):
    """By hand with fractions: thresholds on calibration rows, shortfall and size of test rows."""
    protocol, rows = table.protocol, table.rows
    rng = np.random.default_rng(protocol.seed)
    infeasible = 0
    for split in range(protocol.splits):
        for scope, part in split_benchmarks(
            table.benchmarks, rows.split_units, protocol, rng
        ).items():
            rng.random((len(part.test), len(POOL)))  # the random sets
            for score in SCORES:
                fit = table.nonconformity(RiskTarget.QUALITY, score, 0)
                for alpha in ALPHAS:
                    threshold = by_definition(
                        fit[part.calibration], rows.quality[part.calibration], alpha
                    )
                    infeasible += threshold is None
                    at = np.inf if threshold is None else threshold
                    losses = [lost(fit[i], rows.quality[i], at) for i in part.test]
                    setting = Setting(scope=scope, risk_target="quality", score=score, alpha=alpha)
                    cell = evaluation.cells[setting]
                    assert cell[SHORTFALL][split] == pytest.approx(float(sum(losses)) / len(losses))
                    assert cell["size"][split] == pytest.approx(
                        (fit[part.test] <= at).sum(axis=1).mean()
                    )
                    assert cell["infeasible"][split] == (threshold is None)
            for column, name in enumerate(POOL):
                runs = evaluation.controls[scope][f"candidate {name}"]
                assert runs[split] == pytest.approx(rows.quality[part.test][:, column].mean())
            whole = evaluation.controls[scope]["full pool best"][split]
            assert whole == pytest.approx(rows.quality[part.test].max(axis=1).mean())
    assert 0 < infeasible < protocol.splits * 2 * len(SCORES) * len(ALPHAS)


def test_rows_that_abstain_fall_short_by_their_whole_best():
    """As a calibration serves them: tau by validation rows, a threshold by calibration rows."""
    shares = Shares(calibration=0.4, validation=0.4)
    rows = {ONE: graded(synthetic_rows(300, seed=31), 1)}
    table = scored(rows, splits=1, shares=shares, false_abstain_budget=0.3, seed=5)
    table = replace(table, patterns=table.patterns[:1])
    evaluation = evaluate(table, encoder="char-ngrams", router="knn")
    rng = np.random.default_rng(5)
    ((_, part),) = split_benchmarks(
        table.benchmarks, table.rows.split_units, table.protocol, rng
    ).items()
    held_out, test = table.rows.at(part.validation), table.rows.at(part.test)
    tau = choose_null_threshold(held_out.scores, held_out.labels, 0.3)
    options = CalibrationOptions(
        risk_target="quality", null_threshold=tau, smoothing_salt=SMOOTHING_SALT
    )
    calibration = table.rows.at(part.calibration).calibration(options, table.patterns[0])
    abstained = 0
    for setting, runs in evaluation.cells.items():
        lambda_hat = calibration.lambda_hat(setting.alpha, setting.score)
        sets = calibration.sets(
            test.scores, test.fingerprints, lambda_hat, setting.score, test.neighbours
        )
        called = np.where(sets.selected, test.quality, 0.0).max(axis=1)
        expected = (test.quality.max(axis=1) - called).mean()
        assert runs[SHORTFALL] == [pytest.approx(expected)], setting
        assert runs["size"] == [pytest.approx(sets.selected.sum(axis=1).mean())], setting
        abstained += sets.null_abstained.sum()
    assert abstained > 0


def test_the_mean_risk_is_at_most_alpha_and_its_assertion_says_so(files):
    """100 splits of two benchmarks; and it fails beside thresholds for three times the alpha."""
    evaluation = evaluate(scored(files, splits=100), encoder="char-ngrams", router="knn")
    assert BOUND.check(evaluation).startswith("asserted: risk<=alpha in")
    looser = {
        replace(setting, alpha=setting.alpha / 3): runs
        for setting, runs in evaluation.cells.items()
    }
    protocol = replace(evaluation.protocol, alphas=tuple(each / 3 for each in ALPHAS))
    with pytest.raises(AssertionRefuted, match="risk<=alpha is false"):
        BOUND.check(replace(evaluation, cells=looser, protocol=protocol))


@pytest.mark.parametrize(("share", "is_refuted"), [(0.98, True), (1.02, False)])
def test_the_limit_is_that_of_student_s_one_sided_test(evaluation, share, is_refuted):
    """One setting whose p-value by scipy is next to 0.01 over the settings; red where it scales."""
    feasible = [each for each in evaluation.cells if not evaluation.infeasible(each)]
    p_value = share * FALSE_ALARM / len(feasible)
    spread = np.array([-0.03, -0.01, 0.0, 0.04])
    excess = stats.t.isf(p_value, len(spread) - 1) * spread.std(ddof=1) / np.sqrt(len(spread))
    beyond = 0.25 + spread + excess
    assert stats.ttest_1samp(beyond, 0.25, alternative="greater").pvalue == pytest.approx(p_value)
    one = next(each for each in feasible if (each.scope, each.alpha) == (ONE, 0.25))
    cells = {
        each: runs | {SHORTFALL: (beyond if each == one else spread).tolist()}
        for each, runs in evaluation.cells.items()
    }
    drawn = replace(evaluation, cells=cells)
    if is_refuted:
        with pytest.raises(AssertionRefuted, match=f"false in 1 of {len(feasible)} settings"):
            BOUND.check(drawn)
    else:
        assert BOUND.check(drawn).startswith("asserted: risk<=alpha")


def test_the_best_single_candidate_is_the_one_with_the_best_grades(files):
    """A candidate that is right most often, but seldom better than passable, is not."""
    steady, brilliant = (0.5, 0.5, 0.0), (0.5, 1.0, 0.0)
    rows = {
        ONE: replace(
            files[ONE],
            rows=tuple(
                replace(
                    row,
                    quality=brilliant if number % 4 else (0.5, 0.4, 0.0),
                    correct=frozenset(POOL[:2] if number % 4 else POOL[:1]),
                )
                for number, row in enumerate(files[ONE].rows)
            ),
        )
    }
    assert steady[0] == brilliant[0]
    table = scored(rows, splits=2)
    assert POOL[table.best_overall] == POOL[1]
    assert POOL[table.best_on(ONE)] == POOL[1]
    assert POOL[int(table.rows.labels.mean(axis=0).argmax())] == POOL[0]


def test_rows_without_grades_and_other_targets_beside_it_are_refused(files):
    """Before anything is embedded; the message says which rows, and what to do."""
    rows = files[ONE].rows
    some = replace(files[ONE], rows=(replace(rows[0], quality=None), *rows[1:]))
    with pytest.raises(RowsError, match="1 of 160 rows have no `quality`: grade every candidate"):
        scored({ONE: some})
    with pytest.raises(InputError, match="risk target quality is measured alone"):
        Protocol(risk_targets=("quality", "answerable"))


@pytest.fixture(scope="module")
def validation():
    """Graded rows without answers."""
    return graded(synthetic_rows(240, seed=51), 3)


def test_tuning_measures_the_best_called_candidate(racer, validation):
    """By hand: each half at the threshold of the other, with the calibration of the gateway."""
    tuned = tune(
        racer,
        validation,
        rule=AnswerRule(equality="exact"),
        risk_target="quality",
        alphas=(0.002, 0.05, 0.2),
    )
    assert [trial.alpha for trial in tuned.trials] == [0.05, 0.2]  # 120 rows are too few for 0.002
    quality = validation.quality(POOL)
    for trial in tuned.trials:
        assert (trial.rule, trial.weight) == (None, None)
        sizes, best = np.zeros(240), np.zeros(240)
        halves = slice(0, None, 2), slice(1, None, 2)
        for own, other in (halves, halves[::-1]):
            options = CalibrationOptions(
                alpha=trial.alpha,
                score=trial.score,
                risk_target="quality",
                null_threshold=racer.artifact.null_threshold,
                smoothing_salt=SMOOTHING_SALT,
            )
            calibration = racer.calibrate(
                replace(validation, rows=validation.rows[other]), options=options
            )
            queries = [row.query for row in validation.rows[own]]
            decisions = racer.route_batch(queries, calibration)
            sizes[own] = [len(each.selected) for each in decisions]
            best[own] = [
                max((grades[POOL.index(name)] for name in each.selected), default=0.0)
                for each, grades in zip(decisions, quality[own], strict=True)
            ]
        assert trial.size == pytest.approx(sizes.mean())
        assert trial.accuracy == pytest.approx(best.mean())
        assert trial.se == pytest.approx(best.std(ddof=1) / np.sqrt(240))
    assert tuned.chosen in tuned.trials
    least = max(each.accuracy for each in tuned.trials) - tuned.slack
    good = [each for each in tuned.trials if each.accuracy >= least]
    assert tuned.chosen == min(good, key=lambda each: each.size)


def test_tuning_refuses_rows_without_grades_or_too_few(racer, validation):
    """One row without a grade; 99 rows."""
    some = replace(
        validation, rows=(replace(validation.rows[0], quality=None), *validation.rows[1:])
    )
    with pytest.raises(RowsError, match="1 of 240 rows have no `quality`"):
        check_rows(racer, some, RiskTarget.QUALITY)
    few = replace(validation, rows=validation.rows[:99])
    with pytest.raises(RowsError, match="99 graded rows are too few to tune on"):
        check_rows(racer, few, RiskTarget.QUALITY)


def test_variance_of_costs_is_that_of_the_mean_cost_over_graded_samples():
    """The influence function by simulation; the plain sizes understate it."""
    rng, calls = np.random.default_rng(3), np.ones(4)
    means, predicted = [], []
    for _ in range(400):
        latent = rng.normal(size=(200, 1)) + rng.normal(size=(200, 4))
        quality = 1.0 / (1.0 + np.exp(-latent))
        fit = -(latent + rng.normal(size=latent.shape))
        adjusted = shortfall_adjusted_costs(fit, quality, 0.1, calls)
        means.append(adjusted.mean())
        predicted.append(adjusted.var() / len(adjusted))
    assert np.mean(predicted) == pytest.approx(np.var(means), rel=0.3)
