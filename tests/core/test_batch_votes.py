"""Votes on arrays have the gateway's winners, row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.batch import agreement, answer_classes, winners
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, Weight, aggregate
from racer_core.offline.votes import TEMPERATURES, Votes
from racer_core.types import CandidateAnswer

METHODS = (Method.MAJORITY, Method.WEIGHTED, Method.LOG_ODDS)
# Eighths tie and are exact; millionths are the grid that scores are rounded to.
CHANCES = st.one_of(
    st.integers(0, 8).map(lambda k: k / 8), st.integers(0, 10**6).map(lambda k: k / 10**6)
)
# Readable, of three forms, and not readable at all.
TEXTS = ("A", "(a)", "the answer is B", "C.", "no idea", "")
NAMES = ("m3", "m1", "m4", "m0", "m2")  # not in the order of the columns


@st.composite
def worlds(draw):
    """Up to four rows of up to five candidates: answers, sets, labels and scores full of ties."""
    columns, rows = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    table = st.lists(st.lists(CHANCES, min_size=columns, max_size=columns), min_size=rows,
                     max_size=rows)  # fmt: skip
    flags = st.lists(st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=rows,
                     max_size=rows)  # fmt: skip
    texts = st.lists(st.lists(st.sampled_from(TEXTS), min_size=columns, max_size=columns),
                     min_size=rows, max_size=rows)  # fmt: skip
    return NAMES[:columns], draw(texts), draw(flags), draw(flags), draw(table)


def votes_of(pool, texts, labels, scores, stacked=None, ratings=None):
    """The rows as votes."""
    return Votes(
        pool=pool,
        labels=np.array(labels),
        scores=np.array(scores),
        same=agreement(answer_classes(texts, Equality.CHOICE)),
        stacked=stacked,
        ratings=None if ratings is None else np.array(ratings, dtype=np.float64),
    )


@given(world=worlds(), rule=st.sampled_from(METHODS), t=st.sampled_from(TEMPERATURES))
def test_votes_on_arrays_are_those_of_the_gateway(world, rule, t):
    """Every rule and temperature; unreadable answers and ties included.

    An abstention is not right, nor is an unreadable answer.
    """
    pool, texts, labels, sets, scores = world
    found = votes_of(pool, texts, labels, scores).right(rule, np.array(sets), t)
    for row, inside in enumerate(sets):
        answers = [
            CandidateAnswer(
                candidate=name,
                text=texts[row][m],
                form=normalise(Equality.CHOICE, texts[row][m]),
                score=scores[row][m],
            )
            for m, name in enumerate(pool)
            if inside[m]
        ]
        right = False
        if answers:
            merged = aggregate(answers, method=rule, temperature=t)
            right = bool(merged.votes) and labels[row][pool.index(merged.winner)]
        assert found[row] == right, (rule, row)


GAPPY = st.lists(st.none() | CHANCES, min_size=5, max_size=5)


def assert_weighed_as_served(pool, texts, labels, sets, scores, ratings, t):
    """Every row is right or wrong as the gateway's vote by these ratings is; None is a gap."""
    votes = votes_of(pool, texts, labels, scores, ratings=ratings)
    found = votes.right(Method.WEIGHTED, np.array(sets), t)
    for row, inside in enumerate(sets):
        answers = [
            CandidateAnswer(
                candidate=name,
                text=texts[row][m],
                form=normalise(Equality.CHOICE, texts[row][m]),
                score=scores[row][m],
                weight=ratings[row][m],
            )
            for m, name in enumerate(pool)
            if inside[m]
        ]
        right = False
        if answers:
            merged = aggregate(answers, method=Method.WEIGHTED, weight=Weight.P_TRUE, temperature=t)
            right = bool(merged.votes) and labels[row][pool.index(merged.winner)]
        assert found[row] == right, row


