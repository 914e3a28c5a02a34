"""Equality of answers: a table of cases for each kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, is_textual, normalise


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("C", "C"), ("(C)", "C"), ("C.", "C"), ("C) because it is warm", "C"),
        ("The answer is (C).", "C"), ("the answer is c", "C"), ("The correct answer is: D", "D"),
        ("Answer: b", "B"), ("The answer is **C**.", "C"), (r"So we get $\boxed{D}$.", "D"),
        ("Die Antwort ist B", "B"), ("Antwort: E", "E"), ("答案是B", "B"), ("答案：A", "A"),
        ("A would be too small and B too large, so C", "C"),
        ("First I thought that the answer is A. No: the answer is D", "D"),
        ("I think it is B.", "B"), ("It isn't A. It's B.", "B"), ("J", "J"),
    ],
)  # fmt: skip
def test_choice_is_the_stated_letter_else_the_last_that_stands_alone(text, letter):
    """Letters A to J; a letter inside a word is none."""
    assert normalise(Equality.CHOICE, text) == letter


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"), ("1,234.50", "1234.5"), ("$5", "5"), ("-$5", "-5"),
        ("It costs $1,000.", "1000"), ("-0", "0"), ("0.000", "0"), ("\u22123", "-3"), ("+7", "7"),
        ("007", "7"), (".5", "0.5"), ("1000000", "1000000"), ("12.", "12"), ("17 + 25 = 42", "42"),
        ("first 7, then 8", "8"), ("50%", "50"), ("1,234,567", "1234567"), ("1,234,5678", "5678"),
        ("12,34", "34"), ("1234,567", "567"), ("-$1,000.50", "-1000.5"),
    ],
)  # fmt: skip
def test_number_is_the_last_one_in_plain_digits(text, number):
    """No thousands separators, currency signs, trailing zeros or exponent."""
    assert normalise(Equality.NUMBER, text) == number


@pytest.mark.parametrize("text", ["3" * 40, "3" * 39 + "2", "0." + "3" * 40])
def test_long_numbers_keep_their_digits(text):
    """Two numbers that differ in the 40th digit are different answers."""
    assert normalise(Equality.NUMBER, text) == text


def test_absurdly_long_number_is_read_or_no_vote():
    """A candidate that never stops writing digits must not end the request."""
    assert normalise(Equality.NUMBER, "7" * 1_000_002) in (None, "7" * 1_000_002)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Paris", "paris."),
        ("  Paris ", "Paris"),
        ("New\n York", "new york"),
        ("straße", "STRASSE"),
        ("ﬁne", "fine"),  # a ligature is its letters
        ("cafe\u0301", "café"),
    ],
)
def test_exact_looks_through_case_space_and_unicode_form(text, other):
    """And through one final full stop."""
    assert normalise(Equality.EXACT, text) == normalise(Equality.EXACT, other) is not None


@pytest.mark.parametrize(
    ("text", "other"), [("Paris", "Paris, France"), ("1.0", "1"), ("a b", "ab")]
)
def test_exact_distinguishes_different_texts(text, other):
    """It knows no numbers and no meaning."""
    assert normalise(Equality.EXACT, text) != normalise(Equality.EXACT, other)


@given(kind=st.sampled_from([*filter(is_textual, Equality)]), text=st.text(max_size=60))
def test_any_text_has_a_normal_form_or_none(kind, text):
    """Nothing that a candidate writes makes it raise, and a form is never blank."""
    form = normalise(kind, text)
    assert form is None or form.strip()


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (Equality.CHOICE, ["", "  ", "none of these", "ABC", "K", "Don't know", "42"]),
        (Equality.NUMBER, ["", "none", "-", "$", "one"]),
        (Equality.EXACT, ["", " \n", "."]),
    ],
)
def test_text_without_an_answer_has_no_vote(kind, texts):
    """None, so that two unreadable answers are never counted as equal; words are no numbers."""
    assert {normalise(kind, text) for text in texts} == {None}


@pytest.mark.parametrize(
    ("kind", "text", "form"),
    [
        (Equality.CHOICE, "The answer is a prime number, so (C).", "C"),
        (Equality.CHOICE, "The answer is option C. I hope this helps!", "C"),
        (Equality.CHOICE, "The correct option is B, I think.", "B"),
        (Equality.CHOICE, "The answer is C, because option B is too small.", "C"),
        (Equality.CHOICE, "Answer: C. Option A is wrong and choice (D) does not fit.", "C"),
        (Equality.CHOICE, "(b)", "B"),
        (Equality.CHOICE, "d", "D"),
        (Equality.CHOICE, "Answer: I think it is C.", "C"),
        (Equality.CHOICE, "Answer: A.", "A"),
        (Equality.CHOICE, "The answer is I", "I"),
        (Equality.CHOICE, "Option A is right, because option B is not.", "A"),
        (Equality.CHOICE, "Both A and C are tempting, but B is clearly the best one.", "B"),
        (Equality.CHOICE, "I would choose option A here.", "A"),
        (Equality.CHOICE, "An option I like is B.", "B"),
        (Equality.NUMBER, "about 1e5", None),
        (Equality.NUMBER, "\uff11\uff12", "12"),
        (Equality.NUMBER, "3-4", "4"),
        (Equality.NUMBER, "2024-01-05", "5"),
    ],
)
def test_pronouns_hyphens_and_full_width_digits_are_read(kind, text, form):
    """A pronoun or an option that is ruled out is no choice, a hyphen no sign."""
    assert normalise(kind, text) == form
