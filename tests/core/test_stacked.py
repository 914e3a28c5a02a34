"""The stacked vote: what it learns, learned out of fold, and served as it was fitted."""

import itertools

import numpy as np
import pytest

from racer_core import artifacts
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError
from racer_core.offline import stacking
from racer_core.offline.fit import RouterChoice, fit_embedded
from racer_core.offline.selection import ScoredRows
from racer_core.offline.stacking import MIN_ROWS, fit_stacked, out_of_fold
from racer_core.offline.train import train
from racer_core.offline.votes import Votes
from racer_core.routers.base import Batch
from racer_core.types import RiskTarget, Score
from tests.kit.answers import row_answers
from tests.kit.synthetic import POOL, synthetic_rows

STRONG = (0.9, 0.35, 0.35, 0.35, 0.35)


def drawn(chances, count, seed, *, scores=None):
    """Rows in which candidates are right independently and all wrong answers are equal.

    Router scores know nothing of it unless they are given.
    """
    rng = np.random.default_rng(seed)
    labels = rng.random((count, len(chances))) < chances
    return rows_of(labels, rng.uniform(0.3, 0.7, labels.shape) if scores is None else scores)


def rows_of(labels, scores):
    """Labels and scores as scored rows."""
    return ScoredRows(
        pool=tuple(f"m{column:02d}" for column in range(labels.shape[1])),
        fingerprints=tuple(number.to_bytes(16, "big") for number in range(len(labels))),
        scores=scores,
        neighbours=None,
        labels=labels,
    )


def answers_of(rows):
    """The answers A (right) and B (wrong)."""
    texts = [["A" if right else "B" for right in row] for row in rows.labels]
    return row_answers(texts, Equality.CHOICE)


def accuracy(rows, rule, stacked):
    """Share of rows that the full pool's vote gets right."""
    votes = Votes(
        pool=rows.pool,
        labels=rows.labels,
        scores=rows.scores,
        answers=answers_of(rows),
        stacked=stacked,
    )
    return votes.accuracy(rule, np.ones_like(rows.labels), 1.0)


def test_trust_is_learned_where_the_router_knows():
    """Equally good candidates whose score predicts the rows they answer: trust above 0 for each."""
    rng = np.random.default_rng(3)
    scores = rng.choice([0.2, 0.8], (600, 4))
    rows = rows_of(rng.random(scores.shape) < scores, scores)
    stacked = fit_stacked(rows, answers_of(rows))
    assert (stacked.trust > 0.1).all()
    assert (stacked.trust < 1.3).all()
    assert accuracy(rows, Method.STACKED, stacked) > accuracy(rows, Method.MAJORITY, stacked) + 0.05


@pytest.fixture
def maximised(monkeypatch):
    """What was handed to the optimiser, in order."""
    handed = []
    maximise = stacking.maximise_likelihood

    def watched(votes, penalty):
        handed.append((votes, penalty))
        return maximise(votes, penalty)

    monkeypatch.setattr(stacking, "maximise_likelihood", watched)
    return handed


def test_fitted_weights_are_a_maximum(maximised):
    """No weight moved by a little has a larger likelihood: Newton did not stop half-way."""
    rows = drawn(STRONG, 300, seed=6)
    stacked = fit_stacked(rows, answers_of(rows))
    weights = np.concatenate([stacked.skill, stacked.trust])
    votes, penalty = maximised[0]
    best = stacking.penalised_log_likelihood(votes, weights, penalty)
    for step in np.vstack([np.eye(10), -np.eye(10)]) * 1e-3:
        assert stacking.penalised_log_likelihood(votes, weights + step, penalty) < best


def test_fit_sees_the_rows_as_serving_masks_them(maximised):
    """The full pool and every level's sets, each with the rows that are contested within it."""
    rows = drawn((0.8, 0.6, 0.5, 0.3), 300, seed=12)
    fit_stacked(rows, answers_of(rows))
    inside = [np.ones_like(rows.labels), *stacking.served_masks(rows)]
    contested = [
        (mask & rows.labels).any(axis=1) & (mask & ~rows.labels).any(axis=1) for mask in inside
    ]
    found = maximised[0][0].classes >= 0
    expected = np.concatenate([m[keep] for m, keep in zip(inside, contested, strict=True)])
    np.testing.assert_array_equal(found, expected)
    assert len(found) > 1.5 * contested[0].sum()


@pytest.mark.parametrize("contested", [MIN_ROWS - 1, MIN_ROWS])
def test_few_contested_rows_teach_nothing(contested):
    """Rows in which all agree do not count, in any number."""
    labels = np.zeros((contested + 300, 2), dtype=bool)
    labels[:contested, 0] = True
    labels[contested : contested + 200] = True
    rows = rows_of(labels, np.random.default_rng(8).uniform(0.3, 0.7, labels.shape))
    assert (fit_stacked(rows, answers_of(rows)) is None) == (contested < MIN_ROWS)


