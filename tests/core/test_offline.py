"""`racer train` and `racer evaluate`: the protocol of the paper on synthetic and on real rows."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from racer_core.calibration.metrics import SetMetrics
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import CalibrationError, InputError, RowsError
from racer_core.offline.evaluate import evaluate
from racer_core.offline.protocol import Protocol, Shares
from racer_core.offline.reporting import silent
from racer_core.offline.table import build_table
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, Score
from tests.core.laws import assert_split_risk
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import POOL, synthetic_rows

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
NAME = "synthetic"
PRICES = (1.0, 2.0, 4.0)  # so that every score takes part


class Recorder:
    """An encoder that records the texts of each call."""

    def __init__(self):
        self.calls = []
        self.inside = CharNgramEncoder()
        self.spec = self.inside.spec

    def encode(self, texts):
        """Embed and remember."""
        self.calls.append(list(texts))
        return self.inside.encode(texts)


def table_of(rows, protocol, encoder=None):
    """The rows as one benchmark, scored by a KNN."""
    encoder = encoder or CharNgramEncoder()
    return build_table({NAME: rows}, encoder=encoder, router="knn", protocol=protocol)


def evaluated(rows, protocol, progress=silent):
    """The whole protocol on one benchmark."""
    return evaluate(
        table_of(rows, protocol), encoder="char-ngrams", router="knn", progress=progress
    )


@pytest.fixture(scope="module")
def rows():
    """400 rows with recorded answers."""
    return synthetic_rows(400, seed=21, answers=True)


def test_rows_of_router_scores_alone_cannot_be_trained_or_evaluated_on(tmp_path):
    """There is no text to embed; an evaluation of forty empty texts would look like a result."""
    row = LabelledRow(query="", correct=frozenset({"adder"}), scores=(0.5, 0.5, 0.5))
    bare_rows, good = LabelledRows(pool=POOL, rows=(row,) * 40), synthetic_rows(20, seed=1)
    for rows, validation in ((bare_rows, good), (good, bare_rows)):
        with pytest.raises(RowsError, match="rows of router scores"):
            train(rows, validation, tmp_path, encoder=CharNgramEncoder(), kind="knn")
    with pytest.raises(RowsError):
        table_of(bare_rows, Protocol(splits=1))


@pytest.fixture(scope="module")
def evaluation(rows):
    """Three smoothed splits, priced."""
    protocol = Protocol(
        splits=3,
        alphas=(0.05, 0.1, 0.2),
        scores=tuple(Score),
        prices=PRICES,
        seed=1,
    )
    return evaluated(rows, protocol)


def test_training_rows_are_used_for_nothing_else(rows):
    """Every row is embedded once: first the training rows, then all others."""
    recorder = Recorder()
    table = table_of(rows, Protocol(splits=1), recorder)
    queries = [text for call in recorder.calls for text in call]
    assert sorted(queries) == sorted(rows.queries)
    rest = queries[table.n_train :]
    assert len(table.rows.fingerprints) == len(rest)
    correct = {row.query: row.correct for row in rows.rows}
    expected = [[name in correct[query] for name in POOL] for query in rest]
    np.testing.assert_array_equal(table.rows.labels, expected)


def test_risk_varies_over_splits_as_it_does_on_rows_of_its_own(rows):
    """Tested on calibration rows the mean looks right, but hardly varies: sd 0.013, not 0.041.

    Over 40 splits an honest sd falls below half of its law with probability below 1e-7, that of
    a test on calibration rows lies above with probability below 1e-5.
    """
    alone = {"alphas": (0.1,), "scores": (Score.PROB,), "risk_targets": (RiskTarget.PAPER,)}
    evaluation = evaluated(bare(rows), Protocol(splits=40, **alone))
    n, _, n_test = evaluation.rows[NAME]
    m = int(0.1 * (n + 1))
    law = stats.betabinom(n_test, m, n + 1 - m).std() / n_test
    (setting,) = evaluation.cells
    assert evaluation.sd(setting, "risk") > law / 2


def test_numbers_of_a_cell_fit_together(evaluation):
    """Every field of SetMetrics, calls saved, what it costs, and the accuracy of each vote."""
    votes = {f"accuracy_{rule}" for rule in ("majority", "weighted", "log_odds", "stacked")}
    more = "null calibration_rows infeasible test_rows calls_saved cost random_miss random_majority"
    names = {field.name for field in fields(SetMetrics)} | votes | {*more.split(), "to_calibrate"}
    assert len(evaluation.cells) == 2 * 5 * 3
    for runs in evaluation.cells.values():
        assert set(runs) == names
        of = {name: np.array(values) for name, values in runs.items()}
        np.testing.assert_allclose(of["calls_saved"], 1 - of["size"] / len(POOL))
        assert np.all(of["size"] <= of["cost"])
        assert np.all(of["cost"] <= of["size"] * max(PRICES))
        for name in votes:
            assert np.all(of[name] <= 1 - of["served_error"] - of["abstain"] + 1e-9)
    mean = {name: np.mean(runs) for name, runs in evaluation.controls[NAME].items()}
    singles = [mean[f"candidate {name}"] for name in POOL]
    assert mean["best single"] == mean["best single here"]
    assert mean["best single"] in singles
    assert max(singles) < mean["router top-1"] < mean["answerable"]


def test_evaluation_is_a_function_of_its_seed(rows):
    """The same report again, and plain JSON of it."""
    protocol = Protocol(splits=2, alphas=(0.1,), scores=(Score.COVER,), seed=1)
    evaluation = evaluated(rows, protocol)
    assert evaluated(rows, protocol) == evaluation
    assert evaluated(rows, replace(protocol, seed=2)) != evaluation
    plain = json.loads(json.dumps(evaluation.as_json(), allow_nan=False))
    assert plain["rows"] == {NAME: [120, 24, 96]}


def bare(rows):
    """The rows without their answers."""
    return replace(rows, rows=tuple(replace(row, answers={}) for row in rows.rows))


def test_rows_without_answers_are_measured_without_accuracy(rows):
    """Progress is reported per split."""
    heard = []
    few = replace(rows, rows=rows.rows[:100])
    evaluation = evaluated(bare(few), Protocol(splits=3), lambda *step: heard.append(step))
    assert not evaluation.answered
    assert not evaluation.choices
    named = [*evaluation.controls.values(), *evaluation.cells.values()]
    assert not [name for runs in named for name in runs if "accuracy" in name or "pool" in name]
    assert [step for step in heard if step[0] == "splits"] == [("splits", i, 3) for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("made", "changes"),
    [
        (Protocol, {"splits": 0}), (Protocol, {"alphas": (0.1, 1.0)}), (Protocol, {"alphas": ()}),
        (Protocol, {"scores": ()}), (Protocol, {"risk_targets": ()}), (Shares, {"train": 0.0}),
        (Shares, {"train": 1.0}), (Shares, {"calibration": 0.0}), (Shares, {"validation": 0.5}),
        (Shares, {"validation": -0.1}),
    ],
)  # fmt: skip
def test_protocol_that_measures_nothing_is_refused(made, changes):
    """One split at least, alphas in (0, 1), something to measure, and rows left to test on."""
    with pytest.raises(InputError):
        made(**changes)


def test_too_few_rows_are_refused():
    """Three rows cannot train, calibrate, validate and test."""
    with pytest.raises(CalibrationError, match="3 rows are too few"):
        table_of(synthetic_rows(3, seed=1), Protocol(splits=1))


def test_rows_of_several_files_share_a_pool():
    """Another order is the same pool; copies are kept and counted, across files too."""
    first, second = synthetic_rows(40, seed=1), synthetic_rows(30, seed=2)
    copy = replace(first.rows[0], query=f"  {first.rows[0].query.upper()}")
    second = replace(second, pool=POOL[::-1], rows=(*second.rows, copy))
    files = {"first": first, "second": second}
    options = {"encoder": CharNgramEncoder(), "router": "knn", "protocol": Protocol()}
    table = build_table(files, **options)
    assert (table.pool, table.copies) == (POOL, 1)
    assert table.n_train + len(table.rows.labels) == 71
    with pytest.raises(RowsError, match="second"):
        build_table({"first": first, "second": replace(second, pool=POOL[:2])}, **options)


def test_training_for_another_pool_is_refused(tmp_path):
    """Validation rows must be about the same candidates."""
    rows = synthetic_rows(20, seed=1)
    with pytest.raises(RowsError, match="validation rows"):
        train(rows, replace(rows, pool=POOL[:2]), tmp_path, encoder=CharNgramEncoder(), kind="knn")


def test_mean_risk_over_splits_follows_its_exact_law(evaluation):
    """Misses of a split are beta-binomial; false alarm 1e-6 a cell."""
    n, _, n_test = evaluation.rows[NAME]
    for setting in evaluation.cells:
        if setting.risk_target is RiskTarget.PAPER:
            assert_split_risk(
                evaluation.mean(setting, "risk"),
                splits=3,
                n=n,
                n_test=n_test,
                alpha=setting.alpha,
                false_alarm=FALSE_ALARM,
            )


@pytest.mark.parametrize("kind", ["knn", pytest.param("mlp", marks=pytest.mark.slow)])
def test_a_router_needs_no_validation_rows(tmp_path, kind):
    """Nothing is chosen then: default weights, never a refusal; the vote comes of training rows."""
    rows = synthetic_rows(160, seed=61, answers=True)
    artifact = train(rows, None, tmp_path, encoder=CharNgramEncoder(), kind=kind)
    assert artifact.null_threshold is None
    assert artifact.validation_fingerprints == frozenset()
    assert artifact.patterns.temperature == 2.0
    assert artifact.patterns.neighbours == (40 if kind == "knn" else 200)
    assert artifact.stacked is not None
    loaded = Racer.load(tmp_path)
    assert loaded.artifact.patterns.neighbours == artifact.patterns.neighbours
    assert loaded.score(rows.queries[:3]).scores.shape == (3, len(POOL))


def test_the_map_of_routerdc_needs_validation_rows(tmp_path):
    """Said before hours of training."""
    rows = synthetic_rows(40, seed=62)
    with pytest.raises(InputError, match="maps its cosines to chances on validation rows"):
        train(rows, None, tmp_path, encoder=CharNgramEncoder(), kind="routerdc")
