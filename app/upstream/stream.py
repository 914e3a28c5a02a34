"""Streaming answers of candidates: server-sent events, parsed into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from app.concurrency.threads import off_loop
from app.errors import UpstreamError
from app.telemetry.tracing import CallSpan
from app.upstream.http_client import UpstreamAnswer
from app.wire import parsing
from app.wire.event_template import EventTemplate, Piece
from app.wire.format import ApiFormat
from app.wire.sse import EventReader
from app.wire.token_bounds import BelievedCounts
from racer_core.errors import InputError

_DONE: Final = "[DONE]"
_TEMPLATE_MISSES: Final = 8  # events in a row that fit no template, before it is given up
_BROKEN_OFF: Final = ("upstream_disconnected", "upstream_timeout", "upstream_protocol_error")


class CandidateStream:
    """The pieces of one answer. The document of a server that does not stream is split.

    Args:
        name: The candidate.
        api_format: Reads its answer.
        answer: The response.
        counts: Bounds its token counts.
        span: Takes the model and the token usage that the pieces report.
    """

    def __init__(
        self,
        name: str,
        api_format: ApiFormat,
        answer: UpstreamAnswer,
        counts: BelievedCounts,
        span: CallSpan | None = None,
    ) -> None:
        self._name = name
        self._api_format = api_format
        self._answer = answer
        self._counts = counts
        self._span = span
        self._is_stream = answer.is_stream
        self._events = EventReader()
        self._template: EventTemplate | None = None
        self._misses = 0
        self._seen, self._finished = set[int](), set[int]()
        self._has_end_mark = False
        self._is_over = False
        self._failure: UpstreamError | None = None  # behind the pieces that were read before it
        self._first: Sequence[Piece] = ()

    async def begin(self) -> None:
        """Wait for the first pieces, which the first ``read`` returns. Raises as ``read``."""
        self._first = await self.read()

    async def read(self) -> Sequence[Piece]:
        """What arrived next: one piece or several; none at the end.

        Raises:
            UpstreamError: The stream ended before the answer did.
        """
        if self._first:
            first, self._first = self._first, ()
            return first
        if not self._is_stream:
            return await self._whole()
        while not self._is_over:
            if self._failure is not None:
                raise self._failure
            if pieces := self._pieces(await self._part()):
                return pieces
        return ()

    async def _whole(self) -> Sequence[Piece]:
        if self._is_over:
            return ()
        self._is_over = True
        parse = partial(self._api_format.body, self._name)
        body = self._counts.of(await off_loop(parse, await self._answer.read_all()))
        pieces = self._api_format.pieces(body)
        for piece in pieces:
            self._report(piece)
        return pieces

    async def _part(self) -> bytes:
        """What was read next; empty after the end, which was checked."""
        part = b""
        if not self._has_end_mark:
            try:
                part = await self._answer.read_part()
            except UpstreamError as exc:
                if not self._has_finished or exc.kind not in _BROKEN_OFF:
                    raise
        if not part:
            self._check_end()
            self._is_over = True
            await self._answer.finish()
        return part

    def _pieces(self, part: bytes) -> Sequence[Piece]:
        pieces: list[Piece] = []
        try:
            for data in self._events.feed(part):
                piece = None if self._template is None else self._template.event(data)
                if piece is not None:
                    self._misses = 0
                elif data.strip() == _DONE:
                    self._has_end_mark = True
                    break
                else:
                    piece = self._parsed(data)
                pieces.append(piece)
        except InputError as exc:
            self._failure = parsing.invalid(self._name)
            self._failure.__cause__ = exc
        except UpstreamError as exc:
            self._failure = exc
        return pieces

    def _parsed(self, data: str) -> dict[str, Any]:
        """Parse an event in full. What it alone reports is also that of events of its template."""
        piece = self._counts.of(self._api_format.piece(self._name, data))
        self._misses += 1
        self._template = (
            self._api_format.event_template(data, piece)
            if self._misses < _TEMPLATE_MISSES
            else None
        )
        for choice, ends in self._api_format.ends(piece).items():
            self._seen.add(choice)
            if ends:
                self._finished.add(choice)
        self._report(piece)
        return piece

    def _report(self, piece: dict[str, Any]) -> None:
        if self._span is not None:
            self._span.set_response(piece.get("model"), self._api_format.usage(piece))

    @property
    def _has_finished(self) -> bool:
        return len(self._finished) >= self._api_format.n

    def _check_end(self) -> None:
        """Raise UpstreamError where the answer was cut.

        Some servers ignore `n`, and some send no [DONE]. Without [DONE], a choice that never began
        may have been cut off, so all requested choices must have finished.
        """
        is_whole = bool(self._finished) and self._finished == self._seen
        if not is_whole or not (self._has_end_mark or self._has_finished):
            raise UpstreamError(f"{self._name} cut its stream", kind="upstream_disconnected")
