"""Bytes, texts and documents: nearly right ones, for these get furthest, and any others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, 2**63, 10**400, 1e308, -0.0]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
# Pieces that JSON is made of, also of the kinds that are refused.
_JSON_PIECES = [
    *'[]{}",:\\ -.01eE\n\t',
    *("null", "true", "false", "NaN", "-Infinity", "1e999", "1" * 50, '"a"', '"a":', "{}", "[]"),
    *(r"\ud83d", r"\ude00", r"\u0000", r"\n", "\x00", "\x7f", "\u2028", "é", "😀", "\ufeff"),
    *("[" * 70, "]" * 70, '{"a":' * 70, "}" * 70),
]


# Drawn at once, where a document is drawn piece by piece: so others may be read deep within.
odd = st.sampled_from(
    [
        *("null", "true", "0", "-1", "1.5", "1e308", str(2**63), str(10**400)),
        *('""', '"x"', r'"\u2028"', r'"\u0000"', "[]", "{}", "[[]]", "[{}]", '["x"]', '{"": null}'),
        *('{"type": []}', '{"type": {}}', '[{"type": null}]', '{"x": [1, "x"]}'),
    ]
).map(json.loads)


def mostly(strategy: Strategy) -> Strategy:
    """Something as it should be, and now and then anything else."""
    return st.one_of(strategy, strategy, strategy, odd)


@st.composite
def objects(draw: st.DrawFn, fields: dict[str, Strategy]) -> dict[str, Any]:
    """An object with all of these fields or some; now and then a few of its values are others."""
    whole = st.fixed_dictionaries(fields)
    value: dict[str, Any] = draw(st.one_of(whole, st.fixed_dictionaries({}, optional=fields)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        name = draw(st.sampled_from([*fields, "x", "\u2028"]))
        value[name] = draw(st.one_of(odd, documents))
    return value


def written(values: Strategy) -> Strategy:
    """JSON as it may be written: escaped or not, in one line or several."""
    return st.builds(
        lambda value, escaped, indent: json.dumps(value, ensure_ascii=escaped, indent=indent),
        values,
        st.booleans(),
        st.sampled_from([None, 1]),
    )


def texts(pieces: Sequence[str]) -> Strategy:
    """These pieces in any order, with other characters between them.

    A byte stands for each: bytes are drawn at once, and a list is not.
    """
    table = [*pieces, *map(chr, range(len(pieces), 256))]
    few, many = st.binary(max_size=8), st.binary(min_size=8, max_size=64)
    return st.one_of(few, many).map(lambda drawn: "".join([table[each] for each in drawn]))


json_texts = st.one_of(written(documents), texts(_JSON_PIECES))


@st.composite
def damaged(draw: st.DrawFn, good: Strategy) -> bytes:
    """Good bytes, of which some may have been replaced by others."""
    data: bytes = draw(good)
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(data)))
        data = data[:start] + draw(st.binary(max_size=3)) + data[start + draw(st.integers(0, 5)) :]
    return data


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Bytes in pieces; a place behind the end is the end."""
    at = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(at)]


def outcome(what: Callable[[], Any], refused: type[Exception]) -> Any:
    """What comes of it: a value, or the sentence with which it is refused."""
    try:
        return what()
    except refused as exc:
        return f"refused: {exc}"
