"""Normal forms of JSON answers and tool calls, and the cost of parsing any answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality, check_textual, is_textual, normalise
from racer_core.aggregation.json_forms import json_form, tool_call_form, tool_calls_text
from racer_core.errors import InputError

TEXTUAL = [kind for kind in Equality if is_textual(kind)]
OTHERS = [Equality.MATH, Equality.TEXT, Equality.SEMANTIC, Equality.AUTO]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ('{"a": 1, "b": [true, null]}', '{"b":[true,null],"a":1}'),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 1}', '{"a": 1e0}'),
        ('{"a": 100}', '{"a": 1E+2}'),
        ('{"a": -0.0}', '{"a": 0}'),
        ('{"a": 0.50}', '{"a": 5e-1}'),
        ('{"a": 1}', '  \n{"a":1}\n'),
        ('{"a": 1}', 'Here it is:\n```json\n{"a": 1}\n```\nI hope that this helps.'),
        ('{"a": 1}', '```JSON {"a": 1}```'),
        ('{"a": 1}', '```json\n{"a": 1}'),  # the end was cut off behind it
        ('{"a": 1}', 'See [1]:\n```json\n{"a": 1}\n```'),
        ('{"a": 1}', '```\n{"a": 1}\n```'),
        ('{"a": 1}', 'The result is {"a": 1}, and not {"a": 2}.'),
        ('{"a": 1}', 'For \\frac{1}{2} and [see below] it is {"a": 1}.'),
        ('{"a": 1}', '{"a": 1,} is no JSON, but {"a": 1} is'),
        ("[1, 2]", "So [1,2.0]"),
        ('"yes"', ' "yes" '),
        ("42", "```json\n42.0\n```"),
        ('{"a": "é"}', '{"a": "\\u00e9"}'),
    ],
)
def test_json_is_compared_as_what_it_says(text, other):
    """Not the order of keys, white space, the spelling of a number, or the words around it."""
    assert json_form(text) == json_form(other) is not None


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("[1, 2]", "[2, 1]"), ('{"a": 1}', '{"a": true}'), ('{"a": 1}', '{"a": "1"}'),
        ('{"a": null}', "{}"), ('{"a": "x"}', '{"a": "X"}'),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992}'),
        ('{"a": 0.1}', '{"a": 0.10000000000000002}'), ('{"a": "1.0"}', '{"a": "1"}'),
    ],
)  # fmt: skip
def test_different_json_values_have_different_forms(text, other):
    """Lists have an order, true is no number, and long integers keep their digits."""
    assert None not in (json_form(text), json_form(other))
    assert json_form(text) != json_form(other)


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "no idea", "the answer is 42", "{", "[1, 2", "{'a': 1}", '{"a": 1, "a": 2}',
        '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 100 + "]" * 100, "[" * 100_000,
        f"[{'7' * 5_000}]", "see [dog] and {cat}",
    ],
)  # fmt: skip
def test_an_answer_that_is_not_strict_json_has_no_vote(text):
    """A key twice, NaN and endless nesting mean different things to different readers."""
    assert json_form(text) is None


def test_a_canonical_form_is_a_fixed_point():
    """It is JSON itself, and its own form."""
    form = json_form('{"b": [1.0, {"d": 2.50, "c": "ü"}], "a": null}')
    assert form == '{"a":null,"b":[1,{"c":"ü","d":2.5}]}'
    assert json_form(form) == form


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(document=documents, indent=st.sampled_from([None, 0, 3]), escaped=st.booleans())
def test_equal_json_documents_have_one_form(document, indent, escaped):
    """Indented, escaped, with its keys turned round, or between words; and it reads back equal."""
    form = json_form(json.dumps(document))
    turned = dict(reversed(document.items())) if isinstance(document, dict) else document
    written = json.dumps(turned, indent=indent, ensure_ascii=escaped)
    assert json_form(written) == json_form(f"so:\n```json\n{written}\n```") == form
    assert json.loads(form) == document
    if isinstance(document, dict | list) and document:
        assert json_form(f"It is {written}.") == form


def call(name, arguments, **more):
    """A tool call as the wire has it."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize("kind", TEXTUAL)
def test_a_long_text_of_anything_is_read_at_once(kind):
    """Nothing is quadratic: candidates write what they like, and others wait meanwhile.

    A quadratic reader takes longer than the time limit of a test.
    """
    for text in LONG:
        normalise(kind, text)


