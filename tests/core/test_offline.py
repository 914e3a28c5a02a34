"""`racer train` and `racer evaluate`: the protocol of the paper on synthetic and on real rows."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from racer_core.calibration.metrics import SetMetrics
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import CalibrationError, InputError, RowsError
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import Setting
from racer_core.offline.protocol import Protocol, Shares
from racer_core.offline.reporting import silent
from racer_core.offline.table import build_table
from racer_core.offline.train import EncoderChoice, train
from racer_core.racer import Racer
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, Score
from tests.core.laws import assert_split_risk
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import POOL, synthetic_rows

stats = LazyModule("scipy.stats")

RECORDS = Path(__file__).parents[3] / "shared" / "data" / "routerdc" / "arc_c.jsonl.gz"
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


@pytest.fixture(scope="module")
def evaluation(rows):
    """Ten smoothed splits, so that realised risk follows its law exactly."""
    protocol = Protocol(
        splits=10,
        alphas=(0.05, 0.1, 0.2),
        scores=tuple(Score),
        prices=PRICES,
        smoothing=True,
        seed=1,
    )
    return evaluated(rows, protocol)


def test_shares_of_the_protocol(evaluation):
    """40 % train; of the other 240 half calibrate, a tenth validates, the rest is tested."""
    assert evaluation.n_train == 160
    assert evaluation.rows == {NAME: (120, 24, 96)}


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


@pytest.mark.parametrize("score", list(Score))
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_mean_risk_over_splits_follows_its_exact_law(evaluation, score, alpha):
    """Misses of a split are beta-binomial; false alarm 1e-6 a cell.

    Smoothing the test rows alone (``gap``, alpha 0.2: risk above 0.5) leaves the band for sure.
    """
    n, _, n_test = evaluation.rows[NAME]
    sizes = {"n": n, "n_test": n_test}
    risk = evaluation.mean(
        Setting(scope=NAME, risk_target=RiskTarget.PAPER, score=score, alpha=alpha), "risk"
    )
    assert_split_risk(risk, splits=10, alpha=alpha, false_alarm=FALSE_ALARM, **sizes)


def test_risk_varies_over_splits_as_it_does_on_rows_of_its_own(rows):
    """Tested on calibration rows the mean looks right, but hardly varies: sd 0.013, not 0.041.

    Over 40 splits an honest sd falls below half of its law with probability below 1e-7, that of
    a test on calibration rows lies above with probability below 1e-5.
    """
    alone = {"alphas": (0.1,), "scores": (Score.PROB,), "risk_targets": (RiskTarget.PAPER,)}
    evaluation = evaluated(bare(rows), Protocol(splits=40, smoothing=True, **alone))
    n, _, n_test = evaluation.rows[NAME]
    m = int(0.1 * (n + 1))
    law = stats.betabinom(n_test, m, n + 1 - m).std() / n_test
    (setting,) = evaluation.cells
    assert evaluation.sd(setting, "risk") > law / 2


def test_numbers_of_a_cell_fit_together(evaluation):
    """Every field of SetMetrics, calls saved, what it costs, and the accuracy of each vote."""
    votes = {f"accuracy_{rule}" for rule in ("majority", "weighted", "log_odds", "stacked")}
    names = {field.name for field in fields(SetMetrics)} | votes
    names |= {
        "null",
        "calibration_rows",
        "infeasible",
        "test_rows",
        "calls_saved",
        "cost",
        "random_miss",
        "random_majority",
    }
    assert len(evaluation.cells) == 2 * 5 * 3
    for runs in evaluation.cells.values():
        assert set(runs) == names
        of = {name: np.array(values) for name, values in runs.items()}
        np.testing.assert_allclose(of["calls_saved"], 1 - of["size"] / len(POOL))
        assert np.all(of["size"] <= of["cost"])
        assert np.all(of["cost"] <= of["size"] * max(PRICES))
        for name in votes:
            assert np.all(of[name] <= 1 - of["served_error"] - of["abstain"] + 1e-9)
    for score in Score:
        sizes = [
            evaluation.mean(
                Setting(scope=NAME, risk_target=RiskTarget.PAPER, score=score, alpha=alpha), "size"
            )
            for alpha in (0.05, 0.1, 0.2)
        ]
        assert sizes == sorted(sizes, reverse=True)


def test_controls_say_what_sets_must_be_compared_with(evaluation):
    """Routing by the best score beats any single candidate here, and nothing beats the pool."""
    mean = {name: np.mean(runs) for name, runs in evaluation.controls[NAME].items()}
    singles = [mean[f"candidate {name}"] for name in POOL]
    assert mean["best single"] == mean["best single here"]
    assert mean["best single"] in singles
    assert max(singles) < mean["router top-1"] < mean["answerable"]
    for rule in ("majority", "weighted", "log_odds", "stacked"):
        assert 0.0 < mean[f"full pool {rule}"] <= mean["answerable"]


def test_evaluation_is_a_function_of_its_seed(rows, evaluation):
    """The same report again, and plain JSON of it."""
    again = evaluated(rows, evaluation.protocol)
    assert again == evaluation
    other = replace(evaluation.protocol, seed=2)
    assert evaluated(rows, other) != evaluation
    plain = json.loads(json.dumps(evaluation.as_json(), allow_nan=False))
    assert json.loads(json.dumps(again.as_json())) == plain
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
    "changes",
    [
        {"splits": 0},
        {"alphas": (0.1, 1.0)},
        {"alphas": ()},
        {"scores": ()},
        {"risk_targets": ()},
    ],
)
def test_protocol_that_measures_nothing_is_refused(changes):
    """One split at least, alphas in (0, 1), and something to measure."""
    with pytest.raises(InputError):
        Protocol(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": 0.0},
        {"train": 1.0},
        {"calibration": 0.0},
        {"validation": 0.5},
        {"validation": -0.1},
    ],
)
def test_shares_that_leave_nothing_are_refused(changes):
    """Shares above 0 with rows left to test on."""
    with pytest.raises(InputError):
        Shares(**changes)


def test_too_few_rows_are_refused():
    """Three rows cannot train, calibrate, validate and test."""
    with pytest.raises(CalibrationError, match="3 rows are too few"):
        table_of(synthetic_rows(3, seed=1), Protocol(splits=1))


def score_rows():
    """Rows of router scores alone."""
    row = LabelledRow(query="", correct=frozenset({"adder"}), scores=(0.5, 0.5, 0.5))
    return LabelledRows(pool=POOL, rows=(row,) * 40)


def test_rows_of_router_scores_alone_cannot_be_trained_or_evaluated_on(tmp_path):
    """There is no text to embed; an evaluation of forty empty texts would look like a result."""
    good = synthetic_rows(20, seed=1)
    for rows, validation in ((score_rows(), good), (good, score_rows())):
        with pytest.raises(RowsError, match="rows of router scores"):
            train(rows, validation, tmp_path, encoder=CharNgramEncoder(), kind="knn")
    with pytest.raises(RowsError):
        table_of(score_rows(), Protocol(splits=1))


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


def test_mlp_can_be_trained_saved_and_served(tmp_path):
    """The other router, with every epoch heard; it needs no torch to serve."""
    heard = []
    artifact = train(
        synthetic_rows(40, seed=1),
        synthetic_rows(20, seed=2),
        tmp_path,
        encoder=EncoderChoice(name="char-ngrams").open(),
        kind="mlp",
        progress=lambda *step: heard.append(step),
    )
    assert sum(stage.startswith("MLP") for stage, _, _ in heard) == 100
    racer = Racer.load(tmp_path, POOL)
    assert racer.artifact.digest == artifact.digest
    assert racer.score(["What is 1 plus 2?"]).scores.shape == (1, 3)


@pytest.fixture(scope="module")
def arc_c():
    """ARC-C records of seven LLMs, every score, twenty splits."""
    if not RECORDS.exists():
        pytest.skip(f"{RECORDS} is not on this machine")
    protocol = Protocol(
        splits=20,
        alphas=(0.1, 0.2),
        scores=tuple(Score),
        risk_targets=(RiskTarget.PAPER,),
        prices=(1.0,) * 7,
        smoothing=True,
    )
    return evaluated(read_rows(RECORDS), protocol)


@pytest.mark.parametrize("score", list(Score))
@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_real_records_keep_the_law(arc_c, score, alpha):
    """The paper's risk; false alarm 1e-6 each."""
    n, _, n_test = arc_c.rows[NAME]
    assert (arc_c.n_train, n) == (468, 351)
    assert_split_risk(
        arc_c.mean(
            Setting(scope=NAME, risk_target=RiskTarget.PAPER, score=score, alpha=alpha), "risk"
        ),
        splits=20,
        n=n,
        n_test=n_test,
        alpha=alpha,
        false_alarm=FALSE_ALARM,
    )
