"""Readers of labelled rows: bytes in, rows or an error with a place out."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import Any, get_args

import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.calibrations.parsing import ReadInstructions, parse
from app.wire.candidate_payload import BodySettings
from racer_core.aggregation.answers import Equality
from racer_core.errors import InputError, RowsError
from racer_core.records import reader
from racer_core.records.checks import RowLimits
from racer_core.records.conversation import RoutedText

from .strategies import Strategy, damaged, mostly, objects, outcome, texts, written

POOL = ("a", "b")
LIMITS = RowLimits(query_chars=50, line_bytes=400, rows=20, text="conversation")

_names = st.sampled_from(["a", "b", "c", "", "é"])
_labels = mostly(st.booleans())
_turns = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "user", "assistant", "system"]),
        "content": st.sampled_from(["hello", "x", "", "\u2028", "z" * 30]),
    },
    optional={"refusal": st.none(), "name": st.just("ann")},
)
_rows: Strategy = objects(
    {
        "query": st.sampled_from(["x", "y", " ", "\u2028", "z" * 51]),
        "messages": st.lists(_turns, min_size=1, max_size=3),
        "correct": st.one_of(
            st.dictionaries(_names, _labels, max_size=3), st.lists(_names, max_size=3)
        ),
        "candidates": st.lists(_names, max_size=3),
        "answers": st.dictionaries(_names, mostly(st.text(max_size=3)), max_size=3),
        "scores": st.dictionaries(_names, mostly(st.floats(0, 1)), max_size=3),
        "reference": st.text(max_size=3),
        "task": st.integers(),
        "group": st.text(max_size=3),
    }
)
_good_rows = st.fixed_dictionaries(
    {"query": st.text(min_size=1, max_size=5), "correct": st.just({"a": True, "b": False})}
)
_many = st.lists(st.one_of(_good_rows, mostly(_rows)), max_size=4)


@st.composite
def _lines(draw: st.DrawFn) -> bytes:
    ends = st.sampled_from(["\n", "\r\n", "\n\n", ""])
    header = draw(st.sampled_from(["", "\ufeff", '{"candidates": ["a", "b"]}\n']))
    lines = [json.dumps(row) + draw(ends) for row in draw(_many)]
    return (header + "".join(lines)).encode()


_documents = st.one_of(
    written(st.fixed_dictionaries({"rows": _many, "candidates": st.just(["a", "b"])})),
    written(_many),
    written(objects({"rows": _many, "alpha": st.floats(0, 1), "candidates": st.just([*POOL])})),
    texts(["[", "]", "{", "}", ",", ":", '"rows"', '"x"', "1", "-", "1.5e", "nul", " ", "\\"]),
).map(lambda text: text.encode())


@st.composite
def _tables(draw: st.DrawFn) -> bytes:
    cells = st.one_of(
        st.sampled_from(["query", "a", "b", "1", "0", "true", "", '"', "\n", "\r", "x"]),
        st.text(max_size=3),
    )
    label = st.sampled_from(["1", "0", "true", "FALSE"])
    good = st.tuples(st.text(min_size=1, max_size=5), label, label)
    rows = draw(st.lists(st.one_of(good, good, st.lists(cells, max_size=4)), max_size=4))
    head = draw(st.sampled_from([["query", "a", "b"], ["query", "a", "b"], ["query", "task"], []]))
    out = io.StringIO()
    csv.writer(out, lineterminator=draw(st.sampled_from(["\n", "\r\n", "\r"]))).writerows(
        [head, *rows]
    )
    return out.getvalue().encode()


def _parquet(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pyarrow.Table.from_pylist([row] * 3), out)
    return out.getvalue()


FILES = {
    "rows.jsonl": _lines(),
    "rows.json": _documents,
    "rows.csv": _tables(),
    "rows.jsonl.gz": _lines().map(lambda data: gzip.compress(data, mtime=0)),
    "rows.parquet": st.sampled_from(
        [
            {"query": "x", "a": True, "b": False},
            {"query": "é", "correct": ["a"], "candidates": ["a", "b"]},
        ]
    ).map(_parquet),  # made when it is needed: pyarrow imports pandas
}


@st.composite
def _files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A name and its bytes: of that format, somewhat damaged, or anything."""
    name = draw(st.sampled_from([*FILES]))
    return name, draw(st.one_of(damaged(FILES[name]), st.binary(max_size=60)))


@given(file=_files(), pool=st.sampled_from([None, POOL]))
@example(file=("rows.csv", b'"\n"\r"'), pool=None)
@example(file=("rows.csv", b"query,a\r\0\n"), pool=None)
def test_any_file_is_rows_or_a_rows_error(
    file: tuple[str, bytes], pool: tuple[str, ...] | None
) -> None:
    """Of the same pool that was asked for, and the same the second time."""
    name, data = file

    def read() -> Any:
        return reader.parse_rows(data, name, pool, max_query_chars=50, max_bytes=10_000)

    found = outcome(read, RowsError)
    assert found == outcome(read, RowsError)
    if not isinstance(found, str):
        assert len(found) > 0
        assert pool is None or set(found.pool) == set(pool)
        assert all(row.correct <= set(found.pool) for row in found.rows)
        assert all(len(row.query) <= 50 for row in found.rows)


class _Dribble(io.BytesIO):
    """A file that gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        """No more than a few bytes."""
        wanted = self._most if size is None or size < 0 else min(size, self._most)
        return super().read(wanted)


@given(file=_files(), most=st.integers(1, 7))
def test_rows_do_not_depend_on_how_a_file_arrives(file: tuple[str, bytes], most: int) -> None:
    """Whatever is at hand when: values, characters and line ends may be cut anywhere."""
    name, data = file
    if name.endswith((".gz", ".parquet")):  # neither is read as it comes
        return

    def read(source: io.BytesIO) -> Any:
        return list(reader.stream_rows(source, name, name, POOL, LIMITS))

    whole = outcome(lambda: read(io.BytesIO(data)), InputError)
    dribbled = outcome(lambda: read(_Dribble(data, most)), InputError)
    assert type(whole) is type(dribbled)
    if isinstance(whole, list):
        assert whole == dribbled


@given(
    file=_files(),
    equality=st.sampled_from([None, *Equality][:6]),
    text=st.sampled_from(get_args(RoutedText)),
)
def test_any_upload_is_columns_or_an_error(
    file: tuple[str, bytes], equality: Equality | None, text: RoutedText
) -> None:
    """The whole way of an upload, up to what the router is given."""
    name, data = file
    order = ReadInstructions(
        name=name,
        source="rows",
        document=name.endswith(".json"),
        pool=POOL,
        query_chars=50,
        equality=equality,
        salt="salt",
        samples_key="00",
        text=text,
        candidates=tuple(BodySettings(name=name, served_as=name) for name in POOL),
        extra_fields=(),
    )
    columns = io.BytesIO()
    beside: list[dict[str, Any]] = []
    try:
        parsed = parse(
            order,
            io.BytesIO(data),
            io.BytesIO(),
            columns,
            fields=beside.append,
            progress=lambda done, total: None,
        )
    except InputError:
        return
    assert set(parsed.pool) == set(POOL)
    assert columns.tell() > 0


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_the_strategies_often_generate_valid_rows(name: str) -> None:
    """Red when the examples above are all refused at their first byte."""
    read: list[bool] = []

    @given(data=FILES[name])
    def look(data: bytes) -> None:
        found = outcome(lambda: reader.parse_rows(data, name, POOL), RowsError)
        read.append(not isinstance(found, str))

    look()
    assert sum(read) > 0