@given(
    world=worlds(), table=st.lists(GAPPY, min_size=4, max_size=4), t=st.sampled_from(TEMPERATURES)
)
def test_votes_weighed_by_ratings_are_those_of_the_gateway(world, table, t):
    """For any ratings, missing ones and ties included."""
    pool, texts, labels, sets, scores = world
    ratings = [row[: len(pool)] for row in table[: len(texts)]]
    assert_weighed_as_served(pool, texts, labels, sets, scores, ratings, t)


@pytest.mark.parametrize("step", [1.0, 1e-6], ids=["verbal", "p_true"])
@pytest.mark.parametrize("t", [0.05, 0.3, 1.0])
def test_many_votes_weighed_by_ratings_are_those_of_the_gateway(t, step):
    """Six candidates, a third of them without a rating; sets leave out some rated ones.

    A gap counts as the mean of the set's readable answers, not of the row's, and not as 0.
    """
    rng = np.random.default_rng(17)
    shape = (1_000, 6)
    texts = rng.choice(TEXTS, shape).tolist()
    labels, sets = rng.random(shape) < 0.5, rng.random(shape) < 0.6
    scores = rng.random(shape).round(6)
    rated = (rng.random(shape) / step).round() * step
    ratings = np.where(rng.random(shape) < 1 / 3, None, rated)
    rows = (each.tolist() for each in (labels, sets, scores, ratings))
    assert_weighed_as_served((*NAMES, "m5"), texts, *rows, t)


def test_a_missing_rating_is_the_mean_of_its_own_set():
    """0.9 outside the set, and 0.9 for what cannot be read, leave the gap at 0.4 and not above 0.5.

    Beside 0.3 alone it is 0.3, a tie that goes to the first name; as 0 it would lose.
    """
    pool, texts = ("gap", "low", "high", "mute", "out"), [["A", "B", "C", "", "D"]] * 2
    ratings = [[None, 0.3, 0.5, 0.9, 0.9]] * 2
    labels = [[True, False, False, False, False], [False, False, True, False, False]]
    votes = votes_of(pool, texts, labels, [[0.5] * 5] * 2, ratings=ratings)
    three = np.array([[True, True, True, True, False]] * 2)
    assert votes.right(Method.WEIGHTED, three, 0.1).tolist() == [False, True]
    two = np.array([[True, True, False, True, False]] * 2)
    assert votes.right(Method.WEIGHTED, two, 0.1).tolist() == [True, False]


def served(method, pool, texts, labels, scores, t):
    """Whether the gateway's vote over all answers of a row is right."""
    answers = [
        CandidateAnswer(
            candidate=name,
            text=text,
            form=normalise(Equality.EXACT, text),
            score=float(score),
        )
        for name, text, score in zip(pool, texts, scores, strict=True)
    ]
    merged = aggregate(answers, method=method, temperature=t)
    return bool(merged.votes) and bool(labels[pool.index(merged.winner)])


@pytest.mark.parametrize("count", [11, 16, 25])
@pytest.mark.parametrize("t", [0.05, 1.0])
@pytest.mark.parametrize("rule", METHODS)
def test_large_pools_vote_as_the_gateway_does(rule, t, count):
    """More candidates than the ten answers that log-odds expect, at times more answers, too.

    Where more than ten are given C is their number: two weak votes for an answer then count more
    beside a strong one.
    """
    rng = np.random.default_rng(count)
    pool = tuple(f"m{number:02d}" for number in rng.permutation(count))
    kinds = rng.choice([2, 6, 20, 1_000], (600, 1))  # how many answers go around in a row
    texts = [[f"text {n}" for n in row] for row in rng.integers(0, kinds, (600, count))]
    labels = rng.random((600, count)) < 0.5
    scores = rng.random((600, count)).round(6)
    same = agreement(answer_classes(texts, Equality.EXACT))
    votes = Votes(pool=pool, labels=labels, scores=scores, same=same, stacked=None)
    whole_pool = np.ones_like(labels)
    assert max(len(set(row)) for row in texts) > 10
    expected = [served(rule, pool, *row, t) for row in zip(texts, labels, scores, strict=True)]
    assert votes.right(rule, whole_pool, t).tolist() == expected


