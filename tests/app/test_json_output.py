"""JSON serialisation: orjson and the standard library write equal documents."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.json_output import dump_json
from app.routing.reasons import Reason

texts = st.text(st.characters(codec="utf-8"))
# Small lists and dictionaries: drawing large ones takes 10 s and finds nothing more.
documents = st.dictionaries(
    texts,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts,
        lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(texts, deeper, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(documents)
def test_parsed_json_is_serialised_unchanged(document: dict[str, object]) -> None:
    """Integers of more than 64 bits too, which only the standard library writes."""
    assert json.loads(dump_json(document)) == document


def test_no_line_end_and_no_nan_goes_out() -> None:
    """An event stream would break at the one, clients at the other; NaN becomes null."""
    written = dump_json({"text": "a\n\r\u2028b", "nan": math.nan, "inf": math.inf})
    assert b"\n" not in written
    assert b"\r" not in written
    assert json.loads(written) == {"text": "a\n\r\u2028b", "nan": None, "inf": None}
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_json({"large": 2**70, "nan": math.nan})  # the standard library's to write


def test_enumerations_are_their_values_and_tuples_are_lists() -> None:
    """As reasons in a certificate are."""
    assert dump_json({"reasons": (Reason.PINNED, "b")}) == b'{"reasons":["pinned","b"]}'


def test_a_lone_surrogate_goes_out_as_an_escape() -> None:
    """Requests with one are refused; what is kept of a decision must be writable all the same."""
    assert dump_json({"text": "\ud800ü"}) == b'{"text":"\\ud800\\u00fc"}'