def knn(batch, labels):
    """A router of five neighbours."""
    choice = RouterChoice(kind="knn", options={"k": 5})
    return fit_embedded(choice, batch.encoded.embeddings, labels)


def test_a_rows_own_label_cannot_reach_its_score():
    """Its label turns over: its own score stays, and that of a row it has taught moves."""
    given = synthetic_rows(60, seed=41)
    batch = Batch(given.queries, CharNgramEncoder())
    prints = tuple(number.to_bytes(16, "big") for number in range(60))
    labels = given.labels(POOL)
    before = out_of_fold(POOL, prints, batch, labels, knn).scores
    taught = 0
    for row in (0, 23, 46):
        changed = labels.copy()
        changed[row] = ~changed[row]
        after = out_of_fold(POOL, prints, batch, changed, knn).scores
        np.testing.assert_array_equal(after[row], before[row])
        taught += int((after != before).any(axis=1).sum())
        assert not np.array_equal(  # a router that learned it does know
            knn(batch, changed).predict(batch).scores[row],
            knn(batch, labels).predict(batch).scores[row],
        )
    assert taught > 0


def test_every_row_is_scored_by_rows_of_other_folds():
    """Fewer rows than folds: each is scored by all others."""
    given = synthetic_rows(3, seed=42)
    prints = (b"a" * 16, b"b" * 16, b"c" * 16)
    batch = Batch(given.queries, CharNgramEncoder())
    labels = given.labels(POOL)
    scored = out_of_fold(POOL, prints, batch, labels, knn)
    for row in range(3):
        others = np.delete(labels, row, axis=0).mean(axis=0)
        np.testing.assert_array_equal(scored.scores[row], others)


def test_masks_are_nested_cover_sets():
    """Those that a calibration on the rows would serve; a larger alpha never adds a candidate."""
    rows = drawn((0.8, 0.6, 0.5, 0.3), 300, seed=12)
    masks = stacking.served_masks(rows)
    calibration = rows.calibration(
        CalibrationOptions(score=Score.COVER, risk_target=RiskTarget.ANSWERABLE),
        PatternModel.of(rows.labels),
    )
    for alpha, mask in zip(stacking.MASK_ALPHAS, masks, strict=True):
        lambda_hat = calibration.lambda_hat(alpha, Score.COVER)
        sets = calibration.sets(rows.scores, rows.fingerprints, lambda_hat, Score.COVER)
        np.testing.assert_array_equal(mask, sets.selected)
    for larger, smaller in itertools.pairwise(masks):
        assert not (smaller & ~larger).any()
    assert masks[0].sum() > 2 * masks[-1].sum()


@pytest.mark.parametrize(
    ("skill", "trust"),
    [
        ([1.0], [0.0, 0.0]),
        ([1.0, 1.0], [0.0]),
        ([np.nan, 1.0], [0.0, 0.0]),
        ([1.0, 1.0], [0.0, np.inf]),
    ],
)
def test_weights_that_do_not_fit_are_refused(skill, trust):
    """One finite number per candidate each."""
    with pytest.raises(InputError, match="skill"):
        StackedVote(("a", "b"), np.array(skill), np.array(trust))


def test_artifact_keeps_the_vote_of_rows_with_answers(tmp_path):
    """To the last bit; the candidates' order is the pool's."""
    validation = synthetic_rows(60, seed=45, answers=True)
    trained = train(
        synthetic_rows(200, seed=44, answers=True),
        validation,
        tmp_path,
        encoder=CharNgramEncoder(),
        kind="knn",
    )
    loaded = artifacts.load(tmp_path).stacked
    assert trained.stacked is not None
    assert loaded.pool == POOL
    np.testing.assert_array_equal(loaded.skill, trained.stacked.skill)
    np.testing.assert_array_equal(loaded.trust, trained.stacked.trust)


def test_answers_that_no_text_compares_train_no_vote(tmp_path):
    """Whether texts mean the same is for an encoder to say; the router is trained all the same."""
    rows = synthetic_rows(200, seed=44, answers=True), synthetic_rows(60, seed=45, answers=True)
    trained = train(
        *rows, tmp_path, encoder=CharNgramEncoder(), kind="knn", equality=Equality.SEMANTIC
    )
    assert trained.stacked is None


def test_rows_without_answers_train_no_vote(racer):
    """None, and it stays None on disk."""
    assert racer.artifact.stacked is None
