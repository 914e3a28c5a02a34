"""Early end of a vote: at the earliest possible answer, with the winner of the full vote."""

import itertools
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.early import decided, first_wave
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, aggregate
from racer_core.errors import InputError
from racer_core.types import CandidateAnswer

SCORES = st.one_of(
    st.integers(0, 4).map(lambda k: k / 4),
    st.integers(0, 40).map(lambda k: k / 40),  # a KNN router's, where f = 1/10 counts nothing
    st.floats(0.0, 1.0),
)
COUNTS = st.one_of(st.integers(-4, 4).map(lambda k: k / 2), st.floats(-3.0, 3.0))
NAMES = ("m2", "m0", "m4", "m1", "m3")
MAJORITY = {"method": Method.MAJORITY}


def answer(name, form, score):
    """A candidate's answer, which counts as ``form``."""
    return CandidateAnswer(candidate=name, text=form or "", form=form, score=score)


def answers(*forms_and_scores):
    """Answers of the candidates a, b, ..., from forms and router scores in turn."""
    pairs = zip(forms_and_scores[::2], forms_and_scores[1::2], strict=True)
    return [answer(name, *pair) for name, pair in zip("abcdefgh", pairs, strict=False)]


def winning_class(arrived, rule):
    """What the full vote elects; None where nothing can be read."""
    if not arrived:
        return None
    winner = aggregate(arrived, **rule).winner
    return next(each.form for each in arrived if each.candidate == winner)


def continuations(known, count):
    """What ``count`` candidates can answer: known forms, new ones in their order, or nothing."""
    if count == 0:
        yield ()
        return
    for before in continuations(known, count - 1):
        new = len({form for form in before if form is not None} - set(known))
        for form in (*known, *(f"new {i}" for i in range(new + 1)), None):
            yield (*before, form)


def cannot_change(arrived, outstanding, rule):
    """By definition: every continuation that there is has the same winning class."""
    known = sorted({each.form for each in arrived if each.form is not None})
    now = winning_class(arrived, rule)
    return all(
        winning_class([*arrived, *map(answer, outstanding, forms, outstanding.values())], rule)
        == now
        for forms in continuations(known, len(outstanding))
    )


@st.composite
def rules(draw, names=NAMES):
    """One of the votes whose counts are known before the call."""
    method = draw(st.sampled_from(list(Method)))
    match method:
        case Method.WEIGHTED:
            heat = draw(st.sampled_from([1e-3, 0.01, 0.02, 0.1, 1.0, 100.0, float("inf")]))
            return {"method": method, "temperature": heat}
        case Method.LOG_ODDS:
            return {"method": method, "options": draw(st.sampled_from([2, 3, 4, 10]))}
        case Method.STACKED:
            skill, trust = (draw(st.lists(COUNTS, min_size=len(names), max_size=len(names)))
                            for _ in range(2))  # fmt: skip
            return {
                "method": method,
                "stacked": StackedVote(tuple(names), np.array(skill), np.array(trust)),
            }
        case Method.MAJORITY:
            return {"method": method}


@st.composite
def worlds(draw):
    """Answers that are there, router scores of those that are not, and a rule."""
    size = draw(st.integers(1, 5))
    there = draw(st.integers(1, size))
    scores = draw(st.lists(SCORES, min_size=size, max_size=size))
    forms = draw(
        st.lists(st.sampled_from(["x", "x", "y", "z", None]), min_size=there, max_size=there)
    )
    arrived = [answer(*each) for each in zip(NAMES, forms, scores, strict=False)]
    return arrived, dict(zip(NAMES[there:size], scores[there:], strict=True)), draw(rules())


COLD = {"method": Method.WEIGHTED, "temperature": 0.01}
GUESSERS = {"method": Method.LOG_ODDS, "options": 10}
TWO_OPTIONS = {"method": Method.LOG_ODDS, "options": 2}


