"""The version of the normal forms of answers is raised when a form changes."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from racer_core.aggregation import answers
from racer_core.aggregation.answers import (
    FORMS_VERSION,
    Equality,
    forms_version,
    is_textual,
    normalise,
)
from racer_core.aggregation.math_forms import math_form
from racer_core.aggregation.stop_words import STOP_WORDS
from racer_core.aggregation.wording import SHIPPED, asked_words, wording

# Each with what a reader could treat differently: place, sign, spelling, brackets, marks, nothing.
TEXTS = {
    Equality.CHOICE: (
        "C", "(b).", "The answer is (D).", "Antwort: a", "答案:E", "option F", "Either A or B.",
        "I think so.", "Option A is right, as option B is not.", "It is {G}",
        "answer: C, no, the answer is D", "a", "K", "",
    ),
    Equality.NUMBER: (
        "42", "so 1,234.50", "$0.10", "3-4", "-7", "\u22128", "+.5", "007", "0.0", "1e5", "1,23,4",
        "12 of 13.", "\uff11\uff12", "v2.0", "none",
    ),
    Equality.EXACT: (
        "Paris.", "  PARIS ", "Stra\u00dfe", "a  b\nc", "\ufb01sh", "e\u0301", "...",
        "x" + "\u0301" * 40, "",
    ),
    Equality.JSON: (
        '{"b": 1.0, "a": [1e2, -0.0, 0.5]}', "```json\n[1]\n```", 'It is {"a": null}, so.',
        '{"a": 1, "a": 2}', '"\u00e9"', "[1,]", "NaN", "no",
    ),
    Equality.TOOL_CALL: (
        '[{"name": "f", "arguments": {"b": 1.0, "a": 2}}]',
        '[{"id": "1", "function": {"name": "g", "arguments": "{\\"x\\": 1}"}}, {"name": "f"}]',
        '[{"name": "f", "arguments": "not JSON"}]', '[{"name": ""}]', "[]", "{}", "f()",
    ),
    Equality.MATH: (
        "The answer is $\\frac{1}{2}$.", "0.5", "$x = 5$", "$\\{2, 1\\}$", "$(1, 2)$", "1,000",
        "$\\sqrt{2}/2$", "$(x + 1)^2$", "So it is, I think.",
    ),
    Equality.TEXT: (
        "The **Caf\u00e9** isn't in Paris.", "Yes, 1,234.50 of them", "No: -0.5, or 007.",
        "l\u2019eau", "\u6771\u4eac\u3067\u3059", "what is asked",
        "It is.", "internationally", "...", "",
    ),
}  # fmt: skip
# By version: those of the versions before stay, so that none is used again for other forms.
DIGESTS = {
    1: {
        Equality.CHOICE: "60c1336d7044a2be",
        Equality.NUMBER: "f66d006a049a90e3",
        Equality.EXACT: "74508a6a827f7940",
        Equality.JSON: "078d0d380244d65d",
        Equality.TOOL_CALL: "24a4cd4cfba55f8d",
        Equality.MATH: "0278c1b7bdfac0ce",
    },
    2: {
        Equality.CHOICE: "238386e7e6593fd4",
        Equality.NUMBER: "f66d006a049a90e3",
        Equality.EXACT: "74508a6a827f7940",
        Equality.JSON: "078d0d380244d65d",
        Equality.TOOL_CALL: "24a4cd4cfba55f8d",
        Equality.MATH: "0278c1b7bdfac0ce",
        Equality.TEXT: "b8dd0e1c28b9452a",
    },
}
ADVICE = "normal forms changed: raise FORMS_VERSION, and write their digests down"


def form(kind: Equality, text: str) -> object:
    """What a text is compared by."""
    if kind is Equality.MATH:
        return math_form(text)
    if kind is not Equality.TEXT:
        return normalise(kind, text)
    found = wording(text, asked_words("What is asked?"))
    return found and (sorted(found.words), sorted(found.numbers), found.polarity)


def digest(kind: Equality) -> str:
    """Of the forms of the kind's texts."""
    forms = [form(kind, each) for each in TEXTS[kind]]
    if kind is Equality.TEXT:
        forms += [sorted(STOP_WORDS), SHIPPED.weights]
    assert None in forms  # what cannot be read counts too
    assert len(set(map(repr, forms))) > len(forms) // 2
    return blake2b(repr(forms).encode(), digest_size=8).hexdigest()


@pytest.mark.filterwarnings("ignore")  # the library's parser warns of its own grammar
@pytest.mark.parametrize("kind", TEXTS)
def test_other_forms_need_another_version(kind: Equality) -> None:
    """Red when a form changes and the version, under which calibrations are stored, does not."""
    if kind is Equality.MATH:
        pytest.importorskip("math_verify")
    assert digest(kind) == DIGESTS[FORMS_VERSION][kind], ADVICE


def test_every_form_has_texts() -> None:
    """Also that of an equality that is added."""
    assert set(TEXTS) == {each for each in Equality if is_textual(each)} | {
        Equality.MATH,
        Equality.TEXT,
    }


def test_mathematics_depends_on_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of them, or none, is another version; that of other forms stays."""
    monkeypatch.setattr(answers, "version", lambda name: f"1 of {name}")
    assert forms_version(Equality.NUMBER) == {"forms": FORMS_VERSION}
    assert forms_version(Equality.MATH) == {
        "forms": FORMS_VERSION, "math-verify": "1 of math-verify", "sympy": "1 of sympy",
    }  # fmt: skip

    def missing(name: str) -> str:
        raise answers.PackageNotFoundError(name)

    monkeypatch.setattr(answers, "version", missing)
    assert forms_version(Equality.MATH)["sympy"] is None
