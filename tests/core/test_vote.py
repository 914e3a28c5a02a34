"""Majority, weighted and log-odds votes. Paper, Sec. 3.3."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, Weight, aggregate, log_odds, softmax
from racer_core.errors import InputError
from racer_core.types import CandidateAnswer
from tests.kit.strategies import probabilities

UNREADABLE = "."  # ``exact`` reads no answer in it
temperatures = st.sampled_from([1e-3, 0.01, 0.1, 1.0, 100.0])
methods = st.sampled_from(list(Method))
kinds = st.sampled_from(list(Weight))
# The properties hold for every rule; this one needs numbers, and any will do.
merge = partial(
    aggregate,
    stacked=StackedVote(
        pool=tuple(f"m{i}" for i in range(6)),
        skill=np.array([0.5, -0.25, 0.0, 1.0, 0.5, 0.125]),
        trust=np.array([1.0, 0.5, 0.0, 0.25, 1.0, 2.0]),
    ),
)
TEXTS = ["Paris", "paris.", "Rome", "Oslo", UNREADABLE]


def answers(*texts_and_scores):
    """Answers of the candidates m0, m1, ..., from texts and router scores in turn."""
    pairs = zip(texts_and_scores[::2], texts_and_scores[1::2], strict=True)
    return [
        CandidateAnswer(
            candidate=f"m{i}", text=text, form=normalise(Equality.EXACT, text), score=score
        )
        for i, (text, score) in enumerate(pairs)
    ]


def arrivals(scores=probabilities):
    """One to six answers of a few texts, some of them equal, some unreadable."""
    return st.lists(st.tuples(st.sampled_from(TEXTS), scores), min_size=1, max_size=6).map(
        lambda pairs: answers(*(part for pair in pairs for part in pair))
    )


def weighed(*texts_scores_and_weights):
    """Answers with what an evaluator gave them, in threes."""
    parts = texts_scores_and_weights
    arrived = answers(*(part for i in range(0, len(parts), 3) for part in parts[i : i + 2]))
    return [replace(each, weight=weight) for each, weight in zip(arrived, parts[2::3], strict=True)]


ratings = st.none() | probabilities


def rated_arrivals(weights=ratings):
    """The same as ``arrivals``, rated by an evaluator that fails now and then."""
    rated = st.tuples(st.sampled_from(TEXTS), probabilities, weights)
    return st.lists(rated, min_size=1, max_size=6).map(
        lambda rows: weighed(*(part for row in rows for part in row))
    )


# A sure but unreadable candidate: at small T every other weight is rounded to 0.
DROWNED = answers(UNREADABLE, 1.0, "Paris", 0.2, "Paris", 0.0, "Rome", 0.15)


def test_majority_wins_over_a_better_score():
    """Two votes against one; the text is that of the better scored of the two, as it wrote it."""
    merged = aggregate(answers("Rome", 0.9, "paris", 0.2, "Paris.", 0.3))
    assert (merged.winner, merged.text) == ("m2", "Paris.")
    assert merged.votes == {"rome": 1.0, "paris": 2.0}


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


@pytest.mark.parametrize("weight", [Weight.VERBAL, Weight.P_TRUE])
def test_the_evaluators_weight_counts_instead_of_the_router_score(weight):
    """By hand at T = 0.5; the text still comes from the better router score of the class."""
    arrived = weighed("Rome", 0.9, 0.0, "Paris", 0.2, 1.0, "paris", 0.3, 0.2)
    merged = aggregate(arrived, method=Method.WEIGHTED, weight=weight, temperature=0.5)
    rome, paris = 1.0, math.exp(2.0) + math.exp(0.4)
    expected = {"rome": rome / (rome + paris), "paris": paris / (rome + paris)}
    assert merged.votes == pytest.approx(expected)
    assert merged.winner == "m2"
    by_score = aggregate(arrived, method=Method.WEIGHTED, temperature=0.1)
    assert by_score.text == "Rome"


@given(arrived=rated_arrivals(), temperature=temperatures)
def test_an_unknown_weight_counts_as_the_mean_of_the_known(arrived, temperature):
    """Of the readable answers alone: what is no vote has no part in the mean."""
    known = [
        each.weight
        for each in arrived
        if each.weight is not None and normalise(Equality.EXACT, each.text)
    ]
    mean = math.fsum(known) / len(known) if known else 0.7  # any constant: the votes are then equal
    filled = [replace(each, weight=mean) if each.weight is None else each for each in arrived]
    options = {"method": Method.WEIGHTED, "weight": Weight.P_TRUE, "temperature": temperature}
    assert aggregate(arrived, **options) == aggregate(filled, **options)


def posterior(arrived, possible, clip=0.01):
    """Naive Bayes by definition: the likelihood of all answers under each of C truths.

    Truths that no answer names are one entry, "", for they are alike.
    """
    forms = {each.candidate: normalise(Equality.EXACT, each.text) for each in arrived}
    readable = [each for each in arrived if forms[each.candidate]]
    truths = [*dict.fromkeys(forms[each.candidate] for each in readable), ""]

    def likelihood(truth):
        chances = [min(max(each.score, clip), 1 - clip) for each in readable]
        return math.prod(
            chance if forms[each.candidate] == truth else (1 - chance) / (possible - 1)
            for each, chance in zip(readable, chances, strict=True)
        )

    return {truth: likelihood(truth) for truth in truths}


@given(arrived=arrivals(), possible=st.integers(4, 50))
def test_log_odds_are_the_posterior_of_naive_bayes(arrived, possible):
    """Votes are log-posteriors relative to an answer not given; the winner's is the largest."""
    merged = aggregate(arrived, method=Method.LOG_ODDS, options=possible)
    likelihoods = posterior(arrived, possible)
    for form, votes in merged.votes.items():
        assert votes == pytest.approx(math.log(likelihoods[form] / likelihoods[""]), abs=1e-9)
    if merged.votes:
        winning = merged.votes[normalise(Equality.EXACT, merged.text)]
        assert winning == max(merged.votes.values())