@settings(max_examples=400, deadline=None)
# Two classes tie in votes, and every further answer lowers the mean score of its class.
@example(world=(answers("x", 0.5, "x", 0.5, "y", 0.5, "y", 0.5), {"e": 0.1, "f": 0.1}, GUESSERS))
# Votes of a billionth, and less, beside a tie of two sure candidates.
@example(world=(answers("x", 0.9, "y", 0.9), {"c": 0.6, "d": 0.625, "e": 0.3}, COLD))
# The weight of e helps neither class; in the sum of weights it changes the twelfth decimal.
@example(
    world=(
        answers("x", 0.8930685281944053, "x", 0.8930685281944053, "y", 0.9, "z", 0.810663060969726),
        {"e": 0.6117277595300219},
        COLD,
    )
)
# Where C has to grow for a rival to win, those who make it grow do not vote for the rival.
@example(
    world=(
        answers("x", 0.95, "x", 0.9),
        dict(zip("cdefghi", (0.6, 0.4, 0.45, 0.9, 0.45, 0.4, 0.4), strict=True)),
        TWO_OPTIONS,
    )
)
@given(world=worlds())
def test_a_vote_is_decided_exactly_when_no_continuation_changes_who_wins(world):
    """Both ways: never too early, and not a call too late."""
    arrived, outstanding, rule = world
    assert decided(arrived, outstanding, **rule) == cannot_change(arrived, outstanding, rule)


