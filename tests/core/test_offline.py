"""`racer train` and `racer evaluate`: the protocol of the paper on synthetic and on real rows."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from racer_core.calibration.metrics import SetMetrics
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import CalibrationError, InputError, RowsError
from racer_core.offline.evaluate import Protocol, evaluate, merge
from racer_core.offline.train import EncoderChoice, train
from racer_core.racer import Racer
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, Score
from tests.core.laws import assert_split_risk
from tests.synthetic import POOL, synthetic_rows

RECORDS = Path(__file__).parents[3] / "shared" / "data" / "routerdc" / "arc_c.jsonl.gz"
FALSE_ALARM = 1e-6


class Recorder:
    """An encoder that remembers what it was asked to embed, call by call."""

    def __init__(self):
        self.calls = []
        self.inside = CharNgramEncoder()
        self.spec = self.inside.spec

    def encode(self, texts):
        """Embed and remember."""
        self.calls.append(list(texts))
        return self.inside.encode(texts)


def cell(evaluation, target, score, alpha):
    """The one cell of a setting."""
    wanted = (target, score, alpha)
    return next(c for c in evaluation.cells if (c.risk_target, c.score, c.alpha) == wanted)


@pytest.fixture(scope="module")
def rows():
    """400 rows with recorded answers."""
    return synthetic_rows(400, seed=21, answers=True)


@pytest.fixture(scope="module")
def evaluation(rows):
    """Ten smoothed splits, so that realised risk follows its law exactly."""
    return evaluate(
        rows, encoder=CharNgramEncoder(), protocol=Protocol(splits=10, smoothing=True, seed=1)
    )


def test_shares_of_the_protocol(evaluation):
    """40 % train; of the other 240 half calibrate, a tenth validates, the rest is tested."""
    sizes = [evaluation.n_train, evaluation.n_calibration, evaluation.n_validation]
    assert [*sizes, evaluation.n_test] == [160, 120, 24, 96]


def test_training_rows_are_used_for_nothing_else(rows):
    """Every row is embedded once: first the training rows, then all others."""
    recorder = Recorder()
    evaluation = evaluate(rows, encoder=recorder, protocol=Protocol(splits=1))
    asked = [text for call in recorder.calls for text in call]
    assert sorted(asked) == sorted(rows.queries)
    rest = set(asked[evaluation.n_train :])
    scored = [row for row in rows.rows if row.query in rest]
    for name in POOL:
        share = np.mean([name in row.correct for row in scored])
        assert evaluation.controls.accuracy[name] == pytest.approx(share)
    answerable = np.mean([bool(row.correct) for row in scored])
    assert evaluation.controls.answerable == pytest.approx(answerable)


@pytest.mark.parametrize("score", list(Score))
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_mean_risk_over_splits_follows_its_exact_law(evaluation, score, alpha):
    """Misses of a split are beta-binomial; false alarm 1e-6 a cell.

    Smoothing the test rows alone (``gap``, alpha 0.2: risk above 0.5) leaves the band for sure.
    """
    measured = cell(evaluation, RiskTarget.PAPER, score, alpha)
    sizes = {"n": evaluation.n_calibration, "n_test": evaluation.n_test}
    risk = measured.mean["risk"]
    assert_split_risk(risk, splits=10, alpha=alpha, false_alarm=FALSE_ALARM, **sizes)


def test_risk_varies_over_splits_as_it_does_on_rows_of_its_own(rows):
    """Tested on calibration rows the mean looks right, but hardly varies: sd 0.013, not 0.041.

    Over 40 splits an honest sd falls below half of its law with probability below 1e-7, that of
    a test on calibration rows lies above with probability below 1e-5.
    """
    alone = {"alphas": (0.1,), "scores": (Score.PROB,), "risk_targets": (RiskTarget.PAPER,)}
    evaluation = evaluate(
        replace(rows, rows=tuple(replace(row, answers={}) for row in rows.rows)),
        encoder=CharNgramEncoder(),
        protocol=Protocol(splits=40, smoothing=True, **alone),
    )
    n, n_test = evaluation.n_calibration, evaluation.n_test
    m = int(0.1 * (n + 1))
    law = stats.betabinom(n_test, m, n + 1 - m).std() / n_test
    assert evaluation.cells[0].sd["risk"] > law / 2


def test_numbers_of_a_cell_fit_together(evaluation):
    """Every field of SetMetrics, calls saved, and the accuracy of the vote."""
    names = {field.name for field in fields(SetMetrics)} | {"calls_saved", "accuracy"}
    assert len(evaluation.cells) == 2 * 2 * 3
    for each in evaluation.cells:
        assert set(each.mean) == set(each.sd) == names
        assert each.mean["calls_saved"] == pytest.approx(1 - each.mean["size"] / len(POOL))
        assert each.mean["accuracy"] <= 1 - each.mean["served_error"] - each.mean["abstain"] + 1e-9
    for score in Score:
        sizes = [
            cell(evaluation, RiskTarget.PAPER, score, a).mean["size"] for a in (0.05, 0.1, 0.2)
        ]
        assert sizes == sorted(sizes, reverse=True)


def test_controls_say_what_sets_must_be_compared_with(evaluation):
    """Routing by the best score beats any single candidate here, and nothing beats the pool."""
    controls = evaluation.controls
    assert controls.best_single == max(controls.accuracy, key=controls.accuracy.get)
    assert controls.accuracy[controls.best_single] < controls.router_top1 < controls.answerable
    assert 0.0 < controls.full_vote <= controls.answerable


def test_evaluation_is_a_function_of_its_seed(rows, evaluation):
    """The same report again, and plain JSON of it."""
    again = evaluate(rows, encoder=CharNgramEncoder(), protocol=evaluation.protocol)
    assert again == evaluation
    other = replace(evaluation.protocol, seed=2)
    assert evaluate(rows, encoder=CharNgramEncoder(), protocol=other) != evaluation
    assert json.loads(json.dumps(evaluation.as_json()))["n_test"] == 96


def test_rows_without_answers_are_measured_without_accuracy(rows):
    """Progress is told split by split."""
    heard = []
    bare = replace(rows, rows=tuple(replace(row, answers={}) for row in rows.rows[:100]))
    evaluation = evaluate(
        bare,
        encoder=CharNgramEncoder(),
        protocol=Protocol(splits=3),
        progress=lambda *step: heard.append(step),
    )
    assert evaluation.controls.full_vote is None
    assert all("accuracy" not in each.mean for each in evaluation.cells)
    assert [step for step in heard if step[0] == "splits"] == [("splits", i, 3) for i in (1, 2, 3)]


@pytest.mark.parametrize(
    "changes",
    [
        {"splits": 0},
        {"train_share": 0.0},
        {"train_share": 1.0},
        {"calibration_share": 0.0},
        {"validation_share": 0.5},
        {"validation_share": -0.1},
        {"alphas": (0.1, 1.0)},
    ],
)
def test_protocol_that_leaves_nothing_is_refused(changes):
    """Shares above 0 with rows left to test on, one split at least, and alphas in (0, 1)."""
    with pytest.raises(InputError):
        Protocol(**changes)


def test_too_few_rows_are_refused():
    """Three rows cannot train, calibrate, validate and test."""
    with pytest.raises(CalibrationError, match="3 rows are too few"):
        evaluate(synthetic_rows(3, seed=1), encoder=CharNgramEncoder(), protocol=Protocol(splits=1))


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
        evaluate(score_rows(), encoder=CharNgramEncoder(), protocol=Protocol(splits=1))


def test_rows_of_several_files_share_a_pool():
    """Another order is the same pool; copies are dropped and counted, across files too."""
    first, second = synthetic_rows(3, seed=1), synthetic_rows(2, seed=2)
    second = replace(second, pool=POOL[::-1], rows=second.rows + first.rows[:1], duplicates=2)
    merged = merge([replace(first, duplicates=1), second])
    assert (merged.pool, len(merged), merged.duplicates) == (POOL, 5, 4)
    assert merged.rows == first.rows + second.rows[:2]
    assert len(merge([score_rows(), score_rows()])) == 80  # no query, so nothing to compare
    with pytest.raises(RowsError, match="file 2"):
        merge([first, replace(second, pool=POOL[:2])])


def test_files_that_disagree_about_a_query_are_refused():
    """One of the two labels is wrong, and nobody can tell which."""
    first = synthetic_rows(3, seed=1)
    other = replace(first.rows[2], correct=frozenset(POOL) - first.rows[2].correct)
    with pytest.raises(RowsError, match="file 2"):
        merge([first, replace(first, rows=(other,))])


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


@pytest.mark.skipif(not RECORDS.exists(), reason=f"{RECORDS} is not on this machine")
@pytest.mark.parametrize("score", list(Score))
def test_real_records_keep_the_law(score):
    """ARC-C records of seven LLMs: the paper's risk at alpha 0.1 and 0.2; false alarm 1e-6 each."""
    protocol = Protocol(
        splits=20,
        alphas=(0.1, 0.2),
        scores=(score,),
        risk_targets=(RiskTarget.PAPER,),
        smoothing=True,
    )
    evaluation = evaluate(read_rows(RECORDS), encoder=CharNgramEncoder(), protocol=protocol)
    assert (evaluation.n_train, evaluation.n_calibration) == (468, 351)
    for each in evaluation.cells:
        assert_split_risk(
            each.mean["risk"],
            splits=20,
            n=evaluation.n_calibration,
            n_test=evaluation.n_test,
            alpha=each.alpha,
            false_alarm=FALSE_ALARM,
        )
