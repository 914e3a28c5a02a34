"""A candidate's answer as pieces, whether it streams or not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from app.concurrency.threads import off_loop
from app.errors import UpstreamError
from app.upstream.http_client import UpstreamAnswer
from app.wire import parsing
from app.wire.event_template import EventTemplate
from app.wire.format import ApiFormat
from app.wire.sse import EventReader
from racer_core.errors import InputError

_DONE: Final = "[DONE]"
_UNLIKE: Final = 8  # events in a row after which no more are supposed to be alike
_BROKEN_OFF: Final = ("upstream_disconnected", "upstream_timeout", "upstream_protocol_error")


async def pieces_of(
    name: str, api_format: ApiFormat, answer: UpstreamAnswer
) -> AsyncGenerator[dict[str, Any]]:
    """The pieces of an answer. Some servers do not stream: their document is cut into pieces.

    Raises:
        UpstreamError: It ended before the answer did.
    """
    if not answer.streams:
        body = await off_loop(partial(api_format.body, name), await answer.whole())
        for piece in api_format.pieces(body):
            yield piece
        return
    seen, finished = set[int](), set[int]()
    said_so = False
    event_template: EventTemplate | None = None
    unlike = 0
    events = _events(name, answer)
    try:
        async with contextlib.aclosing(events):
            async for data in events:
                if said_so := data.strip() == _DONE:
                    break
                piece = None if event_template is None else event_template.piece(data)
                if piece is not None:
                    unlike = 0
                else:
                    piece = api_format.piece(name, data)
                    unlike += 1
                    event_template = (
                        api_format.event_template(data, piece) if unlike < _UNLIKE else None
                    )
                for choice, ends in api_format.ends(piece).items():
                    seen.add(choice)
                    if ends:
                        finished.add(choice)
                yield piece
    except UpstreamError as exc:
        if len(finished) < api_format.n or exc.kind not in _BROKEN_OFF:
            raise
    # Some servers know no `n`, and some send no [DONE]. Without it a choice of which nothing came
    # may have been cut off, so all that were asked for must have finished.
    if not finished or finished != seen or not (said_so or len(finished) == api_format.n):
        raise UpstreamError(f"{name} cut its stream", kind="upstream_disconnected")
    await answer.ended()


async def _events(name: str, answer: UpstreamAnswer) -> AsyncGenerator[str]:
    """The data of events."""
    reader = EventReader()
    while part := await answer.part():
        try:
            for data in reader.feed(part):
                yield data
        except InputError as exc:
            raise parsing.invalid(name) from exc
