"""Base routers of an evaluation: trained in each division, trained before, or scores of a file."""

import gzip
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from racer_core.calibration.metrics import set_metrics
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import CalibrationError, InputError, RowsError
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import Setting
from racer_core.offline.fit import RouterChoice
from racer_core.offline.protocol import Protocol, Shares, split
from racer_core.offline.score_matrix import ScoreMatrix, read_scores
from racer_core.offline.sources import HELD_OUT, FixedSource, trained_source
from racer_core.offline.table import build_table
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.records.conversation import fingerprint
from racer_core.routers.base import Batch
from racer_core.types import RiskTarget, RowsKind, Score
from tests.core.words import QUICK, rows_of
from tests.kit.synthetic import POOL, synthetic_rows

NAME = "synthetic"
PROTOCOL = Protocol(
    splits=2, alphas=(0.1, 0.3), scores=(Score.GAP, Score.COVER), shares=Shares(validation=0.2)
)


def measured(table, router="a router"):
    """The evaluation of a table."""
    return evaluate(table, encoder="-", router=router)


def cells(evaluation):
    """All numbers of an evaluation."""
    return {setting: dict(runs) for setting, runs in evaluation.cells.items()}


def test_scores_of_a_file_give_the_sets_of_the_router_that_made_them():
    """An MLP's scores, looked up, and the MLP itself: every number agrees."""
    rows = synthetic_rows(300, seed=31)
    trained = build_table({NAME: rows}, router="mlp", encoder=CharNgramEncoder(), protocol=PROTOCOL)
    scores = np.full((len(rows), len(POOL)), 0.5)  # those of training rows are not used
    by_print = dict(zip(trained.rows.fingerprints, trained.rows.scores, strict=True))
    every = build_table(
        {NAME: rows},
        router=FixedSource("halves", ScoreMatrix.of(rows.queries, scores)),
        protocol=PROTOCOL,
    )
    order = {print_: at for at, print_ in enumerate(every.rows.fingerprints)}
    assert order.keys() == by_print.keys()  # the same rows are left to test
    matrix = {q: s for q, s in zip(rows.queries, scores, strict=True)}
    for query in rows.queries:
        matrix[query] = by_print.get(fingerprint("evaluate", query), matrix[query])
    source = FixedSource("mlp", ScoreMatrix.of(list(matrix), np.array(list(matrix.values()))))
    looked_up = build_table({NAME: rows}, router=source, protocol=PROTOCOL)
    of_the_router = cells(measured(trained))
    assert cells(measured(looked_up)) == of_the_router
    assert cells(measured(every)) != of_the_router


@pytest.fixture(scope="module")
def racer(tmp_path_factory):
    """An artifact with a tau that refuses some queries."""
    folder = tmp_path_factory.mktemp("artifacts") / "knn"
    train(
        synthetic_rows(200, seed=1),
        synthetic_rows(150, seed=2),
        folder,
        encoder=CharNgramEncoder(),
        kind="knn",
        false_abstain_budget=0.2,
    )
    return Racer.load(folder)


def artifact_source(racer):
    """The router of an artifact."""
    return FixedSource("knn", racer.artifact.router, racer.encoder, racer.artifact)


@pytest.mark.parametrize("target", [RiskTarget.PAPER, RiskTarget.ANSWERABLE])
def test_an_artifact_is_measured_as_it_is_served(racer, target):
    """Its tau, its patterns and its neighbours: the numbers of `Racer.calibrate` on each split."""
    rows = synthetic_rows(240, seed=3)
    protocol = replace(PROTOCOL, splits=1, risk_targets=(target,), seed=4)
    table = build_table({NAME: rows}, router=artifact_source(racer), protocol=protocol)
    assert (table.n_train, table.learned) == (200, 0)
    parts = split(table.benchmarks[NAME], protocol.shares, np.random.default_rng(4))
    tau = racer.artifact.null_threshold
    assert tau is not None
    own = replace(rows, rows=tuple(rows.rows[i] for i in parts.calibration))
    calibration = racer.calibrate(
        own,
        options=CalibrationOptions(
            risk_target=target, null_threshold=tau, smoothing_salt=SMOOTHING_SALT
        ),
    )
    queries = [rows.rows[i].query for i in parts.test]
    served = racer.score(queries)
    found = measured(table)
    for score in protocol.scores:
        for alpha in protocol.alphas:
            sets = calibration.sets(
                served.scores,
                tuple(map(racer.fingerprint, queries)),
                calibration.lambda_hat(alpha, score),
                score,
                served.neighbours,
            )
            expected = set_metrics(
                sets.selected, sets.null_selected, rows.labels(racer.pool)[parts.test]
            )
            setting = Setting(scope=NAME, risk_target=target, score=score, alpha=alpha)
            for field in fields(expected):
                assert found.cells[setting][field.name] == [
                    pytest.approx(getattr(expected, field.name), nan_ok=True)
                ]


