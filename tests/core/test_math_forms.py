"""Normal forms of mathematical answers: one per value, for all spellings."""

from __future__ import annotations

import pytest

from racer_core.aggregation.math_forms import math_form

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's parser warns of its own grammar


@pytest.fixture(autouse=True, scope="module")
def _needs_its_library() -> None:
    pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    "same",
    [
        ("The answer is $\\frac{1}{2}$.", "0.5", "so x = 1/2", "$\\boxed{0.50}$"),
        ("$\\boxed{\\sqrt{2}/2}$", "$1/\\sqrt{2}$"),
        ("$x^2 + 2x + 1$", "$(x + 1)^2$"),
        ("$\\{1, 2\\}$", "$\\{2, 1\\}$"),
        ("1,000", "$1000$", "$10^3$"),
    ],
    ids=["half", "root", "square", "set", "thousand"],
)
def test_one_value_has_one_form(same: tuple[str, ...]) -> None:
    """Red when two spellings of a value would count as two answers."""
    assert len({math_form(text) for text in same} - {None}) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("1/3", "0.3333"), ("$x + 1$", "$x - 1$"), ("$(1, 2)$", "$(2, 1)$")]
)
def test_other_values_have_other_forms(one: str, other: str) -> None:
    """Red when a rounded number, another formula or another order would count as the same."""
    assert math_form(one) is not None
    assert math_form(one) != math_form(other)


def test_without_mathematics_there_is_no_form() -> None:
    """Prose of several lines states nothing that could be read."""
    assert math_form("I cannot tell.\nPlease try another model.") is None
