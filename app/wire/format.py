"""The interface of API formats: reading candidates' answers, and writing them for one API.

A *body* is a whole answer, a *piece* one event of a stream, both as the candidate sent them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from app.wire.event_template import EventTemplate, Piece, SplicedEvents, TextEvent
from racer_core.aggregation.reasoning import ReasoningFilter


class AnswerKind(IntEnum):
    """How much of an answer a choice has, in ascending order.

    Of the answers of a set only those of its best kind vote and are returned.
    """

    NOTHING = 0  # neither text nor anything else: in a set, a failure
    BLANK = 1  # white space, or an empty text
    WITHHELD = 2  # reasoning or the finish reason `content_filter`, and no text
    REFUSAL = 3
    ANSWER = 4  # a text, a tool call, or output of another kind


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class Choice:
    """One choice of a candidate's answer."""

    text: str | None = None  # None: no text, but a tool call, for example
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    refused: bool = False  # the candidate declined to answer
    finish_reason: str | None = None  # the chat API's; None where it is not known yet
    has_other: bool = False  # audio, or another kind of output
    is_withheld: bool = False  # has reasoning, or was ended by a content filter

    def without_reasoning(self, reasoning: ReasoningFilter) -> Self:
        """The choice with the answer alone as its text; it is withheld where none is left."""
        if not self.text or not reasoning.pattern.search(self.text):
            return self
        answer = reasoning.answer(self.text)
        return replace(self, text=answer, is_withheld=self.is_withheld or not answer)

    @property
    def is_whole(self) -> bool:
        """Whether it ended well: neither at the token limit nor by a content filter."""
        return self.finish_reason in ("stop", "tool_calls", "function_call")

    @property
    def kind(self) -> AnswerKind:
        """How much of an answer it has."""
        if self.tool_calls or self.has_other:
            return AnswerKind.ANSWER
        if self.refused:
            return AnswerKind.REFUSAL
        if self.text and not self.text.isspace():
            return AnswerKind.ANSWER
        if self.is_withheld:
            return AnswerKind.WITHHELD
        return AnswerKind.NOTHING if self.text is None else AnswerKind.BLANK


class EventWriter(Protocol):
    """Rewrites one candidate's stream as it passes through."""

    def feed(self, piece: Piece) -> list[bytes]:
        """Events that can go out now."""
        ...


class NamedWriter(EventWriter, Protocol):
    """Rewrites the stream of a candidate that was requested by name."""

    def end(self) -> bytes:
        """What ends the stream."""
        ...


class StreamWriter(EventWriter, Protocol):
    """Rewrites a stream with our id; the finishing piece is held back for the ``racer`` object."""

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as the candidate counted them so far."""
        ...

    def close(
        self, racer: Mapping[str, Any], usage: Mapping[str, int] | None = None
    ) -> list[bytes]:
        """The last events, of which the last carries the ``racer`` object.

        Args:
            racer: The object.
            usage: Tokens of all calls by their chat names; None keeps the candidate's own.
        """
        ...


class ApiFormat(Protocol):
    """An API format, with the options of one request."""

    path: ClassVar[str]  # below a base URL, such as ``chat/completions``
    id_prefix: ClassVar[str]  # of the ids of its answers

    @property
    def n(self) -> int:
        """Number of requested choices."""
        ...

    def body(self, name: str, data: bytes) -> dict[str, Any]:
        """Parse a whole answer of candidate ``name``, which may have no text.

        Raises UpstreamError if it is malformed.
        """
        ...

    def piece(self, name: str, data: str) -> dict[str, Any]:
        """Parse one event of its stream. Raises UpstreamError, also when the event is an error."""
        ...

    def event_template(self, data: str, piece: Mapping[str, Any]) -> EventTemplate | None:
        """The template of events that differ from this one in their text; None without one."""
        ...

    def ends(self, piece: Mapping[str, Any]) -> Mapping[int, bool]:
        """The choices in this piece, and whether it completes each of them."""
        ...

    def kind(self, piece: Mapping[str, Any]) -> AnswerKind:
        """How much of an answer this piece alone has; its finish reason does not count."""
        ...

    def texts(self, piece: Mapping[str, Any]) -> Mapping[Hashable, str]:
        """What this piece adds to the texts of the stream, by a name of each text."""
        ...

    def joined(self, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The whole answer of a finished stream that has no more than white space."""
        ...

    def chars(self, piece: Mapping[str, Any]) -> int:
        """Number of characters of text in this piece."""
        ...

    def pieces(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A whole answer as the pieces of a stream."""
        ...

    def choices(self, body: Mapping[str, Any]) -> Sequence[Choice]:
        """The choices of an answer, at least one."""
        ...

    def usage(self, body: Mapping[str, Any]) -> dict[str, int]:
        """Token counts by their chat names (prompt, completion, total); empty if not given.

        Takes a body or a piece.
        """
        ...

    def without_usage(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The same without token counts. Takes a body or a piece."""
        ...

    def streamed(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The payload that requests a stream, with the usage at its end."""
        ...

    def is_wanted(self, piece: Mapping[str, Any]) -> bool:
        """Whether the client requested this piece; the usage at the end may be ours alone."""
        ...

    def stamped(
        self,
        body: Mapping[str, Any],
        *,
        decision_id: str,
        model: str,
        usage: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """The answer for the client: with our id, the candidate's name and this usage."""
        ...

    def named(self, piece: Mapping[str, Any], model: str) -> dict[str, Any]:
        """A body or piece with the candidate's own name."""
        ...

    def answer_text(self, body: Mapping[str, Any]) -> str:
        """The text of a stamped or named answer."""
        ...

    def refusal(self, decision_id: str, sentence: str) -> dict[str, Any]:
        """The answer to a request for which no candidate was called, before it is stamped."""
        ...

    def event(self, piece: Mapping[str, Any]) -> bytes:
        """The event of a piece."""
        ...

    def live(self, *, decision_id: str, model: str) -> StreamWriter:
        """A writer for a stream that passes through."""
        ...

    def renamed(self, model: str) -> NamedWriter:
        """A writer for the stream of a candidate that was requested by name."""
        ...

    def whole_stream(self, body: Mapping[str, Any], racer: Mapping[str, Any]) -> list[bytes]:
        """A finished, stamped answer as events, to the end of the stream."""
        ...

    def waiting(self, text: str) -> bytes:
        """What keeps the connection of a waiting stream alive: clients ignore it."""
        ...

    def error_event(self, status: int, error: Mapping[str, Any]) -> bytes:
        """The event that ends a failed stream, from the status and envelope of an error."""
        ...


class RenamedEvents:
    """Events with the candidate's own name, without those that the client did not request.

    Args:
        write: Writes a piece with that name.
        is_wanted: Whether the client requested a piece; it did where the piece has a text.
        end: Ends the stream, after its last event.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, Any]], bytes],
        is_wanted: Callable[[Mapping[str, Any]], bool],
        end: bytes,
    ) -> None:
        self._write = write
        self._is_wanted = is_wanted
        self._end = end
        self._spliced = SplicedEvents(write)

    def feed(self, piece: Piece) -> list[bytes]:
        """See :class:`EventWriter`."""
        if isinstance(piece, TextEvent):
            return [self._spliced.event(piece)]
        return [self._write(piece)] if self._is_wanted(piece) else []

    def end(self) -> bytes:
        """See :class:`NamedWriter`."""
        return self._end
