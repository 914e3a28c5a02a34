"""Majority and weighted votes. Paper, Sec. 3.3."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.vote import Method, aggregate, softmax
from racer_core.errors import InputError
from racer_core.types import CandidateAnswer
from tests.strategies import probabilities

UNREADABLE = "."  # ``exact`` reads no answer in it
temperatures = st.sampled_from([1e-3, 0.01, 0.1, 1.0, 100.0])
methods = st.sampled_from(list(Method))


def answers(*texts_and_scores):
    """Answers of the candidates m0, m1, ..., from texts and router scores in turn."""
    pairs = zip(texts_and_scores[::2], texts_and_scores[1::2], strict=True)
    return [
        CandidateAnswer(candidate=f"m{i}", text=text, score=score)
        for i, (text, score) in enumerate(pairs)
    ]


def arrivals(scores=probabilities):
    """One to six answers of a few texts, some of them equal, some unreadable."""
    texts = st.sampled_from(["Paris", "paris.", "Rome", "Oslo", UNREADABLE])
    return st.lists(st.tuples(texts, scores), min_size=1, max_size=6).map(
        lambda pairs: answers(*(part for pair in pairs for part in pair))
    )


# A sure but unreadable candidate: at small T every other weight is rounded to 0.
DROWNED = answers(UNREADABLE, 1.0, "Paris", 0.2, "Paris", 0.0, "Rome", 0.15)


def test_majority_wins_over_a_better_score():
    """Two votes against one; the text is that of the better scored of the two, as it wrote it."""
    merged = aggregate(answers("Rome", 0.9, "paris", 0.2, "Paris.", 0.3))
    assert (merged.winner, merged.text) == ("m2", "Paris.")
    assert merged.votes == {"rome": 1.0, "paris": 2.0}


def test_tied_majority_goes_to_the_higher_mean_score():
    """Rome's mean is 0.5, Paris's 0.45, though Paris has the best single score."""
    merged = aggregate(answers("Paris", 0.8, "Rome", 0.5, "Paris", 0.1, "Rome", 0.5))
    assert merged.text == "Rome"


def test_tie_in_votes_and_mean_goes_to_the_higher_best_score():
    """Both means are 0.5."""
    assert aggregate(answers("Rome", 0.5, "Paris", 0.75, "Rome", 0.5, "Paris", 0.25)).winner == "m1"


def test_weighted_vote_counts_softmax_of_the_scores():
    """At T = 0.5 two votes of 0.4 weigh more than one of 0.6, at T = 0.1 less; weights by hand."""
    arrived = answers("Rome", 0.6, "Paris", 0.4, "Paris", 0.4)
    warm = aggregate(arrived, method=Method.WEIGHTED, temperature=0.5)
    assert warm.text == "Paris"
    rome = math.exp(1.2) / (math.exp(1.2) + 2 * math.exp(0.8))
    assert warm.votes == pytest.approx({"rome": rome, "paris": 1 - rome})
    assert aggregate(arrived, method=Method.WEIGHTED, temperature=0.1).text == "Rome"


@example(arrived=DROWNED)
@given(arrived=arrivals(st.integers(0, 1_000).map(lambda k: k / 1_000)))
def test_cold_weighted_vote_takes_the_best_score(arrived):
    """T -> 0: the class of the best scored readable answer, without overflow."""
    readable = [each for each in arrived if normalise(Equality.EXACT, each.text)]
    merged = aggregate(arrived, method=Method.WEIGHTED, temperature=1e-6)
    best = max(each.score for each in readable or arrived)
    assert best == next(each.score for each in arrived if each.candidate == merged.winner)


@given(arrived=arrivals())
def test_hot_weighted_vote_is_the_majority(arrived):
    """T -> infinity: all weights are equal, ties included."""
    hot = aggregate(arrived, method=Method.WEIGHTED, temperature=1e18)
    assert hot.winner == aggregate(arrived).winner


@given(arrived=arrivals(), method=methods, temperature=temperatures)
def test_text_is_that_of_the_best_scored_candidate_of_the_winning_class(
    arrived, method, temperature
):
    """Never a merged text, and never one that lost the vote."""
    merged = aggregate(arrived, method=method, temperature=temperature)
    winner = next(each for each in arrived if each.candidate == merged.winner)
    assert winner.text == merged.text
    form = normalise(Equality.EXACT, merged.text)
    assert winner.score == max(
        each.score for each in arrived if normalise(Equality.EXACT, each.text) == form
    )
    if merged.votes:
        assert merged.votes[form] == max(merged.votes.values())


@example(arrived=DROWNED, method=Method.WEIGHTED, temperature=1e-3)
@given(arrived=arrivals(), method=methods, temperature=temperatures)
def test_unreadable_answers_never_change_who_wins(arrived, method, temperature):
    """They are no votes; with small T their weight must not drown the readable ones."""
    readable = [each for each in arrived if normalise(Equality.EXACT, each.text)]
    if readable:
        options = {"method": method, "temperature": temperature}
        assert aggregate(arrived, **options).winner == aggregate(readable, **options).winner


def test_without_readable_answers_the_best_scored_text_comes_back_without_votes():
    """The caller can see that nobody was counted."""
    merged = aggregate(answers(UNREADABLE, 0.2, "", 0.7))
    assert (merged.winner, merged.votes) == ("m1", {})


@given(arrived=arrivals(), method=methods, temperature=temperatures, data=st.data())
@example(
    arrived=answers("Paris", 0.5, "Rome", 0.5, "paris.", 0.5, "Rome", 0.5),
    method=Method.MAJORITY,
    temperature=1.0,
    data=None,
)
def test_order_of_arrival_does_not_matter(arrived, method, temperature, data):
    """Not even where votes, means and best scores tie: the first name wins."""
    shuffled = data.draw(st.permutations(arrived)) if data else arrived[::-1]
    options = {"method": method, "temperature": temperature}
    assert aggregate(arrived, **options) == aggregate(shuffled, **options)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1.0, 1e300, math.inf])
def test_softmax_is_a_distribution_at_any_temperature(temperature):
    """Shifted by the largest score, so nothing overflows; equal scores share equally."""
    weights = softmax([1.0, 0.0, 1.0], temperature)
    assert math.fsum(weights) == pytest.approx(1.0)
    assert weights[0] == weights[2] >= weights[1] >= 0.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperature_must_be_above_zero(temperature):
    """The limit T -> 0 is the best score; 0 itself divides by zero."""
    with pytest.raises(InputError, match="temperature"):
        aggregate(answers("a", 0.5), method=Method.WEIGHTED, temperature=temperature)


def test_nothing_to_merge_is_an_error():
    """No candidate answered."""
    with pytest.raises(InputError, match="no candidate answered"):
        aggregate([])


def test_equality_decides_what_agrees():
    """One number, written as 5 and as $5.00, is two texts."""
    arrived = answers("7", 0.5, "5", 0.3, "$5.00", 0.2)
    assert aggregate(arrived, equality=Equality.NUMBER).text == "5"
    assert aggregate(arrived, equality=Equality.EXACT).text == "7"
