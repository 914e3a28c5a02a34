"""Normal forms of answers: any text has one or none, and always the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, is_textual, normalise
from racer_core.aggregation.json_forms import tool_call_form

from .strategies import Strategy, documents, json_texts, mostly, objects, texts, written

KINDS = [kind for kind in Equality if is_textual(kind)]
_WORDS = [
    *("The answer is ", "answer", "option", "(", ")", "A", "b", "J", "**", ":", ".", " ", "\n"),
    *("1", ",000", "-", "\u2212", "$", ".5", "e5", "0", "007", "½", "٣", "３", "𝟘", "1,23"),
    *("```json", "```", "{", '"a"', ":", "[", "]", "}", "true", "\\frac{1}{2}", "\u0301", "ﬁ"),
    *("\ufeff", "\u200b", "İ", "ß", "Σ", "\u034f", "\uff9e", "\x1c", "\x85", "\u0345"),
]
answers = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(), max_size=12),  # with halves of surrogate pairs
    texts(_WORDS),
    json_texts,
    written(documents).map(lambda text: f"So:\n```json\n{text}\n```"),
)
_calls: Strategy = objects(
    {
        "id": st.text(max_size=3),
        "type": st.just("function"),
        "function": objects(
            {
                "name": st.sampled_from(["add", "get", ""]),
                "arguments": st.one_of(json_texts, st.just({})),
            }
        ),
    }
)


@given(kind=st.sampled_from(KINDS), text=answers)
@example(kind=Equality.JSON, text="[" + "1" * 5_000 + "]")
@example(kind=Equality.JSON, text="[" * 100_000)
@example(kind=Equality.NUMBER, text="1" * 10_000)
@example(kind=Equality.EXACT, text="\ud800")
def test_any_answer_has_a_form_or_none(kind: Equality, text: str) -> None:
    """The same for the same text, and never an empty one: that would be a vote for nothing."""
    form = normalise(kind, text)
    assert form is None or (isinstance(form, str) and form != "")
    assert normalise(kind, "".join([*text])) == form


@pytest.mark.parametrize("kind", [Equality.NUMBER, Equality.JSON])
def test_a_form_is_its_own_form(kind: Equality) -> None:
    """A form that had another form would part answers that are equal."""

    @given(text=answers)
    @example(text='```json x {"a":["```json 1```"]}')  # a block within a string is no block
    def check(text: str) -> None:
        form = normalise(kind, text)
        assert form is None or normalise(kind, form) == form

    check()


@given(kind=st.sampled_from(KINDS), text=answers, around=st.sampled_from(["\n", "  ", "\t\n "]))
@example(kind=Equality.JSON, text='{"a":"[]', around="\n")
def test_space_around_an_answer_is_ignored(kind: Equality, text: str, around: str) -> None:
    """Some servers trim answers and others do not."""
    assert normalise(kind, f"{around}{text}{around}") == normalise(kind, text)


@given(calls=st.lists(mostly(_calls), max_size=3), order=st.randoms(use_true_random=False))
def test_any_tool_calls_have_a_form_or_none(calls: list[Any], order: Any) -> None:
    """In any order, as a value and as its JSON."""
    form = tool_call_form(calls)
    assert form is None or json.loads(form)
    assert normalise(Equality.TOOL_CALL, json.dumps(calls)) == form
    shuffled = [*calls]
    order.shuffle(shuffled)
    assert tool_call_form(shuffled) == form
