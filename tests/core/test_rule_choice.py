"""The rule by which answers are compared: chosen by references, confirmed or doubted by answers."""

from __future__ import annotations

import numpy as np
import pytest

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.grading import Grade
from racer_core.aggregation.reasoning import REASONING
from racer_core.aggregation.rule_choice import choose, clearly_more, contradictions, shares
from racer_core.errors import InputError
from racer_core.types import BoolArray
from tests.kit import chat_models

COUNT = 200
RULES = {
    "numbers": Grade.NUMBER,
    "letters": Grade.CHOICE,
    "names": Grade.TEXT,
    "json": Grade.JSON,
}


def said(family: str) -> tuple[list[str], list[str], list[list[str]], BoolArray]:
    """Questions, references, answers of three chat models, and which are right."""
    asked = chat_models.questions(family, COUNT)
    answers = [
        [REASONING.answer(chat_models.answer(model, each.query)) for model in chat_models.NAMES]
        for each in asked
    ]
    truth = [
        [chat_models.is_right(model, each.query) for model in chat_models.NAMES] for each in asked
    ]
    queries, references = [each.query for each in asked], [each.reference for each in asked]
    return queries, references, answers, np.array(truth)


@pytest.mark.parametrize("family", RULES)
def test_references_choose_a_rule_that_finds_what_is_right(family: str) -> None:
    """By it labels are right but for 4 % of the answers, and nothing doubts them."""
    queries, references, answers, truth = said(family)
    choice = choose(references)
    assert choice.grade == RULES[family]
    found = {rule: shares(answers, references, rule) for rule in choice.rules}
    labels = found[RULES[family]].right
    assert (labels == truth).mean() > 0.96
    assert not [rule for rule, each in found.items() if clearly_more(each, found[RULES[family]])]
    equality = Equality(RULES[family].value)
    assert not contradictions(queries, answers, labels, equality).is_doubtful


@pytest.mark.parametrize("family", RULES)
def test_labels_by_exact_texts_are_doubted(family: str) -> None:
    """The chosen rule finds clearly more, and answers that say the same have different labels."""
    queries, references, answers, _ = said(family)
    choice = choose(references)
    assert choice.grade is not None
    exact = shares(answers, references, Grade.EXACT)
    more = clearly_more(shares(answers, references, choice.grade), exact)
    assert more is not None
    assert more > 0.5
    found = contradictions(queries, answers, exact.right, Equality(choice.grade.value))
    if family != "letters":  # two that say one letter alone are too few
        assert found.is_doubtful
    assert found.example is not None
    row, right, wrong = found.example
    assert (exact.right[row, right], exact.right[row, wrong]) == (True, False)


def test_numbers_on_the_way_to_a_result_are_no_right_answers() -> None:
    """`text` finds the reference in a wrong answer's work: as often as another reference."""
    references = [str(number % 10) for number in range(COUNT)]
    work = [[f"Steps 1, 2, 3, 4, 5, 6, 7, 8, 9, 0: so {number % 7}"] for number in range(COUNT)]
    text, number = (shares(work, references, rule) for rule in (Grade.TEXT, Grade.NUMBER))
    assert text.right.mean() == 1.0 > 5 * number.right.mean()
    assert clearly_more(text, number) is None


@pytest.mark.parametrize(
    ("references", "grade", "reason"),
    [
        (["A", "(b)", "C."], Grade.CHOICE, "all 3 references are letters of choices"),
        (["42", "$1,234.50", "-3 %", "So #### 7"], Grade.NUMBER, "all 4 references are numbers"),
        (['{"a": 1}', "[2]"], Grade.JSON, "all 2 references are JSON"),
        (["42", "\\frac{1}{2}", "(x+1)^2"], Grade.MATH, "all 3 references are formulas"),
        (["42", "Anna Berg"], Grade.TEXT, "all 2 references are names or short texts"),
        (["1"] * 39 + ["none"], Grade.NUMBER, "39 of 40 references are numbers"),
        (["one word after another " * 4, "x"], None, "1 of 2 references are longer texts"),
    ],
)
def test_references_of_other_kinds(references: list[str], grade: Grade | None, reason: str) -> None:
    """Few that are not of the kind do not change it; long texts are for a judge."""
    choice = choose(references)
    assert (choice.grade, choice.reason) == (grade, reason)


def test_without_references_nothing_is_chosen() -> None:
    """A judge or people have to say what is right."""
    with pytest.raises(InputError, match="no question has a reference"):
        choose([])
