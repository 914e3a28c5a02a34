"""Streaming answers of candidates: server-sent events, parsed into pieces."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from app.concurrency.threads import off_loop
from app.errors import UpstreamError
from app.telemetry.tracing import CallSpan
from app.upstream.http_client import UpstreamAnswer
from app.wire import parsing
from app.wire.event_template import EventTemplate
from app.wire.format import ApiFormat
from app.wire.sse import EventReader
from racer_core.errors import InputError

_DONE: Final = "[DONE]"
_TEMPLATE_MISSES: Final = 8  # events in a row that fit no template, before it is given up
_BROKEN_OFF: Final = ("upstream_disconnected", "upstream_timeout", "upstream_protocol_error")


async def pieces_of(
    name: str, api_format: ApiFormat, answer: UpstreamAnswer
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the pieces of an answer. The document of a server that does not stream is split.

    Raises:
        UpstreamError: The stream ended before the answer did.
    """
    if not answer.is_stream:
        body = await off_loop(partial(api_format.body, name), await answer.read_all())
        for piece in api_format.pieces(body):
            yield piece
        return
    seen, finished = set[int](), set[int]()
    has_end_mark = False
    event_template: EventTemplate | None = None
    misses = 0
    events = _events(name, answer)
    try:
        async with contextlib.aclosing(events):
            async for data in events:
                if has_end_mark := data.strip() == _DONE:
                    break
                piece = None if event_template is None else event_template.piece(data)
                if piece is not None:
                    misses = 0
                else:
                    piece = api_format.piece(name, data)
                    misses += 1
                    event_template = (
                        api_format.event_template(data, piece)
                        if misses < _TEMPLATE_MISSES
                        else None
                    )
                for choice, ends in api_format.ends(piece).items():
                    seen.add(choice)
                    if ends:
                        finished.add(choice)
                yield piece
    except UpstreamError as exc:
        if len(finished) < api_format.n or exc.kind not in _BROKEN_OFF:
            raise
    # Some servers ignore `n`, and some send no [DONE]. Without [DONE], a choice that never began
    # may have been cut off, so all requested choices must have finished.
    if not finished or finished != seen or not (has_end_mark or len(finished) == api_format.n):
        raise UpstreamError(f"{name} cut its stream", kind="upstream_disconnected")
    await answer.finish()


async def recording_usage(
    pieces: AsyncGenerator[dict[str, Any]], span: CallSpan, api_format: ApiFormat
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the pieces and record the model and the token usage that they report in a span."""
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            span.set_response(piece.get("model"), api_format.usage(piece))
            yield piece


async def with_first(
    first: dict[str, Any], rest: AsyncGenerator[dict[str, Any]]
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the first piece, which was awaited before the stream counts as open, and the rest."""
    async with contextlib.aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


async def _events(name: str, answer: UpstreamAnswer) -> AsyncGenerator[str]:
    """Yield the data of each event."""
    reader = EventReader()
    while part := await answer.read_part():
        try:
            for data in reader.feed(part):
                yield data
        except InputError as exc:
            raise parsing.invalid(name) from exc
