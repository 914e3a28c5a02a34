"""Chunked formats, the base of chat and text completions: choices, chunks, usage on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from app.errors import UpstreamError
from app.wire import parsing, sse
from app.wire.event_template import EventTemplate, Piece, SplicedEvents, TextEvent
from app.wire.format import AnswerKind, Choice, NamedWriter, RenamedEvents, StreamWriter

# Members of a choice that belong to its end; the others stand beside its text.
_FINISH: Final = ("finish_reason", "stop_reason")


@dataclass(frozen=True, slots=True)
class ChunkedFormat(ABC):
    """Answers of several choices, streamed as chunks; see :class:`app.wire.format.ApiFormat`.

    Attributes:
        n: Number of requested choices; more are dropped.
        include_usage: The client wants the usage in a last chunk.
    """

    n: int = 1
    include_usage: bool = False
    text_key: ClassVar[str]  # member of a chunk that holds its text
    kinds: ClassVar[tuple[str, str]]  # the `object` of an answer, and that of a chunk
    head_names: ClassVar[frozenset[str]]  # members that every chunk of a stream repeats

    def body(self, name: str, data: bytes) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        body = parsing.sent(name, data)
        choices = parsing.first_of_each(parsing.as_objects(name, body.get("choices")), self.n)
        if not choices:
            raise UpstreamError(f"{name} sent no choice", kind="upstream_empty")
        checked = [self._checked(name, parsing.whole(name, choice)) for choice in choices]
        return {**body, "choices": checked}

    def piece(self, name: str, data: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        piece = parsing.sent(name, data)
        choices = parsing.as_objects(name, piece.get("choices"))
        requested = [choice for choice in choices if choice.get("index", 0) in range(self.n)]
        first = parsing.first_of_each(requested, self.n)
        checked = [self._checked_part(name, parsing.sound(name, choice)) for choice in first]
        return {**piece, "choices": checked}

    def event_template(self, data: str, piece: Mapping[str, Any]) -> EventTemplate | None:
        """See :class:`app.wire.format.ApiFormat`."""
        if len(piece["choices"]) != 1:
            return None
        choice = piece["choices"][0]
        text = self._text_of(choice)
        if not isinstance(text, str):
            return None

        def with_text(other: str) -> dict[str, Any]:
            return {**piece, "choices": [self._with_text(choice, other)]}

        return EventTemplate.of(
            data,
            self.text_key,
            text,
            with_text,
            choice=choice.get("index", 0),
            other_chars=self.chars(with_text("")),
        )

    @abstractmethod
    def choices(self, body: Mapping[str, Any]) -> Sequence[Choice]:
        """See :class:`app.wire.format.ApiFormat`."""

    @abstractmethod
    def _checked(self, name: str, choice: dict[str, Any]) -> dict[str, Any]:
        """The choice, as clients can read it; it may have no text."""

    @abstractmethod
    def _checked_part(self, name: str, choice: dict[str, Any]) -> dict[str, Any]:
        """A choice of a chunk, as clients can read it; it may be empty."""

    @abstractmethod
    def _text_of(self, choice: Mapping[str, Any]) -> object:
        """The value of ``text_key`` in a checked choice of a chunk."""

    @abstractmethod
    def _with_text(self, choice: Mapping[str, Any], text: str) -> dict[str, Any]:
        """The choice with another text there."""

    @abstractmethod
    def _part(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The choice of a whole answer as one of a chunk."""

    @abstractmethod
    def _last_part(self) -> dict[str, Any]:
        """The content of the chunk that finishes a choice: none."""

    @abstractmethod
    def _kind_of(self, choice: Mapping[str, Any]) -> AnswerKind:
        """How much of an answer a checked choice of a chunk has, whatever its finish reason."""

    @abstractmethod
    def _joined(self, text: str | None) -> dict[str, Any]:
        """The choice of a whole answer with this text."""

    def pieces(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A whole answer as chunks: the content, the finish, and the usage where it has one.

        Each field of the answer is in one of them, the common head in all.
        """
        head = {name: body[name] for name in body if name in self.head_names}
        head["object"] = self.kinds[1]
        others = {
            name: body[name] for name in body if name not in (*self.head_names, "choices", "usage")
        }
        content = [
            {
                **{
                    name: value for name, value in self._part(choice).items() if name not in _FINISH
                },
                "index": index,
                "finish_reason": None,
            }
            for index, choice in enumerate(body["choices"])
        ]
        finish = [
            {
                "index": index,
                **self._last_part(),
                **{name: choice[name] for name in _FINISH if name in choice},
            }
            for index, choice in enumerate(body["choices"])
        ]
        chunks = [{**head, **others, "choices": content}, {**head, "choices": finish}]
        if isinstance(body.get("usage"), dict):
            chunks.append({**head, "choices": [], "usage": body["usage"]})
        return chunks

    def kind(self, piece: Mapping[str, Any]) -> AnswerKind:
        """See :class:`app.wire.format.ApiFormat`."""
        return max(map(self._kind_of, piece["choices"]), default=AnswerKind.NOTHING)

    def texts(self, piece: Mapping[str, Any]) -> Mapping[Hashable, str]:
        """See :class:`app.wire.format.ApiFormat`."""
        return {
            choice.get("index", 0): text
            for choice in piece["choices"]
            for text in (self._text_of(choice),)
            if isinstance(text, str) and text
        }

    def joined(self, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        texts: dict[int, str | None] = {}
        finishes: dict[int, str | None] = {}
        body: dict[str, Any] = {}
        for piece in pieces:
            body = {**piece, **body} | ({"usage": piece["usage"]} if piece.get("usage") else {})
            for choice in piece["choices"]:
                index, text = choice.get("index", 0), self._text_of(choice)
                before = texts.setdefault(index, None)
                if isinstance(text, str):
                    texts[index] = (before or "") + text
                finishes[index] = choice.get("finish_reason") or finishes.get(index)
        choices = [
            {"index": index, **self._joined(texts[index]), "finish_reason": finishes[index]}
            for index in sorted(texts)
        ]
        return {**body, "object": self.kinds[0], "choices": choices}

    def ends(self, piece: Mapping[str, Any]) -> Mapping[int, bool]:
        """See :class:`app.wire.format.ApiFormat`."""
        ended: dict[Any, bool] = {}
        for position, choice in enumerate(piece["choices"]):
            index = choice.get("index", 0)
            # Only a whole answer that is sent as chunks can have an index that is no number.
            ended[index if isinstance(index, int | float) else position] = bool(
                choice.get("finish_reason")
            )
        return ended

    def chars(self, piece: Mapping[str, Any]) -> int:
        """See :class:`app.wire.format.ApiFormat`."""
        return sum(
            parsing.text_length(choice.get("delta", choice.get("text")))
            for choice in piece["choices"]
        )

    def usage(self, body: Mapping[str, Any]) -> dict[str, int]:
        """See :class:`app.wire.format.ApiFormat`."""
        return parsing.counts(body.get("usage"), parsing.CHAT_USAGE)

    def without_usage(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        return parsing.without_usage(body)

    def streamed(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        given = cast("dict[str, Any]", payload.get("stream_options") or {})
        options = {**given, "include_usage": True}
        return {**payload, "stream": True, "stream_options": options}

    def is_wanted(self, piece: Mapping[str, Any]) -> bool:
        """See :class:`app.wire.format.ApiFormat`."""
        return self.include_usage or bool(piece["choices"]) or not piece.get("usage")

    def stamped(
        self,
        body: Mapping[str, Any],
        *,
        decision_id: str,
        model: str,
        usage: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        counted = parsing.with_usage(body.get("usage"), usage)
        return {**body, "id": decision_id, "model": model} | ({"usage": counted} if counted else {})

    def named(self, piece: Mapping[str, Any], model: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        return {**piece, "model": model}

    def event(self, piece: Mapping[str, Any]) -> bytes:
        """See :class:`app.wire.format.ApiFormat`."""
        return sse.event(piece)

    def live(self, *, decision_id: str, model: str) -> StreamWriter:
        """See :class:`app.wire.format.ApiFormat`."""
        return LiveChunks(
            {"id": decision_id, "model": model}, self.ends, include_usage=self.include_usage
        )

    def renamed(self, model: str) -> NamedWriter:
        """See :class:`app.wire.format.ApiFormat`."""
        return RenamedEvents(
            lambda piece: self.event(self.named(piece, model)),
            is_wanted=self.is_wanted,
            end=sse.DONE,
        )

    def whole_stream(self, body: Mapping[str, Any], racer: Mapping[str, Any]) -> list[bytes]:
        """See :class:`app.wire.format.ApiFormat`."""
        return last_with_racer(
            [piece for piece in self.pieces(body) if piece["choices"]],
            racer,
            body.get("usage") if self.include_usage else None,
        )

    def answer_text(self, body: Mapping[str, Any]) -> str:
        """See :class:`app.wire.format.ApiFormat`."""
        return self.choices(body)[0].text or ""

    def waiting(self, text: str) -> bytes:
        """See :class:`app.wire.format.ApiFormat`."""
        return sse.comment(text)

    def error_event(self, status: int, error: Mapping[str, Any]) -> bytes:
        """The error event of a stream: our error envelope."""
        return sse.event(error)


class LiveChunks:
    """Chunks with our id and the candidate's name; the last one carries the ``racer`` object.

    The finishing chunk waits for the token counts that servers send after it.
    """

    def __init__(
        self,
        stamp: Mapping[str, Any],
        ends: Callable[[Mapping[str, Any]], Mapping[int, bool]],
        *,
        include_usage: bool,
    ) -> None:
        self._stamp = stamp
        self._ends = ends
        self._include_usage = include_usage
        self._usage: dict[str, Any] | None = None
        self._finished = False
        self._last: dict[str, Any] | None = None  # held back, once a choice has finished
        self._spliced = SplicedEvents(lambda piece: sse.event(self._stamped(piece)))

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as the candidate counted them so far."""
        return parsing.counts(self._usage, parsing.CHAT_USAGE)

    def feed(self, piece: Piece) -> list[bytes]:
        """Events that can go out now."""
        if isinstance(piece, TextEvent):
            if not self._finished:
                return [self._spliced.event(piece)]
            piece = piece.parsed()
        chunk, usage = self._stamped(piece), piece.get("usage")
        if isinstance(usage, dict):
            self._usage = cast("dict[str, Any]", usage)
        if not chunk["choices"]:
            return []  # the usage chunk: ours comes last, and only on demand
        self._finished = self._finished or any(self._ends(chunk).values())
        if not self._finished:
            return [sse.event(chunk)]
        before, self._last = self._last, chunk
        return [] if before is None else [sse.event(before)]

    def close(
        self, racer: Mapping[str, Any], usage: Mapping[str, int] | None = None
    ) -> list[bytes]:
        """See :class:`app.wire.format.StreamWriter`."""
        assert self._last is not None  # an unfinished stream is an error before this
        counted = parsing.with_usage(self._usage, usage)
        return last_with_racer([self._last], racer, counted if self._include_usage else None)

    def _stamped(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        chunk = {**piece, **self._stamp}
        chunk.pop("usage", None)
        return chunk


def last_with_racer(
    pieces: Sequence[dict[str, Any]], racer: Mapping[str, Any], usage: object | None
) -> list[bytes]:
    """Chunks to the end of a stream; a usage chunk follows where one is given."""
    *first, last = pieces
    if usage is not None:
        first, last = [*first, last], {**last, "choices": list[Any](), "usage": usage}
    return [*map(sse.event, first), sse.event({**last, "racer": racer}), sse.DONE]
