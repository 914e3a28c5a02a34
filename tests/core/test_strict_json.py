"""The one JSON reader: stricter than the standard library, and never quoting what it read."""

import json

import pytest
from hypothesis import example, given, settings
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


@given(data=st.binary(max_size=60))
@example(data=b'{"a":1' + b"0" * 400 + b"}")
def test_any_bytes_are_read_or_refused(data):
    """Nothing but InputError ever comes out, and what is read is what the library reads."""
    try:
        value = strict_json.loads(data)
    except InputError:
        return
    assert value == json.loads(data)


literals = st.one_of(
    st.sampled_from(["0", "-0", "-0.0", "-0e1", "1.0", "1E+2", "1e-400", "1e400", "NaN", "true"]),
    st.sampled_from([2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**18, 10**19]).map(str),
    st.floats().map(repr),
    st.lists(
        st.sampled_from(["a", ":", "\\u003a", "\\u003A", '\\"', "\\\\", "\\ud800", "1" * 19, "ä"])
    )
    .map("".join)
    .map('"{}"'.format),
)
spaces = st.sampled_from(["", "", " ", "\n", "\x0b"])


@st.composite
def members(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """An object whose keys are often equal, spelled in several ways."""
    keys = st.sampled_from(['"a"', '"\\u0061"', '"b"', '":"', '"\\u003a"', '"\\":"', '""'])
    pairs = draw(st.lists(st.tuples(keys, spaces, spaces, values), max_size=3))
    return "{" + ",".join(f"{key}{one}:{two}{value}" for key, one, two, value in pairs) + "}"


written_documents = st.recursive(
    literals,
    lambda inner: st.one_of(
        members(inner),
        st.lists(inner, max_size=3).map(lambda each: f"[{','.join(each)}]"),
        st.tuples(st.sampled_from([1, 30, 62, 63, 64, 65, 200, 300]), inner).map(
            lambda found: "[" * found[0] + found[1] + "]" * found[0]
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=300)
@given(text=written_documents, blanks=st.sampled_from([0, 2**16]))
@example(text='{"a":1, "a":"\\u003a"}', blanks=0)  # as many colons as without the repeated key
@example(text='{"a" :1, "a":"\\":"}', blanks=0)
@example(text="[" * 65 + "]" * 65, blanks=0)
@example(text="[" * 66 + "]" * 66, blanks=0)
@example(text="[" * 66 + "]" * 66, blanks=2**16)
@example(text='{"a":' * 64 + "{}" + "}" * 64, blanks=0)
@example(text='{"a":' * 65 + "{}" + "}" * 65, blanks=0)
def test_the_fast_reader_and_the_strict_decoder_agree(text, blanks):
    """The same documents are refused, and the others have the same values of the same types."""

    def outcome(read, data):
        try:
            return repr(read(data))  # tells 1 from 1.0, 0.0 from -0.0, and the order of keys
        except InputError as exc:
            return exc.args

    data = text.encode() + b" " * blanks
    assert outcome(strict_json.loads, data) == outcome(strict_json.decode_strictly, data)


@pytest.mark.parametrize("text", ["[]", "1", '"{}"', "null"])
def test_object_is_an_object(text):
    """A request body of another kind is refused before any key is looked up."""
    assert strict_json.load_object("{}") == {}
    with pytest.raises(InputError, match="object"):
        strict_json.load_object(text)
