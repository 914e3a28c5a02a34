"""Calibration of arrays: the served defaults, the exact law, groups, tables and figures."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

import racer_core as rc
from racer_core.errors import InputError, install_hint
from racer_core.notebook.evaluate import risk_interval
from racer_core.types import Score
from tests.core.kinds import Kinds
from tests.core.laws import assert_at_most
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import POOL, synthetic_rows

pandas = LazyModule("pandas")
pyplot = LazyModule("matplotlib.pyplot")


def table_of(count, seed, candidates=3):
    """Random scores, and candidates that are right as often as their scores say."""
    rng = np.random.default_rng(seed)
    scores = rng.random((count, candidates))
    return scores, rng.random((count, candidates)) < scores


def test_defaults_are_those_that_a_gateway_serves_with(racer):
    """Trained, tuned and calibrated on the same rows, both have the same thresholds and sets.

    Ties go by the query in a gateway, and by the scores in a notebook that knows no query.
    """
    training, validation = synthetic_rows(300, seed=1), synthetic_rows(150, seed=2)
    rows, new = synthetic_rows(300, seed=21), synthetic_rows(200, seed=22)
    router = rc.EmbeddingRouter(encoder=rc.CharNgramEncoder())
    router.fit(training.queries, training.labels())
    mine = rc.calibrate(
        router.predict(rows.queries),
        rows.labels(),
        alpha=0.1,
        validation=(router.predict(validation.queries), validation.labels()),
        pool=POOL,
    )
    served = racer.calibrate(rows, alpha=0.1)
    assert served.options.null_threshold is not None
    assert mine.options == served.options
    assert mine.n == served.n
    for alpha in (0.02, 0.05, 0.1, 0.3):
        assert mine.lambda_hat(alpha) == pytest.approx(served.lambda_hat(alpha), abs=1e-6)
    mine = replace(mine, fingerprints=served.fingerprints)
    prints = tuple(map(racer.fingerprint, new.queries))
    for alpha in (0.02, 0.05, 0.1, 0.3):
        assert mine.lambda_hat(alpha) == served.lambda_hat(alpha)
        sets = mine.predict(router.predict(new.queries), alpha=alpha, fingerprints=prints)
        decisions = racer.route_batch(new.queries, served, alpha=alpha)
        assert [{POOL[i] for i in np.flatnonzero(row)} for row in sets] == [
            set(decision.selected) for decision in decisions
        ]
    assert not sets.any(axis=1).all(), "some queries abstain"
    again = mine.predict(racer.score(new.queries), alpha=0.3, fingerprints=prints)
    np.testing.assert_array_equal(again, sets)


def test_scores_alone_get_gap_and_patterns_get_cover():
    """Patterns come from the router's output, from labels of training rows or from a model."""
    scores, correct = table_of(200, 0)
    assert rc.calibrate(scores, correct).options.score == "gap"
    trained = table_of(100, 1)[1]
    by_labels = rc.calibrate(scores, correct, patterns=trained)
    by_model = rc.calibrate(scores, correct, patterns=rc.PatternModel.of(trained))
    assert by_labels.options.score == "cover"
    assert by_labels.lambda_hat() == by_model.lambda_hat()
    static = rc.calibrate(scores, correct, patterns=trained, score="static", target="paper")
    assert static.options.score is Score.STATIC
    assert static.n == 200


def test_each_group_has_its_own_bound():
    """Groups that differ: with common thresholds the hard one misses twice as often as alpha."""
    world = Kinds(7)
    calibration_rows, test = world.draw(1_500), world.draw(3_000)
    calibration = rc.calibrate(
        calibration_rows, calibration_rows.labels, patterns=world.patterns,
        groups=calibration_rows.groups.tolist(),
    )  # fmt: skip
    groups = test.groups.tolist()
    for name in sorted(set(groups)):
        sets = calibration.predict(test, groups=groups)
        part = [each == name and any(row) for each, row in zip(groups, test.labels, strict=True)]
        own = calibration.group(name)
        missed = ~(sets & test.labels)[part].any(axis=1)
        bound = own.realised_risk(0.1).upper(1e-7)
        assert_at_most(int(missed.sum()), len(missed), bound, 1e-6)
        np.testing.assert_array_equal(
            sets[np.array(groups) == name], own.predict(test[np.array(groups) == name])
        )
    unknown = calibration.predict(test[:5], groups=["elsewhere"] * 5)
    assert unknown.all(), "no rows, no finite threshold"


