"""The stacked vote: what it learns, learned out of fold, and served as it was fitted."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from racer_core import artifacts
from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.batch import agreement, answer_classes
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, aggregate
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError
from racer_core.offline import stacking
from racer_core.offline.fit import RouterChoice, fit_embedded
from racer_core.offline.selection import ScoredRows
from racer_core.offline.stacking import MIN_ROWS, fit_stacked, out_of_fold, stack
from racer_core.offline.train import train
from racer_core.offline.votes import Votes
from racer_core.routers.base import Batch
from racer_core.types import CandidateAnswer, RiskTarget, Score
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


def classes_of(rows):
    """The answers A (right) and B (wrong), numbered."""
    texts = [["A" if right else "B" for right in row] for row in rows.labels]
    return answer_classes(texts, Equality.CHOICE)


def accuracy(rows, rule, stacked):
    """Share of rows that the full pool's vote gets right."""
    votes = Votes(
        pool=rows.pool,
        labels=rows.labels,
        scores=rows.scores,
        same=agreement(classes_of(rows)),
        stacked=stacked,
    )
    return votes.accuracy(rule, np.ones_like(rows.labels), 1.0)


def test_learned_vote_beats_the_majority_where_one_candidate_is_much_better():
    """By 0.3 on 2,000 fresh rows.

    The best alone is right on 0.9, the majority (3 of 5) on exactly 0.406. A vote that follows the
    best gains 0.494; Hoeffding for differences in [-1, 1]: it stays below 0.3 with probability
    exp(-2000 * 0.194^2 / 2) < 1e-16.
    """
    rows, fresh = drawn(STRONG, 400, seed=1), drawn(STRONG, 2_000, seed=2)
    stacked = fit_stacked(rows, classes_of(rows))
    gain = accuracy(fresh, Method.STACKED, stacked) - accuracy(fresh, Method.MAJORITY, stacked)
    assert gain > 0.3
    assert stacked.skill.argmax() == 0


def test_trust_is_learned_where_the_router_knows():
    """Equally good candidates whose score predicts the rows they answer: trust above 0 for each.

    Scores of 0.8 and 0.2 are right as often as they say. Naive Bayes would set trust to 1, the
    penalty draws it to 0; a sign error makes it negative.
    """
    rng = np.random.default_rng(3)
    scores = rng.choice([0.2, 0.8], (600, 4))
    rows = rows_of(rng.random(scores.shape) < scores, scores)
    stacked = fit_stacked(rows, classes_of(rows))
    assert (stacked.trust > 0.1).all()
    assert (stacked.trust < 1.3).all()
    assert accuracy(rows, Method.STACKED, stacked) > accuracy(rows, Method.MAJORITY, stacked) + 0.05


def prepared(rows):
    """Contested rows as the likelihood sees them."""
    classes = classes_of(rows)
    contested = rows.labels.any(axis=1) & ~rows.labels.all(axis=1)
    return stacking.ContestedRows(
        classes=classes[contested],
        right=rows.labels[contested],
        logits=np.log(rows.scores / (1.0 - rows.scores))[contested],
    )


@pytest.mark.parametrize("cells", [1 << 21, 200])
def test_gradient_is_that_of_the_penalised_likelihood(monkeypatch, cells):
    """Central differences, at random weights, in one piece and in many."""
    monkeypatch.setattr(stacking, "MAX_CELLS", cells)
    votes = prepared(drawn((0.8, 0.5, 0.3, 0.6), 40, seed=4))
    assert (len(list(votes.chunks())) > 5) == (cells == 200)
    penalty = stacking.ridge_penalty(4, 3.0)
    weights = np.random.default_rng(5).normal(size=8)
    gradient, curvature = stacking.gradient_and_curvature(votes, weights, penalty)
    step = 1e-5
    for column, unit in enumerate(np.eye(8) * step):
        ends = [
            stacking.penalised_log_likelihood(votes, weights + sign * unit, penalty)
            for sign in (1, -1)
        ]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(gradient[column], abs=1e-5)
    assert np.linalg.eigvalsh(curvature).min() > 0.0  # so that every step goes uphill


