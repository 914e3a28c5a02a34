"""Files of labelled rows: four formats, the same rows, and nothing but RowsError."""

import csv
import gzip
import io
import json
from contextlib import suppress
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core.errors import InputError, RowsError
from racer_core.records.reader import parse_rows, read_rows

ROWS = [
    {"query": "What is 2 + 2?", "task": "sums", "cluster": "u", "correct": {"a": True, "b": False}},
    {"query": 'Say "hi", twice\nplease: ä 😀', "task": "talk", "correct": {"a": False, "b": False}},
]
JSON_LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()
CSV = (
    "query,task,cluster,a,b\r\n"
    "What is 2 + 2?,sums,u,1,false\r\n"
    '"Say ""hi"", twice\nplease: ä 😀",talk,,0,FALSE\r\n'
).encode()


def parquet(table):
    """The bytes of a parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def refusal(data, name):
    """What the reader says about a file that it refuses."""
    with pytest.raises(RowsError) as caught:
        parse_rows(data, name)
    assert len(str(caught.value)) < 300
    return str(caught.value)


def csv_by(delimiter):
    """The same table, its columns separated otherwise."""
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows(csv.reader(io.StringIO(CSV.decode())))
    return file.getvalue().encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rows.ndjson", JSON_LINES),
        ("ROWS.JSONL", JSON_LINES),
        ("rows.jsonl", b"\xef\xbb\xbf" + JSON_LINES + b"\n\n"),
        ("rows.jsonl", JSON_LINES.replace(b"}}\n", b"}}\r\n")),
        ("rows.jsonl.gz", gzip.compress(JSON_LINES)),
        ("rows.json", json.dumps(ROWS).encode()),
        ("rows.json", json.dumps({"rows": ROWS}).encode()),
        ("rows.csv", CSV),
        ("rows.csv", csv_by(";")),
        ("rows.csv", csv_by("\t")),
        ("rows.csv.gz", gzip.compress(b"\xef\xbb\xbf" + CSV)),
        ("rows.parquet", None),  # made when it is needed: pyarrow imports pandas
    ],
)
def test_every_format_gives_the_same_rows(name, data, tmp_path):
    """The format follows from the name; a byte order mark and CR LF are no part of a row."""
    (tmp_path / name).write_bytes(data or parquet(pa.Table.from_pylist(ROWS)))
    assert read_rows(tmp_path / name) == parse_rows(JSON_LINES, "rows.jsonl")


def test_pool_and_labels_of_the_common_rows():
    """What all formats agree on is right."""
    rows = parse_rows(CSV, "rows.csv")
    assert rows.pool == ("a", "b")
    assert rows.labels(rows.pool).tolist() == [[True, False], [False, False]]
    assert [(row.task, row.cluster) for row in rows.rows] == [("sums", "u"), ("talk", None)]


@pytest.mark.parametrize("sign", ["\u0085", "\u2028", "\u2029"])
def test_unicode_line_separators_do_not_cut_a_line(sign):
    """JSON lines end at LF alone; str.splitlines() would cut inside the string."""
    line = f'{{"query": "one{sign}two", "correct": {{"a": true}}}}\n'
    assert parse_rows(line.encode(), "x.jsonl").queries == [f"one{sign}two"]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("x.jsonl", b'{"query": "x"}\n\n{}\n"\xff"', "line 4: not UTF-8"),
        ("x.jsonl", b"\xef\xbb\xbf{}\n\xff", "line 2: not UTF-8"),
        ("x.csv", b"query,a\nx,1\n\xff,1\n", "line 3: not UTF-8"),
        ("x.jsonl", '{"query": "ä"}'.encode("utf-16"), "line 1: not UTF-8"),
        ("x.jsonl.gz", b"{}", "not a gzip file"),
        ("x.jsonl.gz", gzip.compress(JSON_LINES)[:-9], "not a gzip file"),
        ("x.json", b"{", "not JSON"),
        ("x.json", b"5", "list of rows"),
        ("x.json", b'{"rows": {}}', "list of rows"),
        ("x.json", b"[]", "no rows"),
        ("x.json", b'[{"query": "x", "correct": {"a": true}}, {}]', '2: no "query"'),
        ("x.csv", b"", "line 1"),
        ("x.csv", b"query,a\n", "no rows"),
        ("x.csv", b"question,a\nx,1\n", "line 1: the header needs a query column"),
        ("x.csv", b"query,a,a\nx,1,1\n", "line 1: the header"),
        ("x.csv", b"query\nx\n", "candidate"),
        ("x.csv", b"query,a,\nx,1,1\n", "candidate"),
        ("x.csv", b"query,a\nx,1\ny,maybe\n", "line 3: column 'a' must hold"),
        ("x.csv", b"query,a\nx,1\ny,\n", "line 3: column 'a' must hold"),
        ("x.csv", b"query,a\nx,1\ny,1,1\n", "line 3: 3 cells under 2 columns"),
        ("x.csv", b'query,a\nx,1\n"y,1\n', "not CSV"),
        ("x.csv", b"query,a\n" + b"y" * 200_000 + b",1\n", "line 2: not CSV"),
        ("x.csv", b"request,a\nx,1\n", 'line 2: column "request": not JSON'),
        ("x.csv", b"request,a\n7,1\n", 'line 2: "request" must be an object'),
        ("x.csv", b"request,query,a\n{},x,1\n", 'line 2: give either "request" or "query"'),
        ("x.parquet", b"PAR1 and nothing else", "not a parquet file"),
        ("x.parquet", b"", "not a parquet file"),
    ],
)
def test_damaged_file_is_one_short_error(name, data, expected):
    """It names the line where there is one, and repeats nothing of the text."""
    message = refusal(data, name)
    assert expected in message
    assert "yyy" not in message


def test_gzip_unpacks_no_further_than_allowed():
    """A few kilobytes can hold gigabytes; the limit itself may be reached."""
    packed = gzip.compress(JSON_LINES)
    assert len(parse_rows(packed, "x.jsonl.gz", max_bytes=len(JSON_LINES))) == 2
    with pytest.raises(RowsError, match="unpacks to more than"):
        parse_rows(packed, "x.jsonl.gz", max_bytes=len(JSON_LINES) - 1)


def test_missing_file_or_folder_is_an_input_error(tmp_path):
    """One line, without a traceback of the operating system."""
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_rows(path)


@pytest.mark.parametrize(
    "column",
    [
        lambda: pa.array([1_700_000_000_000_000_001], pa.timestamp("ns")),
        lambda: pa.array([2**40], pa.timestamp("s")),
        lambda: pa.Array.from_buffers(
            pa.string(),
            1,
            [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")],
        ),
    ],
    ids=["nanoseconds", "year 36812", "not UTF-8"],
)
def test_parquet_values_that_python_cannot_hold_are_a_rows_error(column):
    """The file is valid parquet; reading a value out of it raises."""
    refusal(parquet(pa.table({"query": column()})), "x.parquet")


def test_parquet_of_other_columns_is_a_rows_error():
    """A NaN score, a map in place of a struct, no columns at all."""
    nan = {"scores": {"a": float("nan")}, "correct": {"a": True}}
    assert "NaN" in refusal(parquet(pa.Table.from_pylist([nan])), "x.parquet")
    pairs = pa.array([[("a", True)]], pa.map_(pa.string(), pa.bool_()))
    refusal(parquet(pa.table({"query": ["x"], "correct": pairs})), "x.parquet")
    refusal(parquet(pa.table({})), "x.parquet")


NAMES = st.sampled_from(["x.jsonl", "x.json", "x.csv", "x.parquet", "x.jsonl.gz", "x", "x.gz"])


@given(data=st.binary(max_size=80), name=NAMES)
@example(data=b'"\n"\r"', name="x.csv")
@example(data=b"query,a\r\0\n", name="x.csv")
def test_any_bytes_are_rows_or_a_rows_error(data, name):
    """An upload can hold anything."""
    with suppress(RowsError):
        parse_rows(data, name)


@cache
def good_files():
    """The rows in four formats, made when they are needed: pyarrow imports pandas."""
    return {
        "x.jsonl": JSON_LINES,
        "x.csv": CSV,
        "x.jsonl.gz": gzip.compress(JSON_LINES, mtime=0),
        "x.parquet": parquet(pa.Table.from_pylist(ROWS)),
    }


@given(
    name=st.sampled_from(["x.jsonl", "x.csv", "x.jsonl.gz", "x.parquet"]),
    cuts=st.tuples(st.integers(0, 2_000), st.integers(0, 12)),
    junk=st.binary(max_size=6),
)
def test_any_damage_to_a_good_file_is_rows_or_a_rows_error(name, cuts, junk):
    """Some bytes replaced by others, anywhere."""
    data = good_files()[name]
    start = cuts[0] % (len(data) + 1)
    with suppress(RowsError):
        parse_rows(data[:start] + junk + data[start + cuts[1] :], name)


@pytest.mark.parametrize(
    "document",
    [
        b'{"rows": [{"query": "a", "correct": {"x": true}}, {"x": true, "x": false}]}',
        b'[{"query": "a", "correct": {"x": true}},\n {"query": "b", "correct": {"x": NaN}}]',
        b'{"rows": [{"query": "a"}, {"query": "\\ud800"}]}',
        b'{"candidates": ["x"], "rows": [{"query": "a"}, {]}',
    ],
)
def test_a_document_that_is_no_json_names_the_row(document):
    """The JSON parser does not say where; the error names the row."""
    with pytest.raises(RowsError, match="row 2: "):
        parse_rows(document, "rows.json")
