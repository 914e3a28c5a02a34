"""Clusters of texts by meaning: members and medoids."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core.aggregation.semantic import cluster
from racer_core.aggregation.vote import aggregate
from racer_core.errors import InputError
from racer_core.types import CandidateAnswer


def on_circle(*degrees):
    """Unit vectors of the plane: their similarity is the cosine of the angle between them."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def clusters(vectors, threshold, texts=None, scores=None, names=None):
    """Classes of candidates m0, m1, ... whose texts differ, and their medoids."""
    names = names or [f"m{i}" for i in range(len(vectors))]
    texts = dict(zip(names, texts or [f"text {name}" for name in names], strict=True))
    scores = dict(zip(names, scores or [0.5] * len(names), strict=True))
    forms, medoids = cluster(vectors, names, texts, scores, threshold)
    members = {form: {name for name in forms if forms[name] == form} for form in forms.values()}
    assert set(members) == medoids
    return members


COS_20 = math.cos(math.radians(20)) - 1e-5


def test_similar_texts_are_one_class_and_others_are_not():
    """10 degrees are near enough, 90 are not; the form is the name of the one in the middle."""
    found = clusters(on_circle(0, 10, 20, 110), COS_20)
    assert found == {"m1": {"m0", "m1", "m2"}, "m3": {"m3"}}


def test_texts_without_content_have_no_class():
    """Two full stops do not agree."""
    assert clusters(on_circle(0, 0, 0), 0.9, texts=[".", " ", "yes"]) == {"m2": {"m2"}}


def test_a_text_in_which_the_encoder_finds_nothing_stands_alone():
    """A vector of zeros is similar to nothing, itself included."""
    assert len(clusters(np.zeros((2, 3)), 0.01)) == 2


@pytest.mark.parametrize(
    ("scores", "medoid"), [([0.5, 0.6], "m1"), ([0.6, 0.5], "m0"), ([0.5, 0.5], "m0")]
)
def test_a_tie_for_medoid_goes_to_the_router_score_then_to_the_name(scores, medoid):
    """Two texts are always equally near to each other."""
    assert set(clusters(on_circle(0, 10), 0.9, scores=scores)) == {medoid}


degrees = st.lists(st.integers(0, 36).map(lambda k: 5 * k), min_size=1, max_size=6)


@example(steps=[0, 1, 2])
@given(steps=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_classes_do_not_depend_on_the_order_of_the_answers(steps):
    """In no order: where a text is as near to its left as to its right, names decide."""
    names = [f"m{i}" for i in range(len(steps))]
    scores = [((7 * i) % 4) / 4 for i in range(len(steps))]
    expected = clusters(on_circle(*(15 * step for step in steps)), COS_20, scores=scores)
    for order in itertools.permutations(range(len(steps))):
        shuffled = clusters(
            on_circle(*(15 * steps[i] for i in order)),
            COS_20,
            scores=[scores[i] for i in order],
            names=[names[i] for i in order],
        )
        assert shuffled == expected


@given(
    degrees=degrees,
    texts=st.lists(st.sampled_from("abcdef"), min_size=6, max_size=6),
    threshold=st.sampled_from([0.5, 0.9, COS_20]),
)
def test_classes_are_as_large_as_complete_linkage_makes_them(degrees, texts, threshold):
    """Within a class all are similar or equal; of two classes some are neither."""
    vectors, texts = on_circle(*degrees), texts[: len(degrees)]
    similarity = np.round(vectors @ vectors.T, 6)
    found = clusters(vectors, threshold, texts=texts)
    numbers = {form: sorted(int(name[1:]) for name in found[form]) for form in found}
    assert sorted(itertools.chain(*numbers.values())) == list(range(len(degrees)))
    for form, members in numbers.items():
        for i, j in itertools.combinations(members, 2):
            assert similarity[i, j] >= threshold or texts[i] == texts[j]
        nearness = similarity[np.ix_(members, members)].sum(axis=1)
        assert nearness[members.index(int(form[1:]))] >= nearness.max() - 1e-5
    for one, other in itertools.combinations(numbers.values(), 2):
        assert similarity[np.ix_(one, other)].min() < threshold
        assert not {texts[i] for i in one} & {texts[j] for j in other}


def test_the_vote_returns_the_medoids_text():
    """Two candidates mean the same and outvote the third; the middle one's words come back."""
    texts = {"a": "It is Paris", "b": "Paris", "c": "The capital is Paris", "d": "Rome"}
    scores = {"a": 0.9, "b": 0.2, "c": 0.3, "d": 1.0}
    forms, medoids = cluster(on_circle(0, 10, 20, 90), list(texts), texts, scores, COS_20)
    answers = [
        CandidateAnswer(candidate=name, text=texts[name], form=forms[name], score=scores[name])
        for name in texts
    ]
    merged = aggregate(answers, preferred=medoids)
    assert (merged.winner, merged.text) == ("b", "Paris")
    assert merged.votes == {"b": 3.0, "d": 1.0}


@pytest.mark.parametrize(
    ("vectors", "threshold", "message"),
    [
        (np.ones((2, 3)), 0.9, "length 1"), (np.full((2, 3), np.nan), 0.9, "length 1"),
        (on_circle(0), 0.9, "for 2 answers"), (np.ones(2), 0.9, "for 2 answers"),
        (on_circle(0, 1), 0.0, "similarity"), (on_circle(0, 1), math.nan, "similarity"),
    ],
)  # fmt: skip
def test_embeddings_that_are_no_unit_vectors_are_refused(vectors, threshold, message):
    """Their products would be no cosines."""
    with pytest.raises(InputError, match=message):
        cluster(vectors, ["a", "b"], {"a": "x", "b": "y"}, {"a": 0.5, "b": 0.5}, threshold)
