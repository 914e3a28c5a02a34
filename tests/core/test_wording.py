"""Equality of sentences by their content words: cases, laws, hostile texts."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core.aggregation.stop_words import STOP_WORDS
from racer_core.aggregation.wording import (
    MAX_CHARS,
    TextRule,
    are_equal,
    asked_words,
    features,
    wording,
    words,
)
from racer_core.errors import InputError

CAPITAL = "What is the capital of France?"
SUM = "What is 17 + 25?"
SPOKEN = st.text(alphabet="aAbnoyes 0123456789.,-'’\u0301éとパ京ก\u0e33", max_size=40)
TEXTS = st.one_of(
    st.text(max_size=40),
    SPOKEN,
    st.lists(st.sampled_from(["Paris", "Lyon", "not", "42", "43", "no", "the", "巴黎"])).map(
        " ".join
    ),
)

SAME = [
    (CAPITAL, "Paris", "The capital is **Paris**."),
    (CAPITAL, "paris.", "Sure! The capital of France is PARIS, a city on the Seine."),
    (CAPITAL, '```json\n{"capital": "Paris"}\n```', "Paris"),
    (SUM, "17 + 25 = 42", "The sum of 17 and 25 is **42**."),
    (SUM, "The answer is \\boxed{42}.", "42.0"),
    ("What is 12 - 6?", "12 - 6 = 6", "6"),
    ("How many?", "1,000 people", "There were 1000 of them."),
    ("Who?", "Wilhelm Röntgen", "It was Wilhelm Conrad Rontgen, a German."),
    ("Wer?", "Der Physiker Röntgen", "röntgen"),
    ("How does it run?", "quickly running", "It is running quickly"),
    ("Who got it first?", "it discovered radium", "Radium was discovered"),
    ("Qu'est-ce que c'est ?", "De l’eau", "eau"),
    ("What is the main mineral in lithium batteries?", "Lithium.", "lithium"),
    ("法国的首都是什么？", "巴黎", "法国的首都是巴黎。"),
    ("フランスの首都は？", "パリ", "フランスの首都はパリです。"),
    ("프랑스의 수도는?", "파리", "프랑스의 수도는 파리입니다."),
    ("เมืองหลวงของไทย?", "กรุงเทพ", "กรุงเทพมหานคร"),
    ("भारत की राजधानी?", "दिल्ली", "भारत की राजधानी दिल्ली है"),
    ("Столица России?", "Москва", "Столица России — Москва."),
    ("Is it?", "Yes.", "Yes, it is."),
]
OTHER = [
    (CAPITAL, "Paris", "Lyon"),
    (CAPITAL, "The answer is Paris.", "The answer is Lyon."),
    (SUM, "The sum of 17 and 25 is **42**.", "The sum of 17 and 25 is **43**."),
    ("How old?", "He turned 42 last year in May", "He turned 43 last year in May"),
    ("Solve it.", "x = -3", "x = 3"),
    ("Solve it.", "x = 0.5", "x = 5"),
    ("Who?", "John Smith", "John Brown"),
    ("Where?", "Mauritius", "Mauritania"),
    ("Is it prime?", "Yes, it is.", "No, it is not."),
    ("Is it prime?", "It is.", "It isn't."),
    ("Ist das so?", "Ja, das Wasser kocht hier", "Nein, das Wasser kocht hier nicht"),
    ("Does it boil?", "True, water boils there", "False, water boils there"),
    ("Who is older, Tom or Anna?", "Tom", "Anna is older than Tom."),
    ("Which month?", "May", "June"),
    ("法国的首都是什么？", "答案是里昂", "答案是巴黎"),
    ("フランスの首都は？", "東京です", "大阪です"),
    ("프랑스의 수도는?", "파리입니다", "런던입니다"),
    ("Who?", "", "."),
    ("Who?", "", "Paris"),
]


ASKED_AS_JSON = "Give the author and the year of this book as JSON."
SAME += [
    (ASKED_AS_JSON, '{"author": "Woolf", "year": 1925}', '{"year": 1925.0, "author": "Woolf"}'),
    (
        ASKED_AS_JSON,
        'Sure!\n```json\n{"author": "Woolf", "year": 1925}\n```\nAnything else?',
        '{"author": "Woolf", "year": 1925}',
    ),
]
OTHER += [
    (ASKED_AS_JSON, '{"author": "Woolf", "year": 1925}', '{"author": "Joyce", "year": 1925}'),
    (ASKED_AS_JSON, '```\n["a", "b", "c"]\n```', '["a", "b", "d"]'),
]


@pytest.mark.parametrize(("question", "one", "other"), SAME)
def test_answers_that_say_the_same_are_equal(question: str, one: str, other: str) -> None:
    """Red when a word of the question, markup, an inflection or an accent counts."""
    assert are_equal(one, other, question)


@pytest.mark.parametrize(("question", "one", "other"), OTHER)
def test_other_answers_differ(question: str, one: str, other: str) -> None:
    """Red when stop words, shared words beside a number, or a shared first name are enough."""
    assert not are_equal(one, other, question)


def test_words_of_the_question_say_nothing() -> None:
    """The same two answers differ where the question holds what they share."""
    one, other = "the red fox jumps", "the red fox sleeps"
    assert are_equal(one, other, "What happens?")
    assert not are_equal(one, other, "What does the red fox do?")


def test_words_are_folded_in_their_order() -> None:
    """Grades look for the words of a reference in those of an answer."""
    assert words("The **Café** isn't 1,234.50 m wide: O'Brien's") == [
        "the", "cafe", "is", "not", "1234.5", "m", "wide", "obrien",
    ]  # fmt: skip
    assert words("東京タワー ok") == ["東京", "京タ", "タワ", "ワー", "ok"]
    assert words("12,5 − 007 -0.50 v2 3rd 1.2.3") == ["12.5", "7", "-0.5", "v2", "3", "rd", "1.2.3"]


def test_stop_words_are_spelled_as_texts_are_folded() -> None:
    """With an accent, or a й, one would stop nothing."""
    assert {word: words(word) for word in STOP_WORDS} == {word: [word] for word in STOP_WORDS}


@given(question=TEXTS, one=TEXTS, other=TEXTS)
@example(question="", one="0", other="-0.0")
def test_equality_is_symmetric_and_every_readable_answer_equals_itself(
    question: str, one: str, other: str
) -> None:
    """Red when a feature looks at one side: sequences compare in either order."""
    assert are_equal(one, other, question) == are_equal(other, one, question)
    first, second = (wording(text, asked_words(question)) for text in (one, other))
    assert are_equal(one, one, question) == (first is not None)
    if first is not None and second is not None:
        assert features(first, second) == features(second, first)
        rule = TextRule(intercept=-0.3, overlap=1.1, conflict=-0.7, shorter=0.13, longer=-0.17)
        assert rule.evidence(first, second) == rule.evidence(second, first)


@given(text=TEXTS)
@example(text="n' l'n't t'n't' 5. 1,")
def test_no_word_is_blank(text: str) -> None:
    """Two answers would share it."""
    assert all(word.strip() for word in words(text))


@given(question=TEXTS, text=TEXTS)
def test_case_space_and_markup_around_words_do_not_count(question: str, text: str) -> None:
    """Red when two spellings of one answer lead to different words."""
    asked = asked_words(question)
    plain, marked = wording(text, asked), wording(f"  **{text}**\n", asked)
    if plain is not None and marked is not None:
        assert (plain.words, plain.numbers) == (marked.words, marked.numbers)


@given(words_=st.lists(st.sampled_from(["ab", "cd", "ef", "7", "8"]), max_size=6))
def test_the_order_of_words_does_not_count(words_: list[str]) -> None:
    """A bag of words: reversed, it is the same."""
    one = wording(" ".join(words_), frozenset())
    other = wording(" ".join(reversed(words_)), frozenset())
    assert (one and one.words) == (other and other.words)


HOSTILE = {
    "marks": "e" + "\u0301" * 2**20,
    "digits": "9" * 2**20,
    "grouped": "1,234," * 2**17,
    "apostrophes": "a'" * 2**19,
    "signs": "-" * 2**20,
    "points": "1." * 2**19,
    "unspaced": "京" * 2**20,
    "ligatures": "\ufdfa" * 2**20,
    "surrogate": "\ud800" * 2**20,
    "devanagari": "क\u094d" * 2**19,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_long_texts_are_read_in_part(name: str) -> None:
    """A text of a million characters has the words of its two ends, and no more."""
    text = HOSTILE[name]
    assert sum(map(len, words(text))) <= 40 * MAX_CHARS
    ends = f"{text[: MAX_CHARS // 2]} {text[-MAX_CHARS // 2 :]}"
    assert words(text) == words(ends)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_rule_has_finite_weights(weight: float) -> None:
    """A damaged artifact would else find all answers different, or all equal."""
    with pytest.raises(InputError, match="finite"):
        TextRule(overlap=weight)