def test_tool_calls_are_their_names_and_arguments():
    """Ids say nothing, arguments are JSON; the number of calls counts, and their order does not.

    The legacy function call is one object without the wrapping.
    """
    one = [call("weather", '{"city": "Rome", "days": 1}', id="call_1", index=0)]
    other = [call("weather", '{"days":1.0,"city":"Rome"}', id="call_2")]
    assert tool_call_form(one) == tool_call_form(other) == '[["weather",{"city":"Rome","days":1}]]'
    rome, oslo = call("weather", '{"city": "Rome"}'), call("weather", '{"city": "Oslo"}')
    assert tool_call_form([rome, oslo]) == tool_call_form([oslo, rome])
    assert len({tool_call_form(calls) for calls in ([rome], [rome, rome], [rome, oslo])}) == 3
    assert tool_call_form([rome["function"]]) == tool_call_form([rome])


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        ('{"city": "Rome"', ['{"city": "Rome"', '{"city":"Rome"}']),
        ("Rome", ["Rome", "rome"]),
        ('{"a": 1, "a": 2}', ['{"a": 1, "a": 2}', '{"a": 2}']),
    ],
)
def test_broken_arguments_are_compared_letter_by_letter(arguments, others):
    """They equal themselves and nothing that they might have meant."""
    same, different = others
    form = tool_call_form([call("weather", arguments)])
    assert form == tool_call_form([call("weather", same)]) is not None
    assert form != tool_call_form([call("weather", different)])


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "Rome"}', json.dumps('{"city":"Rome"}'), '{"city": "Ro', "Rome", '""', "5", "[1.0]"],
)
def test_recorded_tool_calls_have_the_form_of_the_wire(arguments):
    """Arguments encoded twice are another call, in rows as in the vote."""
    wire = [call("weather", arguments)]
    recorded = tool_calls_text(wire)
    assert normalise(Equality.TOOL_CALL, recorded) == tool_call_form(wire) is not None


@pytest.mark.parametrize("arguments", [None, "", "  ", "{}"])
def test_missing_and_empty_arguments_are_equal(arguments):
    """Servers differ."""
    assert tool_call_form([call("now", arguments)]) == '[["now",{}]]'
    assert tool_call_form([{"function": {"name": "now"}}]) == '[["now",{}]]'


@pytest.mark.parametrize(
    "calls",
    [
        [], ["weather"], [{}], [{"function": None}], [call("", "{}")], [call(7, "{}")],
        [call("now", 7)], [call("now", "{}"), {"function": {}}],
    ],
)  # fmt: skip
def test_unreadable_tool_calls_have_no_vote(calls):
    """Nor is an answer of which one call can: without the other it would be another answer."""
    assert tool_call_form(calls) is None


def test_a_text_is_read_as_tool_calls_only_if_it_is_a_list_of_them():
    """As recorded answers have them; a text that calls nothing is no vote."""
    calls = [call("now", "{}")]
    assert normalise(Equality.TOOL_CALL, json.dumps(calls)) == tool_call_form(calls)
    for text in ("now()", "{}", "[]", json.dumps(calls[0]), ""):
        assert normalise(Equality.TOOL_CALL, text) is None


@pytest.mark.parametrize("kind", OTHERS)
def test_an_equality_that_text_alone_cannot_decide_is_refused(kind):
    """The error names the equalities that need only the text; every kind is one or the other."""
    with pytest.raises(InputError, match="cannot be computed from the text") as refused:
        normalise(kind, "42")
    assert refused.value.param == "equality"
    with pytest.raises(InputError, match="choice, number, exact, json, tool_call"):
        check_textual(kind)
    assert {*TEXTUAL, *OTHERS} == set(Equality)


MOST = 1 << 20


# What a backtracking, recursive or sorting reader stumbles over: each is repeated.
HOSTILE = [
    " ", "e", "7 ", "7.", "-", "$", "A ", "((A", "[", "{", "\\", '"', "**", "answer is ",
    "answer is A ", "option (", "答案", '{"', "[7,", "[x", '{"a":', '["\\"', "```json\n{",
]  # fmt: skip


LONG = [
    *(part * (MOST // len(part.encode())) for part in HOSTILE),
    "answer" + " " * MOST,
    "A" + " " * MOST + "x",
    "777," * (MOST // 4) + "7777",  # days, were it read again from every comma
    "\u0301\u0316" * (MOST // 4),  # hours to sort
    "\uff9e\u0316" * (MOST // 4),  # letters that become marks
    f"[{'[7],' * (MOST // 8)}7]",
    f"[{'7.0,' * (MOST // 4)}7]",
    "[" * 50 + "7," * (MOST // 2),
]


def test_marks_in_the_wrong_order_are_put_right():
    """As Unicode has it, in any number that a writing system needs."""
    assert normalise(Equality.EXACT, "q\u0307\u0323") == normalise(Equality.EXACT, "q\u0323\u0307")
    assert normalise(Equality.EXACT, "e\u0301" * 100) == normalise(Equality.EXACT, "é" * 100)