def test_a_sure_candidate_that_cannot_be_read_takes_no_vote_away():
    """Weights normalise over readable answers: beside exp(1 / 0.05) the others' would all tie.

    Twice exp(0 / T) is more than once exp(0.034655 / T), by a relative 5e-5; a tie would go to the
    higher score.
    """
    pool, texts, scores = ("sure", "x", "y", "z"), ["", "A", "B", "B"], [1.0, 0.034655, 0.0, 0.0]
    labels = [True, False, True, True]
    same = agreement(answer_classes([texts], Equality.EXACT))
    votes = Votes(
        pool=pool, labels=np.array([labels]), scores=np.array([scores]), same=same, stacked=None
    )
    assert served(Method.WEIGHTED, pool, texts, labels, scores, 0.05)
    assert votes.right(Method.WEIGHTED, np.ones((1, 4), dtype=bool), 0.05).tolist() == [True]


@given(world=worlds(), skills=st.lists(st.integers(-8, 8), min_size=5, max_size=5))
def test_stacked_vote_elects_the_strongest_answer(world, skills):
    """By hand: the class with the largest sum of skill + trust logit f among those selected."""
    pool, texts, labels, sets, scores = world
    count = len(pool)
    stacked = StackedVote(pool, np.array(skills[:count]) / 8.0, np.full(count, 0.5))
    votes = votes_of(pool, texts, labels, scores, stacked)
    counts = stacked.counts(np.array(scores))
    order = sorted(range(count), key=pool.__getitem__)
    chosen = winners(votes.same, np.array(sets), counts, np.array(scores), order)
    assert Method.STACKED in votes.rules
    for row, inside in enumerate(sets):
        voters = [m for m in range(count) if inside[m] and votes.same[row, m, m]]
        if voters:
            strength = {
                m: sum(stacked.count(pool[o], scores[row][o]) for o in voters
                       if votes.same[row, m, o])
                for m in voters
            }  # fmt: skip
            assert strength[int(chosen[row])] >= max(strength.values()) - 1e-9


def test_some_rows_are_a_part_of_all():
    """`at` keeps rows together with their answers."""
    texts = [["A", "B"], ["C", "C"], ["B", "A"]]
    votes = votes_of(("x", "y"), texts, [[True, False]] * 3, [[0.2, 0.9]] * 3)
    whole_pool = np.ones((3, 2), dtype=bool)
    whole = votes.right(Method.WEIGHTED, whole_pool, 0.1)
    assert whole.tolist() == [False, False, False]  # the second one's answer is preferred
    part = votes.at(np.array([2, 0])).right(Method.WEIGHTED, whole_pool[:2] & [True, False], 0.1)
    assert part.tolist() == [True, True]


def test_some_rows_keep_their_ratings():
    """The rating of each row decides it, wherever the row stands."""
    texts, labels = [["A", "B"]] * 3, [[True, False]] * 3
    ratings = [[0.9, 0.1], [0.1, 0.9], [0.9, None]]
    votes = votes_of(("x", "y"), texts, labels, [[0.2, 0.9]] * 3, ratings=ratings)
    whole_pool = np.ones((3, 2), dtype=bool)
    assert votes.right(Method.WEIGHTED, whole_pool, 0.1).tolist() == [True, False, False]
    part = votes.at(np.array([1, 0]))
    assert part.right(Method.WEIGHTED, whole_pool[:2], 0.1).tolist() == [False, True]


def test_temperature_is_the_best_on_its_rows():
    """Weighted by a small T the one good candidate outvotes two bad ones; a large T is majority."""
    texts = [["A", "B", "B"]] * 4
    votes = votes_of(("x", "y", "z"), texts, [[True, False, False]] * 4, [[0.9, 0.5, 0.5]] * 4)
    best = votes.best_temperature(np.ones((4, 3), dtype=bool))
    assert best == max(t for t in TEMPERATURES if np.exp(0.4 / t) > 2)
    assert votes.accuracy(Method.WEIGHTED, np.ones((4, 3), dtype=bool), best) == 1.0