@pytest.mark.parametrize(
    ("scores", "correct", "options", "message"),
    [
        (np.ones((3, 2)), np.ones((3, 3)), {}, "the shape"),
        (np.ones((3, 2)), [[1, 2]] * 3, {}, "True and False"),
        (np.ones((3, 2)), [[1, np.nan]] * 3, {}, "True and False"),
        (np.full((3, 2), np.nan), np.ones((3, 2)), {}, "NaN or outside"),
        (np.ones(3), np.ones(3), {}, "shape"),
        (np.ones((3, 2)), np.ones((3, 2)), {"score": "best"}, "cover_cost"),
        (np.ones((3, 2)), np.ones((3, 2)), {"target": "none"}, "paper, answerable, quality"),
        (np.ones((3, 2)), np.ones((3, 2)), {"score": "cover"}, "not offered"),
        (np.ones((3, 2)), np.zeros((3, 2)), {}, "nothing to calibrate on"),
        (np.ones((3, 2)), np.ones((3, 2)), {"alpha": 10}, "alpha"),
        (np.ones((3, 2)), np.ones((3, 2)), {"pool": ["a"]}, "must both be"),
    ],
)
def test_wrong_arrays_are_refused(scores, correct, options, message):
    """Before a threshold is computed, and in words."""
    with pytest.raises(rc.RacerError, match=message):
        rc.calibrate(scores, correct, **options)


def test_wrong_queries_are_refused():
    """Another number of candidates or groups, or smoothing without the queries' names."""
    calibration = rc.calibrate(*table_of(100, 2))
    with pytest.raises(rc.InputError, match="pool of 3"):
        calibration.predict(np.ones((4, 2)))
    with pytest.raises(rc.InputError, match="3 groups for 4"):
        calibration.predict(np.ones((4, 3)), groups=["a"] * 3)
    with pytest.raises(rc.InputError, match="score is 'best'"):
        calibration.predict(np.ones((4, 3)), score="best")


def test_a_router_is_fitted_and_refused_as_scikit_learn_does_it():
    """``fit`` returns the router, and ``predict`` before it is an error."""
    X = np.random.default_rng(3).normal(size=(60, 5))
    y = np.random.default_rng(4).random((60, 2)) < 0.5
    router = rc.EmbeddingRouter(options={"k": 3}, seed=1)
    with pytest.raises(rc.InputError, match="not fitted"):
        router.predict(X)
    assert router.fit(X, y) is router
    nearest = ((X / np.linalg.norm(X, axis=1)[:, None]) @ (X[0] / np.linalg.norm(X[0]))).argsort()
    assert np.asarray(router.predict(X))[0] == pytest.approx(y[nearest[-3:]].mean(axis=0), abs=1e-6)
    with pytest.raises(rc.InputError, match="4 columns"):
        router.fit(X, y).predict(X[:, :4])
    with pytest.raises(rc.InputError, match="texts need an encoder"):
        router.fit(["a"] * 60, y)
    with pytest.raises(rc.InputError, match="does not fit 60"):
        router.fit(X, y[:10])
    with pytest.raises(rc.InputError, match="neighbours"):
        rc.EmbeddingRouter(options={"neighbours": 3}).fit(X, y)
    with pytest.raises(rc.InputError, match="knn, mlp"):
        rc.EmbeddingRouter("routerdc")


def test_a_router_is_cloned_unfitted():
    """By scikit-learn: the clone has equal parameters, and learns the same."""
    clone = pytest.importorskip("sklearn.base").clone
    X, y = np.random.default_rng(7).normal(size=(60, 5)), table_of(60, 7)[1]
    router = rc.EmbeddingRouter(options={"k": 3}, seed=1).fit(X, y)
    new = clone(router)
    assert new.get_params() == router.get_params()
    assert new.get_params() == {"kind": "knn", "encoder": None, "options": {"k": 3}, "seed": 1}
    with pytest.raises(rc.InputError, match="not fitted"):
        new.predict(X)
    np.testing.assert_array_equal(new.fit(X, y).predict(X), router.predict(X))
    with pytest.raises(rc.InputError, match="unknown parameters k: "):
        router.set_params(seed=5, k=3)
    assert router.get_params() == new.get_params()


