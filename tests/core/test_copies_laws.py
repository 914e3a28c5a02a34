"""Exact laws of the risk where rows repeat queries, and where they come in clusters.

Every statistical test has a fixed seed and a false-alarm probability of 1e-6.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.threshold import allowed_misses
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import RowsError
from racer_core.offline.train import train
from racer_core.records.reader import read_rows
from racer_core.trained_router import RouterScores
from racer_core.types import LabelledRow, LabelledRows, RowsKind, Score
from tests.core.laws import assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import POOL, synthetic_rows

stats = LazyModule("scipy.stats")

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-6
ALPHA = 0.1
BY_PROB = CalibrationOptions(alpha=ALPHA, score=Score.PROB)
# Twenty queries carry half of the traffic: six hard ones 0.21 of it, fourteen easy ones 0.29.
HEAD_CRITICAL = np.concatenate([np.linspace(0.9, 0.95, 6), np.linspace(0.1, 0.6, 14)])
HEAD_SHARES = np.concatenate([np.full(6, 0.21 / 6), np.full(14, 0.29 / 14)])
TAIL_CRITICAL = 0.8  # of all other queries it is uniform below this


def by_query(queries):
    """Scores by which only the first candidate's critical score, written in the query, counts."""
    scores = np.zeros((len(queries), len(POOL)))
    scores[:, 0] = [1.0 - float(query.split()[-1]) for query in queries]
    return RouterScores(scores, np.zeros(len(queries), dtype=bool))


def traffic(rng, count):
    """The critical scores of random requests, shape (count,)."""
    head = rng.choice(HEAD_CRITICAL, count, p=HEAD_SHARES / HEAD_SHARES.sum())
    return np.where(rng.random(count) < 0.5, head, TAIL_CRITICAL * rng.random(count))


def threshold_of_traffic(racer, path, critical, *, strip):
    """Through the file, the reader and the calibration; ``strip`` drops copies by hand."""
    texts = [f"What is {each!r}" for each in critical.tolist()]
    texts = list(dict.fromkeys(texts)) if strip else texts
    correct = dict.fromkeys(POOL, False) | {POOL[0]: True}
    lines = [json.dumps({"query": text, "correct": correct}) for text in texts]
    path.write_text("\n".join(lines))
    rows = read_rows(path, kind=RowsKind.TRAFFIC)
    return racer.calibrate(rows, options=BY_PROB, scorer=by_query).lambda_hat()


def exact_risk(n):
    """P(a new request is above the threshold of n others).

    The threshold is the k-th smallest of n scores, k = n - misses. A request with the score s is
    missed if k of the n are below s: a binomial count with P(score < s).
    """
    k = n - allowed_misses(n, ALPHA)
    below = [
        0.5 * min(s / TAIL_CRITICAL, 1.0) + HEAD_SHARES[s - 1e-12 > HEAD_CRITICAL].sum()
        for s in HEAD_CRITICAL
    ]
    risk = HEAD_SHARES @ stats.binom.sf(k - 1, n, below)
    grid = (np.arange(100_000) + 0.5) / 100_000 * TAIL_CRITICAL
    head = (HEAD_SHARES[:, None] * (HEAD_CRITICAL[:, None] < grid)).sum(axis=0)
    below_tail = 0.5 * grid / TAIL_CRITICAL + head
    return float(risk + 0.5 * stats.binom.sf(k - 1, n, below_tail).mean())


@pytest.mark.parametrize("strip", [False, True], ids=["copies kept", "copies stripped"])
def test_thresholds_of_traffic_keep_alpha_only_with_its_repeats(racer, tmp_path, strip):
    """The risk is the exact law with copies; the law fails, and alpha too, without them."""
    rng = np.random.default_rng(20261123)
    n, trials = 99, 500
    path = tmp_path / "traffic.jsonl"
    missed = sum(
        traffic(rng, 1)[0] > threshold_of_traffic(racer, path, traffic(rng, n), strip=strip) + 1e-9
        for _ in range(trials)
    )
    law = exact_risk(n)
    assert 0.05 < law <= ALPHA
    if strip:
        assert stats.binom.sf(missed - 1, trials, ALPHA) < FALSE_ALARM  # far above alpha
    else:
        assert_binomial(missed, trials, law, FALSE_ALARM)


