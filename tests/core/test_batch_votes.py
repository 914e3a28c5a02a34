"""Votes on arrays have the gateway's winners, row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, Weight, aggregate
from racer_core.offline.votes import TEMPERATURES, Votes
from racer_core.types import CandidateAnswer
from tests.kit.answers import row_answers

METHODS = (Method.MAJORITY, Method.WEIGHTED, Method.LOG_ODDS)
# Eighths tie and are exact; millionths are the grid that scores are rounded to.
CHANCES = st.one_of(
    st.integers(0, 8).map(lambda k: k / 8), st.integers(0, 10**6).map(lambda k: k / 10**6)
)
# Readable, of three forms, and not readable at all.
TEXTS = ("A", "(a)", "the answer is B", "C.", "no idea", "")
NAMES = ("m3", "m1", "m4", "m0", "m2")  # not in the order of the columns


GAPPY = st.lists(st.none() | CHANCES, min_size=5, max_size=5)
RATINGS = st.lists(GAPPY, min_size=4, max_size=4)


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
        answers=row_answers(texts, Equality.CHOICE),
        stacked=stacked,
        ratings=None if ratings is None else np.array(ratings, dtype=np.float64),
    )


@given(
    world=worlds(),
    method=st.sampled_from(Method),
    t=st.sampled_from(TEMPERATURES),
    table=st.none() | RATINGS,
    numbers=st.lists(st.integers(-8, 8), min_size=10, max_size=10),
)
def test_votes_on_arrays_are_those_of_the_gateway(world, method, t, table, numbers):
    """Every rule, temperature and rating; unreadable answers, missing ratings and ties included."""
    pool, texts, labels, sets, scores = world
    skill, trust = np.array(numbers).reshape(2, 5)[:, : len(pool)] / 8.0
    stacked = StackedVote(pool, skill, trust)
    rated = method is Method.WEIGHTED and table is not None
    ratings = [row[: len(pool)] for row in table[: len(texts)]] if rated else None
    votes = votes_of(pool, texts, labels, scores, stacked, ratings)
    assert Method.STACKED in votes.rules
    rule = {"method": method, "temperature": t, "stacked": stacked}
    if rated:
        rule["weight"] = Weight.P_TRUE
    found = votes.right(method, np.array(sets), t)
    for row, inside in enumerate(sets):
        given_ratings = None if ratings is None else ratings[row]
        expected = served(pool, texts[row], labels[row], scores[row], inside, given_ratings, **rule)
        assert found[row] == expected, row
    part = np.arange(len(texts))[::-2]  # some rows keep their answers and ratings
    assert votes.at(part).right(method, np.array(sets)[part], t).tolist() == found[part].tolist()


def served(pool, texts, labels, scores, inside=None, ratings=None, *, by=Equality.CHOICE, **rule):
    """Whether the gateway's vote over the answers of a row's set is right."""
    answers = [
        CandidateAnswer(
            candidate=name,
            text=texts[m],
            form=normalise(by, texts[m]),
            score=float(scores[m]),
            weight=None if ratings is None else ratings[m],
        )
        for m, name in enumerate(pool)
        if inside is None or inside[m]
    ]
    merged = aggregate(answers, **rule) if answers else None
    return bool(merged and merged.votes) and bool(labels[pool.index(merged.winner)])


@pytest.mark.parametrize("count", [11, 25])
@pytest.mark.parametrize("t", [0.05, 1.0])
@pytest.mark.parametrize("rule", METHODS)
def test_large_pools_vote_as_the_gateway_does(rule, t, count):
    """More candidates than the ten answers that log-odds expect, at times more answers, too."""
    rng = np.random.default_rng(count)
    pool = tuple(f"m{number:02d}" for number in rng.permutation(count))
    kinds = rng.choice([2, 6, 20, 1_000], (200, 1))  # how many answers go around in a row
    texts = [[f"text {n}" for n in row] for row in rng.integers(0, kinds, (200, count))]
    labels = rng.random((200, count)) < 0.5
    scores = rng.random((200, count)).round(6)
    answers = row_answers(texts, Equality.EXACT)
    votes = Votes(pool=pool, labels=labels, scores=scores, answers=answers, stacked=None)
    assert max(len(set(row)) for row in texts) > 10
    terms = {"method": rule, "temperature": t, "by": Equality.EXACT}
    expected = [served(pool, *row, **terms) for row in zip(texts, labels, scores, strict=True)]
    assert votes.right(rule, np.ones_like(labels), t).tolist() == expected


def test_a_sure_candidate_that_cannot_be_read_takes_no_vote_away():
    """Weights normalise over readable answers: beside exp(1 / 0.05) the others' would all tie."""
    row = ("sure", "x", "y", "z"), ["", "A", "B", "B"], [True, False, True, True]
    scores = [1.0, 0.034655, 0.0, 0.0]
    votes = votes_of(row[0], [row[1]], [row[2]], [scores])
    assert served(*row, scores, method=Method.WEIGHTED, temperature=0.05)
    assert votes.right(Method.WEIGHTED, np.ones((1, 4), dtype=bool), 0.05).tolist() == [True]


def test_temperature_is_the_best_on_its_rows():
    """Weighted by a small T the one good candidate outvotes two bad ones; a large T is majority."""
    texts = [["A", "B", "B"]] * 4
    votes = votes_of(("x", "y", "z"), texts, [[True, False, False]] * 4, [[0.9, 0.5, 0.5]] * 4)
    best = votes.best_temperature(np.ones((4, 3), dtype=bool))
    assert best == max(t for t in TEMPERATURES if np.exp(0.4 / t) > 2)
    assert votes.accuracy(Method.WEIGHTED, np.ones((4, 3), dtype=bool), best) == 1.0
