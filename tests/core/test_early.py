"""Early end of a vote: at the earliest possible answer, with the winner of the full vote."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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


def test_too_many_votes_that_count_nothing_keep_a_tie_open():
    """Six candidates at f = 1/C could each go anywhere; the vote waits rather than try them all."""
    arrived = answers("x", 0.1, "y", 0.1)
    silent = {f"m{i}": 0.1 for i in range(6)}
    assert not decided(arrived, silent, **GUESSERS)
    assert decided(arrived, dict(itertools.islice(silent.items(), 4)), **GUESSERS)


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