def test_penalty_is_on_differences_and_on_trust():
    """Votes that all count more cost next to nothing: agreement may say as much as it does."""
    penalty = stacking.ridge_penalty(3, 5.0)
    alike, apart, trusting = np.array(
        [[1, 1, 1, 0, 0, 0], [1, -1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]], dtype=float
    )
    assert alike @ penalty @ alike == pytest.approx(3.0 * 1e-3)
    assert apart @ penalty @ apart == pytest.approx(2.0 * 5.0)
    assert trusting @ penalty @ trusting == pytest.approx(3.0 * 5.0)


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
    """The gradient vanishes there: Newton did not stop half-way."""
    rows = drawn(STRONG, 300, seed=6)
    stacked = fit_stacked(rows, classes_of(rows))
    weights = np.concatenate([stacked.skill, stacked.trust])
    gradient, _ = stacking.gradient_and_curvature(maximised[0][0], weights, maximised[0][1])
    assert np.abs(gradient).max() < 1e-4


def test_fit_sees_the_rows_as_serving_masks_them(maximised):
    """The full pool and every level's sets, each with the rows that are contested within it."""
    rows = drawn((0.8, 0.6, 0.5, 0.3), 300, seed=12)
    fit_stacked(rows, classes_of(rows))
    inside = [np.ones_like(rows.labels), *stacking.served_masks(rows)]
    contested = [
        (mask & rows.labels).any(axis=1) & (mask & ~rows.labels).any(axis=1) for mask in inside
    ]
    found = maximised[0][0].classes >= 0
    expected = np.concatenate([m[keep] for m, keep in zip(inside, contested, strict=True)])
    np.testing.assert_array_equal(found, expected)
    assert len(found) > 1.5 * contested[0].sum()


def test_the_order_of_the_pool_does_not_matter():
    """Columns in another order: the same two numbers per candidate."""
    rows = drawn((0.8, 0.5, 0.3, 0.6), 200, seed=7)
    order = [2, 0, 3, 1]
    other = replace(
        rows,
        pool=tuple(rows.pool[column] for column in order),
        scores=rows.scores[:, order],
        labels=rows.labels[:, order],
    )
    first, second = (fit_stacked(each, classes_of(each)) for each in (rows, other))
    assert second.pool == other.pool
    np.testing.assert_allclose(second.skill, first.skill[order], atol=1e-6)
    np.testing.assert_allclose(second.trust, first.trust[order], atol=1e-6)
    assert np.ptp(first.skill) > 0.1  # so that a mix-up would show


@pytest.mark.parametrize("contested", [MIN_ROWS - 1, MIN_ROWS])
def test_few_contested_rows_teach_nothing(contested):
    """Rows in which all agree do not count, in any number."""
    labels = np.zeros((contested + 300, 2), dtype=bool)
    labels[:contested, 0] = True
    labels[contested : contested + 200] = True
    rows = rows_of(labels, np.random.default_rng(8).uniform(0.3, 0.7, labels.shape))
    assert (fit_stacked(rows, classes_of(rows)) is None) == (contested < MIN_ROWS)


def test_unreadable_answers_are_no_contest():
    """A right answer beside an unreadable one leaves no choice."""
    rows = drawn((0.5, 0.5), 300, seed=9)
    classes = classes_of(rows)
    classes[~rows.labels] = -1
    assert fit_stacked(rows, classes) is None


def test_candidates_that_are_exactly_alike_get_equal_weights():
    """Every row in all orders of its columns, so the candidates are interchangeable."""
    base = drawn((0.6, 0.6, 0.6), 40, seed=10)
    orders = [list(order) for order in itertools.permutations(range(3))]
    rows = rows_of(
        np.concatenate([base.labels[:, order] for order in orders]),
        np.concatenate([base.scores[:, order] for order in orders]),
    )
    stacked = fit_stacked(rows, classes_of(rows))
    assert np.ptp(stacked.skill) < 1e-6
    assert np.ptp(stacked.trust) < 1e-6
    assert stacked.skill.min() > 0.0  # 0.6 are right: agreement speaks for an answer


