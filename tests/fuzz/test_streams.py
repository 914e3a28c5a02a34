"""The reader of server-sent events: any bytes, in any pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.wire import sse
from racer_core.errors import InputError

from .strategies import cut, texts

_PIECES = [
    *("data: ", "data:", "data", "event: x", "id:1", ":", " ", "\n", "\r", "\r\n", "\n\n"),
    *("\ufeff", "é", "😀", "\u2028", "\x00", "x" * 30, "[DONE]"),
]
streams = st.one_of(
    texts(_PIECES).map(lambda text: text.encode()),
    st.lists(
        st.one_of(
            st.sampled_from([piece.encode() for piece in _PIECES]),
            st.binary(max_size=3),
        ),
        max_size=16,
    ).map(b"".join),
    st.binary(max_size=60),
)
LIMIT = 40  # bytes of an event: what a mebibyte does, forty bytes do faster


def read(chunks: list[bytes]) -> list[str] | None:
    """The events of a stream; None where it is refused."""
    reader = sse.EventReader()
    try:
        return [event for chunk in chunks for event in reader.feed(chunk)]
    except InputError:
        return None


@given(stream=streams, places=st.lists(st.integers(0, 80), max_size=6))
@example(stream=b"data:" + b"x" * LIMIT + b"\n\n", places=[LIMIT + 6])
@example(stream=b"data\n" * LIMIT + b"\n", places=[])
def test_events_do_not_depend_on_how_a_stream_is_cut(stream: bytes, places: list[int]) -> None:
    """Nor does its refusal; nothing but InputError comes out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "MAX_EVENT_BYTES", LIMIT)
        whole = read([stream])
        assert read(cut(stream, places)) == whole
        assert read([bytes([byte]) for byte in stream]) == whole
    assert whole is None or all(len(event.encode()) <= LIMIT for event in whole)


@given(stream=streams)
def test_events_are_those_of_the_standard(stream: bytes) -> None:
    """Against the rules of the HTML standard, written down once more and in one go."""
    assert read([stream]) == _by_the_standard(stream)


def _by_the_standard(stream: bytes) -> list[str] | None:
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    if lines:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    events: list[str] = []
    data: list[bytes] = []
    for line in lines:
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        if not line and data:
            try:
                events.append(b"\n".join(data).decode())
            except UnicodeDecodeError:
                return None
            data = []
    return events


@given(value=st.dictionaries(st.text(), st.recursive(st.text(), st.lists, max_leaves=3)))
def test_an_event_of_ours_is_read_back(value: dict[str, Any]) -> None:
    """No text can end the event that holds it."""
    events = read([sse.comment("x"), sse.event(value)])
    assert events is not None
    assert len(events) == 1