@pytest.mark.parametrize(
    "options", [{}, {"target": "paper"}, {"r": 2}, {"null_threshold": 0.4}, {"score": "static"}]
)
def test_a_table_counts_the_losses_that_were_calibrated(options):
    """On the calibration rows themselves the risk is at most the misses that alpha allows, by n."""
    scores, correct = table_of(400, 8)
    calibration = rc.calibrate(scores, correct, patterns=table_of(100, 9)[1], **options)
    table = rc.evaluate(calibration, scores, correct, alphas=(0.1, 0.2, 0.3))
    for row in table:
        ascending = calibration.row_critical_scores
        expected = np.count_nonzero(ascending > row["lambda_hat"]) / len(ascending)
        if np.isinf(row["lambda_hat"]):
            assert row["size"] == 3
        assert row["risk"] == expected
        assert row["risk_low"] <= row["risk"] <= row["risk_high"]
        assert row["n"] == calibration.n
        assert row["calls_saved"] == 1 - row["size"] / 3
    sets = calibration.predict(scores, alpha=0.3)
    assert table["size"][-1] == sets.sum(axis=1).mean()
    assert table["abstain"][-1] == (~sets.any(axis=1)).mean()


def test_qualities_and_weights_are_calibrated_and_measured():
    """The mean shortfall on the calibration rows is at most alpha; equal weights change nothing."""
    scores, _ = table_of(500, 12)
    quality = np.round(np.random.default_rng(13).random((500, 3)) * scores, 3)
    graded = rc.calibrate(scores, quality >= 0.5, target="quality", quality=quality, score="prob")
    assert graded.n == 500
    table = rc.evaluate(graded, scores, quality >= 0.5, alphas=(0.05, 0.1), quality=quality)
    for row in table:
        sets = graded.predict(scores, alpha=row["alpha"])
        short = quality.max(axis=1) - np.where(sets, quality, 0).max(axis=1)
        assert row["risk"] == pytest.approx(short.mean())
        assert row["risk_low"] <= row["risk"] <= row["alpha"] <= row["risk_high"]
    with pytest.raises(rc.InputError, match="give `quality`"):
        rc.evaluate(graded, scores, quality >= 0.5)
    scores, correct = table_of(500, 14)
    equal = rc.calibrate(scores, correct, weights=np.full(500, 2.0), max_weight=2.0)
    assert equal.lambda_hat() == rc.calibrate(scores, correct).lambda_hat()
    assert equal.certify().weights == "known"


def test_rows_that_promise_nothing_are_refused_as_by_the_gateway():
    """No quality above 0, weights that leave one row, weights without their bound."""
    scores, correct = table_of(200, 15)
    heavy = np.where(np.arange(200) == np.flatnonzero(correct.any(axis=1))[0], 1e6, 1.0)
    for options, message in (
        ({"target": "quality", "quality": np.zeros((200, 3))}, "no row has a quality above 0"),
        ({"weights": heavy, "max_weight": 1e6}, r"the weights leave 1\.0 effective rows"),
        ({"weights": np.where(np.arange(200) < 9, 2.0, 1.0)}, "need max_weight"),
    ):
        with pytest.raises(rc.CalibrationError, match=message):
            rc.calibrate(scores, correct, **options)


