"""The one JSON reader: stricter than the standard library, and never quoting what it read."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core import strict_json
from racer_core.errors import InputError

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(document=documents, ascii_only=st.booleans())
@example(document="[" * 100 + "{" * 100, ascii_only=True)  # brackets in a string nest nothing
@example(document="\\ud800 \U0001f600 \u2028 \x85", ascii_only=True)
def test_valid_documents_read_as_the_standard_library_reads_them(document, ascii_only):
    """From bytes and from text, escaped or not."""
    text = json.dumps(document, ensure_ascii=ascii_only)
    assert strict_json.loads(text) == json.loads(text) == document
    assert strict_json.loads(text.encode()) == document


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"secret": 1, "secret": 2}', "same key twice"),
        ('{"a": {"secret": 1, "secret": 1}}', "same key twice"),
        ("NaN", "NaN"),
        ('{"secret": -Infinity}', "Infinity"),
        ("[1e400]", "too large"),
        ("-1e400", "too large"),
        ("1" * 5_000, "too many digits"),
        (r'"secret \ud800"', "surrogate"),
        (r'"secret \uDFFF and on"', "surrogate"),
        (r'{"\ud800": 1}', "surrogate"),
        (r'[[{"a": ["secret \udc00\ud800"]}]]', "surrogate"),
        ('"secret \ud800"', "surrogate"),
        ("[" * 100_000, "nested"),
        ("[" * 100_000 + "]" * 100_000, "nested"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested"),
        ("[" * 65 + "1" + "]" * 65, "nested deeper than 64"),
        ("", "not JSON"),
        ("secret", "not JSON"),
        ('{"secret": }', " at column 12$"),
        ("{\n", " at column 2$"),  # a row of a file, with its end of line
        ('{"secret": 1,\n', " at column 14$"),
        ('[1,\n2,\n"secret]', " starting at line 3, column 1$"),
        ('"secret\n"', "not JSON"),
        (r'"\secret"', "not JSON"),
        ("'secret'", "not JSON"),
        ("[1] secret", "not JSON"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_json_that_other_parsers_reject_is_a_short_error(text, message):
    """The message says what is wrong and repeats no input, which may be a user's prompt."""
    with pytest.raises(InputError, match=message) as caught:
        strict_json.loads(text)
    assert len(str(caught.value)) < 120
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"\xff", b'"\xed\xa0\x80"', b'{"a": "\xc3"}', '"ä"'.encode("latin-1")]
)
def test_bytes_must_be_utf8(data):
    """UTF-8 has no surrogates, so CESU-8 is refused too."""
    with pytest.raises(InputError, match="not UTF-8"):
        strict_json.loads(data)


def test_nesting_of_64_levels_is_read():
    """Lists and objects in turn."""
    text = '[{"a":' * 32 + "1" + "}]" * 32
    assert strict_json.loads(text) == json.loads(text)


def test_surrogate_pairs_are_characters():
    """An emoji escaped as JSON asks for it."""
    assert strict_json.loads(r'"\ud83d\ude00 \\ud800"') == "\U0001f600 \\ud800"


@given(data=st.binary(max_size=60))
@example(data=b'{"a":1' + b"0" * 400 + b"}")
def test_any_bytes_are_read_or_refused(data):
    """Nothing but InputError ever comes out, and what is read is what the library reads."""
    try:
        value = strict_json.loads(data)
    except InputError:
        return
    assert value == json.loads(data)


@given(text=st.text(st.sampled_from('[]{}",:\\u0dD8eE1.-+ntrfals'), max_size=40))
def test_any_text_of_json_signs_is_read_or_refused(text):
    """The same, closer to JSON."""
    try:
        value = strict_json.loads(text)
    except InputError:
        return
    assert value == json.loads(text)


@pytest.mark.parametrize("text", ["[]", "1", '"{}"', "null"])
def test_object_is_an_object(text):
    """A request body of another kind is refused before any key is looked up."""
    assert strict_json.load_object("{}") == {}
    with pytest.raises(InputError, match="object"):
        strict_json.load_object(text)
