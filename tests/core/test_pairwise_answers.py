"""Answers that are compared two by two: rows vote as the gateway does, and train its rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core import artifacts
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.leaders import led_forms
from racer_core.aggregation.rule import AnswerRule, equality_of
from racer_core.aggregation.vote import Method, aggregate
from racer_core.aggregation.wording import SHIPPED, are_equal
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError
from racer_core.offline.equalities import allowed, compare_equalities
from racer_core.offline.train import train
from racer_core.offline.votes import Votes
from racer_core.offline.wordings import MIN_PAIRS, fit_text_rule
from racer_core.types import CandidateAnswer, LabelledRow, LabelledRows

POOL = ("b", "d", "a", "c")
TEXT = AnswerRule(equality=Equality.TEXT)
CAPITAL = "What is the capital of France?"
SENTENCES = ("Paris", "It is Paris.", "Paris or Lyon", "Lyon", "Lyon or Nice", "Nice", "")


def rows_of(*texts: tuple[str | None, ...], question: str = CAPITAL) -> LabelledRows:
    """Rows with these answers."""
    rows = (
        LabelledRow(
            query=question, correct=frozenset(), answers=dict(zip(POOL, each, strict=False))
        )
        for each in texts
    )
    return LabelledRows(pool=POOL[: len(texts[0])], rows=tuple(rows))


def answers_of(rows: LabelledRows, rule: AnswerRule = TEXT) -> RowAnswers:
    """Their answers under a rule."""
    return RowAnswers.of(rows, rows.pool, rule)


@st.composite
def worlds(draw: st.DrawFn):
    """Answers of four candidates, the set that is called, and router scores with ties."""
    return (
        tuple(draw(st.lists(st.sampled_from(SENTENCES), min_size=4, max_size=4))),
        draw(st.lists(st.booleans(), min_size=4, max_size=4)),
        draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), min_size=4, max_size=4)),
        draw(st.lists(st.booleans(), min_size=4, max_size=4)),
    )


@given(world=worlds(), method=st.sampled_from([Method.MAJORITY, Method.LOG_ODDS]))
def test_rows_vote_as_the_gateway_does(world, method: Method) -> None:
    """One by one: an answer joins the first better-scored one of the set that it equals."""
    texts, called, scores, labels = world
    votes = Votes(
        pool=POOL,
        labels=np.array([labels]),
        scores=np.array([scores]),
        answers=answers_of(rows_of(texts)),
        stacked=None,
    )
    names = sorted(
        (name for name, is_called in zip(POOL, called, strict=True) if is_called),
        key=lambda name: (-scores[POOL.index(name)], name),
    )
    forms = {name: texts[POOL.index(name)] or None for name in names}
    led = led_forms(forms, lambda one, other: are_equal(one, other, CAPITAL))
    arrived = [
        CandidateAnswer(candidate=name, text="", form=form, score=scores[POOL.index(name)])
        for name, form in led.items()
    ]
    merged = aggregate(arrived, method=method) if arrived else None
    expected = bool(merged and merged.votes) and labels[POOL.index(merged.winner)]
    assert votes.right(method, np.array([called]), 1.0).tolist() == [expected]


def test_the_question_of_each_row_decides() -> None:
    """The same answers differ where the question holds what they share."""
    texts = ("the red fox jumps", "the red fox sleeps")
    assert answers_of(rows_of(texts, question="What?")).classes.tolist() == [[0, 0]]
    asked = rows_of(texts, question="What does the red fox do?")
    assert answers_of(asked).classes.tolist() == [[0, 1]]


def test_auto_compares_each_row_as_its_request_asks() -> None:
    """JSON where it is demanded, letters where options are listed, else sentences."""
    options = "Which?\nA. Paris\nB. Lyon"
    as_json = {"response_format": {"type": "json_object"}}
    assert equality_of(Equality.AUTO, options, {}) is Equality.CHOICE
    assert equality_of(Equality.AUTO, options, as_json) is Equality.JSON
    assert equality_of(Equality.AUTO, CAPITAL, {}) is Equality.TEXT
    assert equality_of(Equality.NUMBER, options, as_json) is Equality.NUMBER
    row = rows_of(("(B), as I said", "B", "A"), question=options).rows[0]
    given = replace(
        row, request=as_json, query=CAPITAL, answers={"b": '{"a": 1.0}', "d": '{"a":1}'}
    )
    rows = LabelledRows(
        pool=POOL[:3], rows=(row, given, *rows_of(("Paris", "It is Paris", "Lyon")))
    )
    auto = RowAnswers.of(rows, POOL[:3], AnswerRule(equality=Equality.AUTO))
    assert auto.classes.tolist() == [[0, 0, 2], [0, 0, -1], [0, 0, 2]]


def test_an_equality_without_what_it_needs_is_refused() -> None:
    """Before any answer is compared."""
    for equality, lacking in ((Equality.SEMANTIC, "encoder"), (Equality.MATH, "math_forms")):
        with pytest.raises(InputError, match=lacking):
            AnswerRule(equality=equality)


def test_meanings_and_formulas_are_computed_by_what_is_given() -> None:
    """Vectors of the texts, and forms of the formulas; both of all rows at once."""
    asked: list[list[str]] = []

    def embed(texts):
        asked.append(list(texts))
        return np.array([[1.0, 0.0] if "P" in text else [0.0, 1.0] for text in texts])

    rule = AnswerRule(equality=Equality.SEMANTIC, embed=embed)
    rows = rows_of(("Paris", "Plymouth", "Lyon"), ("Lyon", None, "Nice"))
    assert answers_of(rows, rule).classes.tolist() == [[0, 0, 2], [0, -1, 0]]
    assert asked == [["Paris", "Plymouth", "Lyon", "Lyon", "Nice"]]
    rule = AnswerRule(
        equality=Equality.MATH, math_forms=lambda texts: [t[:1] or None for t in texts]
    )
    assert answers_of(rows_of(("1/2", "1.0", "", "2")), rule).classes.tolist() == [[0, 0, -1, 1]]


def labelled(count: int, seed: int = 0) -> tuple[LabelledRows, np.ndarray]:
    """Right answers share one word in three with each other; wrong ones two of five with them.

    The shipped rule takes the overlap of the shorter one; here the length tells more.
    """
    rng = np.random.default_rng(seed)
    labels = rng.random((count, 3)) < 0.6
    names = [f"w{number}" for number in range(400)]
    rows = []
    for right in labels:
        common = rng.choice(names, 2, replace=False).tolist()
        texts = {
            name: " ".join(
                [*common[: 1 + (rng.random() < 0.5)], *rng.choice(names, 1 if each else 3)]
            )
            for name, each in zip(POOL, right, strict=False)
        }
        rows.append(LabelledRow(query="?", correct=frozenset(), answers=texts))
    return LabelledRows(pool=POOL[:3], rows=tuple(rows)), labels


def test_the_rule_is_fitted_where_it_ranks_better() -> None:
    """On lengths that the shipped rule ignores; too few pairs, or labels by chance, fit nothing."""
    rows, labels = labelled(400)
    units = np.arange(400)
    fitted = fit_text_rule(rows.rows, labels, rows.pool, TEXT, units)
    assert fitted is not None
    assert fitted.longer < 0.0 < fitted.overlap
    again = fit_text_rule(rows.rows, labels, rows.pool, TEXT, units)
    assert fitted == again
    few = MIN_PAIRS // 4
    assert fit_text_rule(rows.rows[:few], labels[:few], rows.pool, TEXT, units[:few]) is None
    shuffled = np.random.default_rng(1).permutation(labels)
    assert fit_text_rule(rows.rows, shuffled, rows.pool, TEXT, units) is None
    number = AnswerRule(equality=Equality.NUMBER)
    assert fit_text_rule(rows.rows, labels, rows.pool, number, units) is None


def test_training_keeps_the_rule_in_the_artifact(tmp_path: Path) -> None:
    """By default; an equality by form fits none."""
    rows, labels = labelled(300)
    given = tuple(
        replace(
            row,
            query=f"question {number}",
            correct=frozenset(name for name, each in zip(rows.pool, right, strict=True) if each),
        )
        for number, (row, right) in enumerate(zip(rows.rows, labels, strict=True))
    )
    rows = replace(rows, rows=given)
    made = train(rows, None, tmp_path / "a", encoder=CharNgramEncoder(), kind="knn")
    assert made.text_rule is not None
    assert made.text_rule.longer < 0.0
    assert artifacts.load(tmp_path / "a").text_rule == made.text_rule
    options = {"encoder": CharNgramEncoder(), "kind": "knn", "equality": Equality.NUMBER}
    assert train(rows, None, tmp_path / "b", **options).text_rule is None


def test_every_equality_that_reads_the_answers_is_compared() -> None:
    """Two that say 42 outvote one that says 41 by number, and not as exact texts."""
    texts = [
        (f"17 + {n} = {n + 17}", f"The sum is **{n + 17}**.", f"It is {n + 16}, I think")
        for n in range(20)
    ]
    rows = rows_of(*texts, question="Which sum?")
    labels = np.tile([True, True, False], (20, 1))
    ruled = allowed(rows.rows, rows.pool, AnswerRule(equality=Equality.EXACT))
    kinds = [each.rule.equality for each in ruled]
    assert kinds[:2] == [Equality.EXACT, Equality.NUMBER]
    assert Equality.CHOICE not in kinds  # nobody states a letter
    trials = compare_equalities(ruled, rows.pool, labels, np.arange(20))
    by = {each.equality: each for each in trials}
    assert by[Equality.NUMBER].accuracy == 1.0
    assert (by[Equality.NUMBER].readable, by[Equality.NUMBER].agreement) == (1.0, 1.0)
    assert by[Equality.EXACT].agreement == 0.0


def test_the_shipped_rule_is_the_one_without_training() -> None:
    """Three fifths of the shorter answer's words."""
    assert SHIPPED.weights == (-0.6, 1.0, -1.0, 0.0, 0.0)
    assert are_equal("ab cd ef gh kl", "ab cd ef mn pq", "")
    assert not are_equal("ab cd gh kl", "ab cd mn pq", "")
