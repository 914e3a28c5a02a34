"""The reader of server-sent events: the standard, any chunking, limits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire import sse
from racer_core.errors import InputError


def read(*chunks: bytes) -> list[str]:
    """The events of a byte stream that arrives in these chunks."""
    reader = sse.EventReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


def test_events_before_a_wrong_one_are_given() -> None:
    """However they arrive: else it would depend on the network whether a call is made again."""
    events = sse.EventReader().feed(b"data: a\n\ndata: \xff\n\n")
    assert next(events) == "a"
    with pytest.raises(InputError):
        next(events)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data:a\ndata:  b\ndata\n\n", ["a\n b\n"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b": a comment\n\nevent: x\nid: 1\nretry: 2\ndata: a\n\n", ["a"]),
        (b"data: a: b\n\n", ["a: b"]),
        (b"data: \xc3\xa9\xf0\x9f\x98\x80\n\n", ["é😀"]),
        (b"\n\n\ndata: a\n\n\n", ["a"]),
        (b"data: half", []),
        (b"data: no blank line\n", []),
        (b"datas: x\n\n data: y\n\n", []),
        ("data: line\u2028separator\x85\n\n".encode(), ["line\u2028separator\x85"]),
    ],
)
def test_events_are_read_as_the_standard_says(stream: bytes, expected: list[str]) -> None:
    """Every line end, comments, other fields, several data lines, and a byte order mark."""
    assert read(stream) == expected


LINES = st.sampled_from(
    ["data: a", "data:", "data: é😀", "data", ": comment", "event: x", "", "", "id: 1", "dat"]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n"])), max_size=12)


@given(parts=STREAMS, bom=st.booleans(), cuts=st.lists(st.integers(0, 120), max_size=8))
def test_any_chunking_of_a_stream_yields_the_same_events(
    parts: list[tuple[str, str]], bom: bool, cuts: list[int]
) -> None:
    """Chunks may end inside a character, a line end or the byte order mark, or be empty."""
    stream = ("\ufeff" * bom + "".join(line + end for line, end in parts)).encode()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(places)]
    assert read(*chunks) == read(stream)
    assert read(*(bytes([byte]) for byte in stream)) == read(stream)


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * (2**20 + 1)],
        [b"data: " + b"x" * 2**19] * 3,
        [b"data: " + b"x" * 2**18 + b"\n"] * 5,
        [b"data: \xff\n\n"],
        [b"data: \xed\xa0\x80\n\n"],
    ],
    ids=["one_line", "many_chunks", "many_lines", "not_utf8", "surrogate"],
)
def test_events_that_no_candidate_should_send_are_refused(chunks: list[bytes]) -> None:
    """Over 1 MiB, or not UTF-8."""
    with pytest.raises(InputError):
        read(*chunks)


def test_many_small_events_in_one_chunk_are_no_large_event() -> None:
    """The limit is an event's, not the chunk's."""
    assert len(read(b"data: x\n\n" * 200_000)) == 200_000