def test_options_that_the_answers_refute_give_way_to_them():
    """Three answers to a question of two: there are three at least."""
    three = answers("7", 0.6, "5", 0.5, "3", 0.4)
    assert aggregate(three, method=Method.LOG_ODDS, options=2).votes["7"] == pytest.approx(
        log_odds(0.6, 3)
    )


@pytest.mark.parametrize("possible", [2, 10, 1_000_000])
def test_sure_scores_stay_finite_and_can_be_outvoted(possible):
    """0 and 1 are clipped: one sure vote against two of 0.95 loses."""
    assert log_odds(1.0, possible) == pytest.approx(math.log(99 * (possible - 1)))
    assert log_odds(0.0, possible) == pytest.approx(math.log((possible - 1) / 99))
    arrived = answers("7", 1.0, "5", 0.95, "5", 0.95)
    assert aggregate(arrived, method=Method.LOG_ODDS, options=possible).text == "5"


@given(arrived=rated_arrivals(), method=methods, weight=kinds, temperature=temperatures)
def test_text_is_that_of_the_best_scored_candidate_of_the_winning_class(
    arrived, method, weight, temperature
):
    """Never a merged text, and never one that lost the vote."""
    merged = merge(arrived, method=method, weight=weight, temperature=temperature)
    winner = next(each for each in arrived if each.candidate == merged.winner)
    assert winner.text == merged.text
    form = normalise(Equality.EXACT, merged.text)
    assert winner.score == max(
        each.score for each in arrived if normalise(Equality.EXACT, each.text) == form
    )
    if merged.votes:
        assert merged.votes[form] == max(merged.votes.values())


@example(arrived=DROWNED, method=Method.WEIGHTED, weight=Weight.ROUTER, temperature=1e-3)
@given(arrived=rated_arrivals(), method=methods, weight=kinds, temperature=temperatures)
def test_unreadable_answers_never_change_the_winner(arrived, method, weight, temperature):
    """They are no votes; with small T their weight must not drown the readable ones."""
    readable = [each for each in arrived if normalise(Equality.EXACT, each.text)]
    if readable:
        options = {"method": method, "weight": weight, "temperature": temperature}
        assert merge(arrived, **options).winner == merge(readable, **options).winner


@pytest.mark.parametrize("weight", list(Weight))
@pytest.mark.parametrize("method", list(Method))
def test_without_readable_answers_the_best_scored_text_comes_back_without_votes(method, weight):
    """The result shows that no vote was counted."""
    arrived = weighed(UNREADABLE, 0.2, 0.9, "", 0.7, None)
    merged = merge(arrived, method=method, weight=weight)
    assert (merged.winner, merged.votes) == ("m1", {})


@given(
    arrived=rated_arrivals(), method=methods, weight=kinds, temperature=temperatures, data=st.data()
)
@example(
    arrived=answers("Paris", 0.5, "Rome", 0.5, "paris.", 0.5, "Rome", 0.5),
    method=Method.MAJORITY,
    weight=Weight.ROUTER,
    temperature=1.0,
    data=None,
)
def test_order_of_arrival_does_not_matter(arrived, method, weight, temperature, data):
    """Not even where votes, means and best scores tie: the first name wins."""
    shuffled = data.draw(st.permutations(arrived)) if data else arrived[::-1]
    options = {"method": method, "weight": weight, "temperature": temperature}
    assert merge(arrived, **options) == merge(shuffled, **options)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1.0, 1e300, math.inf])
def test_softmax_is_a_distribution_at_any_temperature(temperature):
    """Shifted by the largest score, so nothing overflows; equal scores share equally."""
    weights = softmax([1.0, 0.0, 1.0], temperature)
    assert math.fsum(weights) == pytest.approx(1.0)
    assert weights[0] == weights[2] >= weights[1] >= 0.0


def test_forms_decide_what_agrees():
    """One number, written as 5 and as $5.00, is two texts; no form is no vote, whatever it says."""
    arrived = answers("7", 0.5, "5", 0.3, "$5.00", 0.2)
    read = [replace(each, form=normalise(Equality.NUMBER, each.text)) for each in arrived]
    assert (aggregate(arrived).text, aggregate(read).text) == ("7", "5")
    unread = [replace(each, form=None) if each.text == "7" else each for each in arrived]
    assert aggregate(unread).votes == {"5": 1.0, "$5.00": 1.0}


def test_votes_that_cannot_be_counted_are_refused():
    """The limit T -> 0 is the best score, 0 divides by zero; one option leaves no wrong answer."""
    one = answers("a", 0.5)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="temperature"):
            aggregate(one, method=Method.WEIGHTED, temperature=temperature)
    for options in (1, 0, -1):
        with pytest.raises(InputError, match="options"):
            aggregate(one, method=Method.LOG_ODDS, options=options)
    with pytest.raises(InputError, match="no candidate answered"):
        aggregate([])
    with pytest.raises(InputError, match="needs a model"):
        aggregate(one, method=Method.STACKED)
