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


def mostly(strategy: Strategy) -> Strategy:
    """Something as it should be, and now and then anything else."""
    return st.one_of(strategy, strategy, strategy, documents)


def objects(fields: dict[str, Strategy]) -> Strategy:
    """An object with some of these fields, each mostly as it should be, and others."""
    known = st.fixed_dictionaries({}, optional={n: mostly(each) for n, each in fields.items()})
    whole = st.fixed_dictionaries({name: mostly(each) for name, each in fields.items()})
    return st.one_of(known, whole, st.builds(lambda a, b: {**a, **b}, documents_by_name, known))


documents_by_name = st.dictionaries(st.text(max_size=4), documents, max_size=2)


def written(values: Strategy) -> Strategy:
    """JSON as it may be written: escaped or not, in one line or several."""
    return st.builds(
        lambda value, escaped, indent: json.dumps(value, ensure_ascii=escaped, indent=indent),
        values,
        st.booleans(),
        st.sampled_from([None, 1]),
    )


def texts(pieces: Sequence[str]) -> Strategy:
    """These pieces in any order, with any text between them."""
    return st.lists(st.one_of(st.sampled_from(pieces), st.text(max_size=3)), max_size=16).map(
        "".join
    )


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