@st.composite
def large_worlds(draw):
    """Up to sixteen candidates, most of them answered, and the answers that the others may give."""
    size = draw(st.integers(6, 16))
    names = [f"m{i:02d}" for i in range(size)]
    scores = draw(st.lists(SCORES, min_size=size, max_size=size))
    there = draw(st.integers(size // 2, size - 1))
    forms = draw(
        st.lists(st.sampled_from(["x", "x", "x", "x", "y", None]), min_size=there, max_size=there)
    )
    arrived = [answer(*each) for each in zip(names, forms, scores, strict=False)]
    outstanding = dict(zip(names[there:], scores[there:], strict=True))
    more = st.lists(
        st.sampled_from(["x", "y", "new", "newer", None]),
        min_size=len(outstanding),
        max_size=len(outstanding),
    )
    return arrived, outstanding, draw(rules(names)), draw(st.lists(more, max_size=20))


@settings(max_examples=200, deadline=None)
@given(world=large_worlds())
def test_a_decided_vote_of_a_large_pool_stays_decided(world):
    """Too many continuations to try all; those that join one class are always among them."""
    arrived, outstanding, rule, drawn = world
    if not decided(arrived, outstanding, **rule):
        return
    now = winning_class(arrived, rule)
    together = [[form] * len(outstanding) for form in ("x", "y", "new", None)]
    for forms in [*drawn, *together]:
        more = map(answer, outstanding, forms, outstanding.values())
        assert winning_class([*arrived, *more], rule) == now


@pytest.mark.parametrize(
    ("arrived", "outstanding", "over"),
    [
        (answers("x", 0.5, "x", 0.5), {"z": 0.9}, True),  # two to one at most
        (answers("x", 0.5, "x", 0.5, "y", 0.5), {"z": 0.5}, True),  # or two to two: first name
        (answers("x", 0.5, "x", 0.5, "y", 0.5), {"Z": 0.5}, False),  # and that may be the other
        (answers("x", 0.5, "x", 0.5, "y", 0.5), {"z": 0.4}, True),  # whose mean is lower
        (answers("x", 0.5, "x", 0.5, "y", 0.5), {"z": 0.6}, False),  # or higher
        (answers("x", 0.5), {"z": 0.4}, True),  # one each: the higher score
        (answers("x", 0.5), {"z": 0.5}, True),  # or the first name
        (answers("x", 0.5), {"Z": 0.5}, False),
        (answers("x", 0.9), {"y": 0.1, "z": 0.1}, False),  # they may agree on something new
        (answers(None, 0.9), {"z": 0.1}, False),  # no answer has a class yet
        (answers(None, 0.9), {}, True),
        ([], {"z": 0.1}, False),
        ([], {}, True),
    ],
)
def test_majorities_by_hand(arrived, outstanding, over):
    """Ties are what they are in the full vote: higher mean score, best score, first name."""
    assert decided(arrived, outstanding, **MAJORITY) is over


def test_a_heavy_vote_decides_against_many_light_ones():
    """At T = 0.1 one vote of 0.9 weighs e^5 = 148 times as much as one of 0.4."""
    others = dict.fromkeys("bcdefgh", 0.4)
    weighted = {"method": Method.WEIGHTED, "temperature": 0.1}
    assert decided(answers("x", 0.9), others, **weighted)
    assert not decided(answers("x", 0.9), others, **MAJORITY)
    assert not decided(answers("x", 0.9), {**others, "i": 0.95}, **weighted)


def test_a_negative_count_keeps_the_vote_open():
    """Stacked counts may be negative: an answer that joins the leader can take votes from it."""
    arrived = answers("x", 0.5, "y", 0.5)
    pool, trust = ("a", "b", "c"), np.zeros(3)
    against = StackedVote(pool, np.array([1.0, 0.5, -0.75]), trust)
    barely = StackedVote(pool, np.array([1.0, 0.5, -0.25]), trust)
    assert not decided(arrived, {"c": 0.5}, method=Method.STACKED, stacked=against)
    assert decided(arrived, {"c": 0.5}, method=Method.STACKED, stacked=barely)


def test_more_possible_answers_can_turn_a_vote_of_log_odds():
    """Of two answers 0.9 beats 0.7 and 0.6 together, of four it does not: C grows with new ones.

    log 9 = 2.20 against log 7/3 + log 3/2 = 1.25; with C = 4 each vote gains log 3.
    """
    arrived = answers("x", 0.9, "y", 0.7, "y", 0.6)
    apart = [answer("d", "u", 0.5), answer("e", "v", 0.5)]
    assert winning_class(arrived, TWO_OPTIONS) == "x"
    assert winning_class([*arrived, *apart], TWO_OPTIONS) == "y"
    assert decided(arrived, {"d": 0.5}, **TWO_OPTIONS)
    assert not decided(arrived, {"d": 0.5, "e": 0.5}, **TWO_OPTIONS)


def test_too_many_votes_that_count_nothing_keep_a_tie_open():
    """Six candidates at f = 1/C could each go anywhere; the vote waits rather than try them all.

    It is decided (all means are equal, and the first name leads), which four of them can show.
    """
    arrived = answers("x", 0.1, "y", 0.1)
    silent = {f"m{i}": 0.1 for i in range(6)}
    assert not decided(arrived, silent, **GUESSERS)
    assert decided(arrived, dict(itertools.islice(silent.items(), 4)), **GUESSERS)


TEXTS = {
    Equality.CHOICE: ["The answer is C.", "(C)", "B", "none of these", "Answer: A"],
    Equality.NUMBER: ["42", "It is $42.00", "7", "no idea", "41"],
    Equality.EXACT: ["Paris", "paris.", "Rome", ".", "Oslo"],
    Equality.JSON: ['{"a": 1}', '```json\n{"a": 1.0}\n```', '{"a": 2}', "sorry", "[]"],
}


@st.composite
def arrivals(draw):
    """Three to eight candidates with real texts in the order in which they answer, or fail."""
    kind = draw(st.sampled_from(list(TEXTS)))
    size = draw(st.integers(3, 8))
    names = [f"m{i}" for i in range(size)]
    texts = draw(st.lists(st.sampled_from(TEXTS[kind]), min_size=size, max_size=size))
    scores = draw(st.lists(SCORES, min_size=size, max_size=size))
    all_answers = [
        CandidateAnswer(candidate=name, text=text, form=normalise(kind, text), score=score)
        for name, text, score in zip(names, texts, scores, strict=True)
    ]
    failed = draw(st.sets(st.sampled_from(names), max_size=2))
    return draw(st.permutations(all_answers)), failed, draw(rules(names))


@settings(max_examples=150)
@given(world=arrivals())
def test_stopping_early_elects_the_class_of_the_full_vote(world):
    """One after the other, some fail; the text is the best scored of those that had arrived."""
    all_answers, failed, rule = world
    outstanding = {each.candidate: each.score for each in all_answers}
    arrived = []
    for each in all_answers:
        del outstanding[each.candidate]
        arrived += [] if each.candidate in failed else [each]
        if decided(arrived, outstanding, **rule):
            break
    full = [each for each in all_answers if each.candidate not in failed]
    assert winning_class(arrived, rule) == winning_class(full, rule)
    if not arrived:
        return
    merged, form = aggregate(arrived, **rule), winning_class(arrived, rule)
    winner = next(each for each in arrived if each.candidate == merged.winner)
    assert merged.text == winner.text
    assert winner.score == max(each.score for each in arrived if each.form == form)


@settings(max_examples=150)
@given(world=arrivals())
def test_waves_elect_the_class_of_the_full_vote(world):
    """First the smallest wave that may decide, then the next; at most the whole set."""
    all_answers, failed, rule = world
    waiting = {each.candidate: each for each in all_answers}
    arrived = []
    while True:
        left = {name: each.score for name, each in waiting.items()}
        if decided(arrived, left, **rule):
            break
        size = first_wave(arrived, left, **rule)
        assert 1 <= size <= len(left)
        wave = [waiting.pop(name) for name in list(left)[:size]]
        arrived += [each for each in wave if each.candidate not in failed]
    full = [each for each in all_answers if each.candidate not in failed]
    assert winning_class(arrived, rule) == winning_class(full, rule)


@pytest.mark.parametrize(
    ("arrived", "waiting", "size"),
    [
        ([], {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6, "e": 0.5}, 3),  # three of five
        ([], {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6}, 2),  # two of four: the better mean
        ([], {"d": 0.6, "c": 0.7, "b": 0.8, "a": 0.9}, 3),  # in this order it is the worse
        ([], {"a": 0.9, "b": 0.8}, 1),
        ([], {"a": 0.9}, 1),
        (answers("x", 0.9, "x", 0.8, "y", 0.7), {"d": 0.6, "e": 0.5}, 1),  # the other may help y
        (answers("x", 0.9, "y", 0.8, "z", 0.7), {"d": 0.6, "e": 0.5, "f": 0.4}, 2),
        (answers("x", 0.9), {}, 0),
    ],
)
def test_a_wave_is_as_small_as_a_decision_can_be(arrived, waiting, size):
    """Majorities by hand; the best scored are called first."""
    assert first_wave(arrived, waiting, **MAJORITY) == size


@given(
    forms=st.lists(st.sampled_from(["x", "y", None]), max_size=2),
    scores=st.lists(SCORES, min_size=6, max_size=6),
    count=st.integers(1, 4),
)
def test_no_smaller_wave_could_decide_a_majority(forms, scores, count):
    """Whatever a smaller one answered; and if this one agrees the vote is over."""
    arrived = [answer(*each) for each in zip(NAMES, forms, scores, strict=False)]
    waiting = {f"w{i}": score for i, score in enumerate(scores[2 : 2 + count])}
    names, size = list(waiting), first_wave(arrived, waiting, **MAJORITY)

    def may_decide(called):
        rest = {name: waiting[name] for name in names[called:]}
        for given_forms in itertools.product(["x", "y", "new", None], repeat=called):
            more = [answer(name, form, waiting[name])
                    for name, form in zip(names, given_forms, strict=False)]  # fmt: skip
            if decided([*arrived, *more], rest, **MAJORITY):
                return True
        return False

    assert may_decide(size)
    assert not any(map(may_decide, range(1, size)))


def test_one_heavy_candidate_is_a_wave():
    """The router is sure of one: it is called alone, and agrees with itself."""
    scores = {"a": 0.9, "b": 0.3, "c": 0.3, "d": 0.2}
    assert first_wave([], scores, method=Method.WEIGHTED, temperature=0.05) == 1
    assert first_wave([], scores, method=Method.WEIGHTED, temperature=100.0) == 2


@pytest.mark.parametrize("ask", [decided, first_wave])
def test_a_stacked_vote_without_its_weights_is_refused(ask):
    """As by the vote itself."""
    with pytest.raises(InputError, match="needs a model"):
        ask(answers("x", 0.5), {"y": 0.5, "z": 0.5}, method=Method.STACKED)


def test_sixteen_candidates_are_a_matter_of_milliseconds():
    """The goal is 1 ms per decision on the event loop; the test allows 10 ms."""
    rng = np.random.default_rng(8)
    names = [f"m{i:02d}" for i in range(16)]
    stacked = StackedVote(tuple(names), rng.normal(0.5, 1.0, 16), rng.normal(0.3, 0.3, 16))
    ways = [
        partial(decided, method=Method.MAJORITY),
        partial(decided, method=Method.WEIGHTED, temperature=0.05),
        partial(decided, method=Method.LOG_ODDS, options=2),
        partial(decided, method=Method.STACKED, stacked=stacked),
    ]
    calls = 0
    started = time.process_time()
    for there, ask in itertools.product(range(1, 16), ways):
        scores = rng.integers(0, 41, 16) / 40
        arrived = [answer(name, str(rng.integers(3)), float(score))
                   for name, score in zip(names[:there], scores, strict=False)]  # fmt: skip
        ask(arrived, dict(zip(names[there:], scores[there:].tolist(), strict=True)))
        calls += 1
    assert (time.process_time() - started) / calls < 0.01