def test_a_table_is_plain_values():
    """For a data frame, by rows and by columns; as text it shows the main columns."""
    scores, correct = table_of(300, 10)
    groups = ["even" if i % 2 == 0 else "odd" for i in range(300)]
    calibration = rc.calibrate(
        scores, correct, groups=groups, patterns=correct[:50], prices=[1, 2, 3]
    )
    table = rc.evaluate(
        calibration, scores, correct, alphas=(0.1, 0.2), score=("cover", "gap"), groups=groups
    )
    assert len(table) == 8
    frame = pandas.DataFrame(list(table))
    assert frame.equals(pandas.DataFrame(table.to_dict()))
    assert list(frame.columns) == list(table.columns)
    assert frame["group"].tolist() == ["even"] * 4 + ["odd"] * 4
    assert table.where(group="odd", score="gap")["alpha"] == [0.1, 0.2]
    lines = str(table).splitlines()
    assert lines[0].split()[:3] == ["group", "score", "alpha"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(("count", "rate"), [(12, 0.3), (40, 0.1), (40, 0.02)])
def test_intervals_over_clusters_cover_the_risk(count, rate):
    """Of 400 draws of clusters of ten alike rows at least 92 % are covered, by rows below 75 %.

    A coverage of 95 % gives fewer than 368 with a chance below 1 %; the seed is fixed. At a rate
    of 0.02 some draws have a loss in one cluster alone.
    """
    rng = np.random.default_rng(41)
    units = np.repeat(np.arange(count), 10)
    by_clusters = by_rows = 0
    for _ in range(400):
        chance = rng.beta(rate, 1 - rate, count)  # intraclass correlation 0.5
        losses = rng.random(10 * count) < chance[units]
        _, low, high = risk_interval(losses, units)
        by_clusters += low <= rate <= high
        _, low, high = risk_interval(losses, None)
        by_rows += low <= rate <= high
    assert by_clusters >= 368
    assert by_rows < 300


def test_a_table_has_the_band_over_all_alphas():
    """The calibration's own, for each score; None where graded rows have no exact law."""
    scores, correct = table_of(300, 42)
    calibration = rc.calibrate(scores, correct)
    table = rc.evaluate(calibration, scores, correct, alphas=(0.001, 0.1), score=("gap", "prob"))
    assert table["risk_band"] == [
        calibration.risk_band(alpha, Score(name))
        for name in ("gap", "prob")
        for alpha in (0.001, 0.1)
    ]
    assert table["risk_band"][0] == 0.0 < table["risk_band"][1]
    quality = np.round(scores, 3)
    graded = rc.calibrate(scores, correct, target="quality", quality=quality, score="prob")
    of_grades = rc.evaluate(graded, scores, correct, alphas=(0.1, 0.2), quality=quality)
    assert of_grades["risk_band"] == [None, None]
    axes = rc.plot_risk(of_grades)
    try:
        assert [line.get_linestyle() for line in axes.get_lines()].count(":") == 0
    finally:
        pyplot.close("all")


def test_route_batch_takes_a_score_and_a_group(racer):
    """As ``decide`` on the group's rows; a group without rows calls the whole pool."""
    rows, queries = synthetic_rows(300, seed=31), synthetic_rows(20, seed=32).queries
    labels, output = rows.labels(), racer.score(rows.queries)
    calibration = rc.calibrate(
        output, labels, patterns=racer.artifact.patterns, pool=POOL, groups=["a", "b", "b"] * 100
    )
    decisions = racer.route_batch(queries, calibration, score=Score.STATIC, group="b")
    assert {each.score for each in decisions} == {"static"}
    assert {each.lambda_hat for each in decisions} == {
        calibration.group("b").lambda_hat(0.1, Score.STATIC)
    }
    assert calibration.group("b").certify(decisions[0]).group == "b"
    assert all(each.trivial for each in racer.route_batch(queries, calibration, group="c"))


def test_missing_matplotlib_names_the_extra(monkeypatch):
    """Only axes that the caller gives need no import."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(InputError, match=re.escape(install_hint("figures"))):
        rc.plot_size(None)


def test_figures_draw_each_score_on_given_axes():
    """A line for each score, beside the bound; the axes come back."""
    scores, correct = table_of(300, 11)
    calibration = rc.calibrate(scores, correct)
    table = rc.evaluate(calibration, scores, correct, score=("gap", "prob"))
    _, (left, right) = pyplot.subplots(1, 2)
    try:
        assert rc.plot_risk(table, left) is left
        assert rc.plot_size(table, ax=right) is right
        assert right.get_lines()[0].get_ydata().tolist() == table.where(score="gap")["size"]
    finally:
        pyplot.close("all")