def test_rows_of_an_artifacts_training_are_left_out(racer):
    """Training and validation rows, whatever their case; others stay, and none is left alone."""
    fresh, trained, tuned = (synthetic_rows(150, seed=seed) for seed in (3, 1, 2))
    loud = replace(trained.rows[0], query=trained.rows[0].query.upper())
    mixed = replace(fresh, rows=(*fresh.rows, loud, *trained.rows[1:100], *tuned.rows))
    source = artifact_source(racer)
    table = build_table({NAME: mixed}, router=source, protocol=PROTOCOL)
    alone = build_table({NAME: fresh}, router=source, protocol=PROTOCOL)
    assert (table.learned, alone.learned) == (100 + 150, 0)
    assert cells(measured(table)) == cells(measured(alone))
    assert measured(table).as_json()["learned"] == 250
    with pytest.raises(RowsError, match="trained or tuned on all of its rows"):
        build_table({NAME: trained}, router=source, protocol=PROTOCOL)
    few = replace(fresh, rows=fresh.rows[:3])
    with pytest.raises(CalibrationError, match="3 rows are too few to calibrate"):
        build_table({NAME: few}, router=source, protocol=PROTOCOL)


def test_router_dc_is_trained_once_for_the_same_rows(tiny_encoder, tmp_path):
    """A second evaluation opens the kept router; other rows, seeds or options train another."""
    encoder = HuggingFaceEncoder(str(tiny_encoder), backend="cpu", dtype="float32")
    stages = []
    opened = []

    def source(**options):
        choice = RouterChoice(kind="routerdc", options={**QUICK, "steps": 3, **options})
        cached = lambda tuned: opened.append(tuned.spec.digest) or tuned  # noqa: E731
        return trained_source(choice, encoder, folder=tmp_path / "routers", cached=cached)

    def fit(rows, seed=0, **options):
        stages.clear()
        report = lambda stage, _done, _total: stages.append(stage)  # noqa: E731
        fitted = source(**options).fit(rows, np.arange(len(rows)), seed=seed, progress=report)
        return fitted, any(stage.startswith("RouterDC") for stage in stages)

    rows = rows_of(60, 1)
    first, was_trained = fit(rows)
    again, was_trained_again = fit(rows)
    assert (was_trained, was_trained_again) == (True, False)
    assert opened[0] == opened[1]
    test = rows_of(20, 9).queries
    np.testing.assert_array_equal(first.predict(test).scores, again.predict(test).scores)
    assert first.vote_rows.tolist() == list(range(0, 60, HELD_OUT))
    assert first.vote_scores().shape == (6, 2)
    assert fit(rows, seed=1)[1]
    assert fit(rows, steps=4)[1]
    relabelled = replace(rows, rows=(replace(rows.rows[0], correct=frozenset()), *rows.rows[1:]))
    assert fit(relabelled)[1]
    assert len(list((tmp_path / "routers").iterdir())) == 4
    unkept = trained_source(RouterChoice(kind="routerdc", options={"steps": 2}), encoder)
    assert unkept.fit(rows, np.arange(60), seed=0, progress=print).predict(test).scores.shape == (
        20,
        2,
    )


def test_router_dc_has_not_learned_the_rows_that_map_its_cosines(tiny_encoder, tmp_path):
    """The kept artifact names nine tenths as training rows and one tenth as validation rows."""
    encoder = HuggingFaceEncoder(str(tiny_encoder), backend="cpu", dtype="float32")
    choice = RouterChoice(kind="routerdc", options={**QUICK, "steps": 2})
    rows = rows_of(60, 1)
    trained_source(choice, encoder, folder=tmp_path).fit(
        rows, np.arange(60), seed=0, progress=print
    )
    racer = Racer.load(next(tmp_path.iterdir()))
    held_out = {racer.fingerprint(query) for query in rows.queries[::HELD_OUT]}
    assert racer.artifact.validation_fingerprints == held_out
    assert len(racer.artifact.training_fingerprints) == 54