def clustered(rng, count, *, sizes=(1, 30)):
    """Rows of ``count`` clusters: rows of one are nearly alike, and small clusters are hard."""
    rows = []
    for cluster in range(count):
        size = sizes[int(rng.random() < 0.3)]
        base = rng.random() * 0.5 + (0.4 if size == sizes[0] else 0.0)
        rows += [
            LabelledRow(
                query=f"What is {base + 0.05 * rng.random()!r}",
                correct=frozenset(POOL[:1]),
                cluster=f"user {cluster}",
            )
            for _ in range(size)
        ]
    return LabelledRows(pool=POOL, rows=tuple(rows), kind=RowsKind.TRAFFIC)


@pytest.mark.parametrize("one_per_cluster", [True, False])
def test_one_row_per_cluster_keeps_alpha_for_a_random_cluster(racer, one_per_cluster):
    """The exact law of n exchangeable clusters; all rows together fail alpha by far.

    Rows of large clusters are easier and most of all rows, but few clusters are large.
    """
    rng = np.random.default_rng(5)
    n, trials = 39, 400 if one_per_cluster else 100  # all rows together miss three in five
    options = replace(BY_PROB, one_per_cluster=one_per_cluster)
    missed = 0
    for _ in range(trials):
        rows = clustered(rng, n)
        calibration = racer.calibrate(rows, options=options, scorer=by_query)
        assert calibration.n == (n if one_per_cluster else len(rows))
        new = clustered(rng, 1).rows  # a request of a random cluster
        critical = float(new[rng.integers(len(new))].query.split()[-1])
        missed += critical > calibration.lambda_hat() + 1e-9
    law = (1 + allowed_misses(n, ALPHA)) / (n + 1)
    if one_per_cluster:
        assert_binomial(missed, trials, law, FALSE_ALARM)
        assert calibration.options.unit == "cluster"
    else:
        assert stats.binom.sf(missed - 1, trials, ALPHA) < FALSE_ALARM


def test_copies_in_a_list_of_questions_are_a_cluster(racer):
    """One row of each, whatever its label; two calibrations of a file draw the same rows."""
    rows = synthetic_rows(60, seed=11)
    other = tuple(replace(row, correct=frozenset(POOL)) for row in rows.rows[:30])
    both = replace(rows, rows=rows.rows + other, kind=RowsKind.QUESTIONS)
    options = replace(BY_PROB, one_per_cluster=True)
    calibration = racer.calibrate(both, options=options)
    assert len(calibration.fingerprints) == len(calibration.queries) == 60
    again = racer.calibrate(both, options=options)
    np.testing.assert_array_equal(again.labels, calibration.labels)
    traffic_of = racer.calibrate(replace(both, kind=RowsKind.TRAFFIC), options=options)
    assert len(traffic_of.fingerprints) == 90


def test_a_list_whose_rows_share_clusters_certifies_nothing(racer):
    """Its rows are not independent; one row of each cluster, and traffic, certify."""
    rows = synthetic_rows(60, seed=11)
    clustered = tuple(replace(row, cluster=f"page {i // 2}") for i, row in enumerate(rows.rows))
    rows = replace(rows, rows=clustered, kind=RowsKind.QUESTIONS)
    certificate = racer.calibrate(rows).certify()
    assert (certificate.holds, certificate.reasons) == (False, ("rows_in_clusters",))
    assert racer.calibrate(replace(rows, kind=RowsKind.TRAFFIC)).certify().holds
    assert racer.calibrate(replace(rows, rows=clustered[::2])).certify().holds
    assert racer.calibrate(rows, options=replace(BY_PROB, one_per_cluster=True)).certify().holds


def test_validation_rows_may_repeat_training_queries_if_both_are_traffic(tmp_path):
    """Said of both files; else refused, as the training file itself always is."""
    rows, validation = synthetic_rows(80, seed=1), synthetic_rows(40, seed=2)
    mixed = validation + rows[:10]
    options = {"encoder": CharNgramEncoder(), "kind": "knn"}
    said = replace(mixed, kind=RowsKind.TRAFFIC)
    artifact = train(rows, said, tmp_path / "said", **options)
    assert artifact.training_fingerprints & artifact.validation_fingerprints
    for given in (mixed, replace(rows, kind=RowsKind.TRAFFIC)):
        with pytest.raises(RowsError, match="are training rows too"):
            train(rows, given, tmp_path / "refused", **options)