def test_chance_differences_on_few_rows_are_drawn_to_the_majority(monkeypatch):
    """Six equally good candidates on 120 rows: skills differ by less than half of one vote.

    A candidate's share of right answers has the standard error 0.045, a logit of 0.19: the range
    of six is about 0.5 without the penalty, and small sets would follow mere luck. With it the
    range was at most 0.37 in 40 seeds.
    """
    rows = drawn((0.6,) * 6, 120, seed=11)
    stacked = fit_stacked(rows, classes_of(rows))
    assert np.ptp(stacked.skill) < 0.5
    monkeypatch.setattr(stacking, "RIDGE", 1e-3)
    free = fit_stacked(rows, classes_of(rows))
    assert np.ptp(stacked.skill) < 0.7 * np.ptp(free.skill)
    assert np.abs(stacked.trust).max() < 0.7 * np.abs(free.trust).max()


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


def test_one_candidate_has_no_contest():
    """There is nothing to learn, and its vote is its answer all the same."""
    rows = drawn((0.5,), 200, seed=13)
    assert fit_stacked(rows, classes_of(rows)) is None
    alone = StackedVote(("only",), np.array([-1.0]), np.array([0.0]))
    answer = CandidateAnswer(candidate="only", text="A", form="a", score=0.5)
    assert aggregate([answer], method=Method.STACKED, stacked=alone).winner == "only"


def test_a_pool_of_twenty():
    """Finite weights, the best candidate first among them."""
    rows = drawn((0.95, *(0.3,) * 19), 200, seed=14)
    stacked = fit_stacked(rows, classes_of(rows))
    assert stacked.skill.shape == stacked.trust.shape == (20,)
    assert stacked.skill.argmax() == 0


@pytest.mark.parametrize("count", [0, 1, 4])
def test_hardly_any_rows_with_answers_are_no_error(count):
    """None, without a router being trained on no rows."""
    given = synthetic_rows(count, seed=43, answers=True)
    classes = answer_classes(
        [[row.answers[name] for name in POOL] for row in given.rows], Equality.EXACT
    )
    batch = Batch(given.queries, CharNgramEncoder())
    prints = tuple(number.to_bytes(16, "big") for number in range(count))
    labels = given.labels(POOL)
    assert stack(POOL, prints, batch, labels, classes, knn) is None


def test_stacked_without_a_model_is_refused():
    """Not the majority in silence."""
    answer = CandidateAnswer(candidate="m", text="A", form="a", score=0.5)
    with pytest.raises(InputError, match="needs a model"):
        aggregate([answer], method=Method.STACKED)


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


def test_measured_votes_are_those_that_are_served():
    """`aggregate` row by row, on random sets of answers to which some cannot be read."""
    rng = np.random.default_rng(15)
    pool = ("m3", "m1", "m0", "m2")
    texts = rng.choice(["A", "B", "C", "no idea"], (300, 4)).tolist()
    labels, sets = rng.random((300, 4)) < 0.5, rng.random((300, 4)) < 0.7
    scores = rng.random((300, 4)).round(6)
    stacked = StackedVote(pool, rng.normal(1.0, 0.5, 4), rng.normal(0.3, 0.3, 4))
    same = agreement(answer_classes(texts, Equality.CHOICE))
    votes = Votes(pool=pool, labels=labels, scores=scores, same=same, stacked=stacked)
    found = votes.right(Method.STACKED, sets, 1.0)
    for row in range(300):
        answers = [
            CandidateAnswer(
                candidate=name,
                text=texts[row][m],
                form=normalise(Equality.CHOICE, texts[row][m]),
                score=float(scores[row, m]),
            )
            for m, name in enumerate(pool)
            if sets[row, m]
        ]
        right = False
        if answers:
            merged = aggregate(answers, method=Method.STACKED, stacked=stacked)
            right = bool(merged.votes) and bool(labels[row, pool.index(merged.winner)])
        assert found[row] == right, row


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
