"""Grading against a reference; the same in any thread, and never "wrong" for a bad reference."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from racer_core.aggregation import grading
from racer_core.aggregation.grading import Grade, check_reference, grade
from racer_core.errors import InputError

RIGHT = [
    (Grade.CHOICE, "C", "After some thought, the answer is (C)."),
    (Grade.CHOICE, "(c)", "C"),
    (Grade.NUMBER, "#### 1,234", "That makes $1234.00."),
    (Grade.NUMBER, "-0.50", "x = \u22120.5"),
    (Grade.EXACT, "Straße", "  STRASSE. "),
    (Grade.JSON, '{"a": 1, "b": [2]}', 'Sure!\n```json\n{"b": [2.0], "a": 1}\n```'),
    (Grade.TEXT, "Anna Berg", "The novel was written by **Anna Berg** in 1880."),
    (Grade.TEXT, "Wilhelm Conrad R\u00f6ntgen", "It was Wilhelm Rontgen."),
    (Grade.TEXT, "AM\nMFSK", "Mostly MFSK is used."),  # one of two right answers
    (Grade.TEXT, "July 4, 1776", "On the 4th, no: 4 July 1776."),
    (Grade.MATH, "\\frac{1}{2}", "So we get \\boxed{0.5}"),
    (Grade.MATH, "1/2", "It is $\\frac{2}{4}$."),
    (Grade.MATH, "x^2 + 2x + 1", "$(x+1)^2$"),
    (Grade.MATH, "$\\{1, 2\\}$", "\\(\\{2, 1\\}\\)"),
    (Grade.MATH, "2\\sqrt{2}", "\\sqrt{8}"),  # bare formulas on both sides
    (Grade.MATH, "10000000000", "$10^{10}$"),
]
WRONG = [
    (Grade.CHOICE, "C", "The answer is (B)."),
    (Grade.CHOICE, "C", "I cannot tell."),
    (Grade.NUMBER, "42", "It is 43."),
    (Grade.NUMBER, "42", "no number"),
    (Grade.NUMBER, "42", ""),
    (Grade.EXACT, "Paris", "Paris, France"),
    (Grade.EXACT, "Paris", ""),
    (Grade.JSON, '{"a": 1}', '{"a": "1"}'),
    (Grade.JSON, '{"a": 1}', "a is 1"),
    (Grade.TEXT, "Anna Berg", "It was Anna Dahl."),
    (Grade.TEXT, "Anna Berg", ""),
    (Grade.TEXT, "July 4, 1776", "July 5, 1776"),
    (Grade.MATH, "\\frac{1}{2}", "\\boxed{\\frac{1}{3}}"),
    (Grade.MATH, "x^2", "$x^3$"),
    (Grade.MATH, "7", "I do not know."),
    (Grade.MATH, "7", ""),
]


GIVEN = {Grade.CHOICE: "A", Grade.JSON: "[1]"}  # references; of others "1"


@pytest.mark.parametrize(("kind", "reference", "answer"), RIGHT)
def test_right_answers_in_other_spellings(kind, reference, answer):
    """Forms and formulas, not characters."""
    assert grade(answer, reference, kind) is True


@pytest.mark.parametrize(("kind", "reference", "answer"), WRONG)
def test_wrong_and_unreadable_answers(kind, reference, answer):
    """An answer that cannot be read is graded as wrong."""
    assert grade(answer, reference, kind) is False


@pytest.mark.parametrize("kind", Grade)
def test_no_answer_is_wrong(kind):
    """A candidate that answered without a text."""
    assert grade(None, GIVEN.get(kind, "1"), kind) is False


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        (Grade.CHOICE, "the last one"), (Grade.CHOICE, ""), (Grade.NUMBER, "many"),
        (Grade.EXACT, " . "), (Grade.JSON, "one"), (Grade.TEXT, " "),
        (Grade.MATH, ""), (Grade.MATH, "$$"),
    ],
)  # fmt: skip
def test_an_unreadable_reference_makes_no_answer_wrong(kind, reference):
    """It is an error of the question. Fails when answers are graded against it."""
    with pytest.raises(InputError, match="the reference cannot be read as"):
        check_reference(reference, kind)
    for answer in ("A", None):
        with pytest.raises(InputError, match="the reference cannot be read as"):
            grade(answer, reference, kind)


def test_mathematics_is_graded_in_any_thread():
    """Off the main thread no alarm can ring.

    Fails when the library's timeout is left on: it then raises, or calls every answer wrong.
    """
    formulas = [(each, each in RIGHT) for each in RIGHT + WRONG if each[0] is Grade.MATH]
    with ThreadPoolExecutor(1) as thread:
        for (kind, reference, answer), is_right in formulas:
            assert thread.submit(grade, answer, reference, kind).result() is is_right


def test_of_an_endless_answer_the_end_counts():
    """Results stand at the end, and an answer's length is its sender's choice."""
    padding = "no $1$ yet. " * (grading.MAX_MATH_CHARS // 6)
    assert grade(padding + "So: \\boxed{7}", "7", Grade.MATH) is True


def test_formulas_are_not_run(tmp_path):
    """What looks like Python in an answer stays text."""
    target = tmp_path / "trapped"
    call = f"open('{target}', 'w')"
    for answer in (call, f"${call}$", f"\\boxed{{{call}}}", f"1+{call}"):
        grade(answer, "7", Grade.MATH)
    assert not target.exists()


def test_without_the_library_the_message_says_what_to_install(monkeypatch):
    """It is an extra: most users grade letters and numbers."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(grading, "import_module", missing)
    with pytest.raises(InputError, match=r"\[label\]"):
        check_reference("1", Grade.MATH)
    assert grade("C", "C", Grade.CHOICE) is True