# --- matrices of scores ------------------------------------------------------------------------

QUERIES = ["one", "two", "three"]
SCORES = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
POOL_OF_TWO = ("a", "b")


def looked_up(path, queries=QUERIES):
    """What a file says of the three queries."""
    matrix = read_scores(path, POOL_OF_TWO, queries)
    return matrix.predict(Batch(QUERIES, CharNgramEncoder())).scores


def test_scores_are_read_in_every_form(tmp_path):
    """By row, or by query in any order; columns follow the names, not their places."""
    turned = {"queries": QUERIES[::-1], "scores": SCORES[::-1, ::-1], "candidates": ["b", "a"]}
    np.save(tmp_path / "plain.npy", SCORES)
    np.savez(tmp_path / "named.npz", scores=SCORES[:, ::-1], candidates=["b", "a"])
    np.savez(tmp_path / "by_query.npz", **turned)
    lines = "".join(
        json.dumps({"query": q.upper(), "scores": {"b": s[1], "a": s[0]}}) + "\n"
        for q, s in zip(QUERIES[::-1], SCORES[::-1].tolist(), strict=True)
    ).encode()
    (tmp_path / "lines.jsonl").write_bytes(lines)
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress(lines))
    arrow, parquet = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".parquet"))
    columns = {"query": QUERIES, "b": SCORES[:, 1], "a": SCORES[:, 0]}
    parquet.write_table(arrow.table(columns), tmp_path / "table.parquet")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    for file in files:
        np.testing.assert_array_equal(looked_up(file), SCORES, err_msg=file.name)


@pytest.mark.parametrize(
    ("arrays", "queries", "words"),
    [
        ({"scores": SCORES}, QUERIES, "candidates"),
        ({"scores": SCORES, "candidates": ["a", "c"]}, QUERIES, "are not those of the rows"),
        ({"scores": SCORES[:2], "candidates": ["a", "b"]}, QUERIES, "2 rows of scores for 3"),
        ({"scores": SCORES * 2, "candidates": ["a", "b"]}, QUERIES, "from 0 to 1"),
        ({"scores": SCORES * np.nan, "candidates": ["a", "b"]}, QUERIES, "from 0 to 1"),
        ({"scores": SCORES, "candidates": ["a", "b"]}, ["x", "y", "X"], "repeats an earlier"),
        (
            {"scores": SCORES, "candidates": ["a", "b"], "queries": ["one", "two", "four"]},
            QUERIES,
            "1 of 3 queries have no scores",
        ),
    ],
)
def test_wrong_scores_are_one_sentence(tmp_path, arrays, queries, words):
    """What is wrong, and with what."""
    np.savez(tmp_path / "scores.npz", **arrays)
    with pytest.raises(InputError, match=words):
        looked_up(tmp_path / "scores.npz", queries)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("scores.npy", b"no array", "not an array file"),
        ("scores.csv", b"query,a,b\n", "are read from"),
        ("scores.jsonl", b'{"query": "one"}\n', "candidates"),
        ("scores.jsonl", b'{"query": "one", "scores": {"a": "x", "b": 1}}\n', "not a number"),
        ("scores.jsonl", b"[1]\n", "needs a query and scores"),
    ],
)
def test_damaged_files_of_scores_are_one_sentence(tmp_path, name, content, words):
    """The file is named."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        looked_up(tmp_path / name)
    assert name in str(caught.value)


def test_a_sample_of_traffic_keeps_its_repeats_of_an_artifacts_training(racer):
    """The next request may repeat a training query, too; the training file itself is left out."""
    fresh = synthetic_rows(100, seed=21) + synthetic_rows(50, seed=1)
    files = {NAME: replace(fresh, kind=RowsKind.TRAFFIC)}
    table = build_table(files, router=artifact_source(racer), protocol=PROTOCOL)
    assert (table.learned, len(table.rows.labels)) == (0, 150)
    files["old"] = replace(synthetic_rows(50, seed=1), kind=RowsKind.TRAFFIC)
    with pytest.raises(RowsError, match="trained or tuned on all of its rows"):
        build_table(files, router=artifact_source(racer), protocol=PROTOCOL)
