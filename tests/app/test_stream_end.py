"""End of a candidate's stream: ``[DONE]``, or the finish of every choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UpstreamError
from app.upstream.http_client import UpstreamAnswer
from app.upstream.stream import CandidateStream
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.event_template import Piece
from app.wire.format import ApiFormat
from app.wire.messages.format import Messages
from app.wire.responses import Responses

BROKEN_OFF = ("upstream_disconnected", "upstream_timeout", "upstream_protocol_error")


class Sent:
    """An answer that arrives an event at a time, and then breaks off or ends."""

    is_stream = True

    def __init__(self, events: Sequence[str], failure: str | None) -> None:
        self._events = [f"data: {each}\n\n".encode() for each in events]
        self._failure = failure
        self.is_complete = False

    async def read_part(self) -> bytes:
        """The next event; in the end a failure, or nothing."""
        if self._events:
            return self._events.pop(0)
        if self._failure is not None:
            raise UpstreamError("adder broke off", kind=self._failure)
        return b""

    async def finish(self) -> None:
        """The answer was whole."""
        self.is_complete = True


def is_whole(api_format: ApiFormat, events: Sequence[str], failure: str | None = None) -> bool:
    """Whether these events are an answer; all of them are handed on either way."""
    sent = Sent(events, failure)
    pieces: list[Piece] = []

    async def read() -> None:
        stream = CandidateStream("adder", api_format, cast("UpstreamAnswer", sent))
        while arrived := await stream.read():
            pieces.extend(arrived)

    try:
        asyncio.run(read())
    except UpstreamError:
        assert not sent.is_complete
        return False
    finally:
        assert len(pieces) == len([each for each in events if each != "[DONE]"])
    assert sent.is_complete
    return True


def event(api_format: ApiFormat, index: int, finish: str | None) -> str:
    """A chunk of one choice."""
    choice = {"delta": {"content": "7"}} if isinstance(api_format, Chat) else {"text": "7"}
    return json.dumps({"choices": [{"index": index, "finish_reason": finish, **choice}]})


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[ApiFormat, list[str], bool]:
    """The choices of an honest stream in any order, cut anywhere; whether all had finished."""
    n = draw(st.integers(1, 3))
    api_format = draw(st.sampled_from([Chat, Completions]))(n=n)
    order = draw(st.permutations([i for i in range(n) for _ in range(draw(st.integers(1, 3)))]))
    last = {index: place for place, index in enumerate(order)}
    cut = draw(st.integers(0, len(order)))
    events = [
        event(api_format, index, "stop" if last[index] == place else None)
        for place, index in enumerate(order[:cut])
    ]
    return api_format, events, cut == len(order)


@given(stream=cut_streams(), failure=st.sampled_from([None, *BROKEN_OFF]))
def test_a_cut_stream_is_complete_once_every_requested_choice_has_finished(
    stream: tuple[ApiFormat, list[str], bool], failure: str | None
) -> None:
    """For every cut and every interleaving of choices, no choice misses a part."""
    api_format, events, finished = stream
    assert is_whole(api_format, events, failure) is finished


@given(stream=cut_streams())
def test_done_is_believed_only_of_choices_that_have_finished(
    stream: tuple[ApiFormat, list[str], bool],
) -> None:
    """A server that knows no ``n`` sends one choice and says so; a choice in the air is cut."""
    api_format, events, _ = stream
    last = dict[int, str | None]()
    for each in events:
        choice = json.loads(each)["choices"][0]
        last[choice["index"]] = choice["finish_reason"]
    assert is_whole(api_format, [*events, "[DONE]"]) is (bool(last) and all(last.values()))


@pytest.mark.parametrize("kind", ["upstream_response_too_large", "upstream_invalid_response"])
def test_a_fault_that_is_no_cut_stays_one(kind: str) -> None:
    """After the finish, too."""
    api_format = Chat()
    assert not is_whole(api_format, [event(api_format, 0, "stop")], kind)


@pytest.mark.parametrize(
    "api_format", [Chat(), Completions(), Responses(), Messages()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize(("error", "fails"), [(None, False), ({"message": "no"}, True)])
def test_an_error_that_is_null_is_none(api_format: ApiFormat, error: Any, fails: bool) -> None:
    """Some servers send the field with every event."""
    piece: dict[str, Any] = {"type": "response.in_progress", "choices": [], "error": error}
    with pytest.raises(UpstreamError) if fails else nullcontext():
        assert api_format.piece("m", json.dumps(piece)) == piece
