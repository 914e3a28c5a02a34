"""The API format of ``/v1/messages``: candidates are called by chat, clients read messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

from app.json_output import dump_json
from app.wire import parsing, sse
from app.wire.chat import Chat
from app.wire.event_template import Piece, SplicedEvents, TextEvent
from app.wire.format import NamedWriter, StreamWriter
from app.wire.messages import answer, errors
from app.wire.messages.answer import SIGNATURE, Ending


@dataclass(frozen=True, slots=True)
class Messages(Chat):
    """Messages; see :class:`app.wire.format.ApiFormat`.

    Attributes:
        request_id: Of the request, for errors within a stream.
        stop_sequences: Those of the request.
        shows_thinking: Whether the answer shows a candidate's reasoning.
    """

    request_id: str | None = field(default=None, repr=False)  # of no effect on an answer
    stop_sequences: Sequence[str] = ()
    shows_thinking: bool = False
    id_prefix: ClassVar[str] = "msg_"

    def _checked(self, name: str, choice: dict[str, Any]) -> dict[str, Any]:
        checked = Chat._checked(self, name, choice)
        answer.check_calls(name, checked)
        return checked

    def stamped(
        self,
        body: Mapping[str, Any],
        *,
        decision_id: str,
        model: str,
        usage: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        return self._message(body, decision_id, model, usage)

    def named(self, piece: Mapping[str, Any], model: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`; the piece is a body."""
        given: object = piece.get("id")
        return self._message(piece, given if isinstance(given, str) else "", model, None)

    def answer_text(self, body: Mapping[str, Any]) -> str:
        """See :class:`app.wire.format.ApiFormat`."""
        return "".join(block.get("text", "") for block in body["content"])

    def live(self, *, decision_id: str, model: str) -> StreamWriter:
        """See :class:`app.wire.format.ApiFormat`."""
        return self._events(decision_id, model)

    def renamed(self, model: str) -> NamedWriter:
        """See :class:`app.wire.format.ApiFormat`."""
        return self._events(None, model)

    def whole_stream(self, body: Mapping[str, Any], racer: Mapping[str, Any]) -> list[bytes]:
        """See :class:`app.wire.format.ApiFormat`."""
        return message_events(body, racer)

    def waiting(self, text: str) -> bytes:
        """See :class:`app.wire.format.ApiFormat`: an event that clients ignore."""
        return PING

    def error_event(self, status: int, error: Mapping[str, Any]) -> bytes:
        """See :class:`app.wire.format.ApiFormat`."""
        return sse.named_event(errors.envelope(status, error, self.request_id))

    def _message(
        self,
        body: Mapping[str, Any],
        message_id: str,
        model: str,
        usage: Mapping[str, int] | None,
    ) -> dict[str, Any]:
        choice = body["choices"][0]
        message = choice["message"]
        ending = Ending(
            finish_reason=choice.get("finish_reason"),
            stop_reason=choice.get("stop_reason"),
            has_calls=bool(answer.calls(message)),
            is_refused=bool(message.get("refusal")),
        )
        return {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": answer.content(message, message_id, shows_thinking=self.shows_thinking),
            **ending.stop(self.stop_sequences),
            "usage": answer.usage(parsing.with_usage(body.get("usage"), usage)),
        }

    def _events(self, message_id: str | None, model: str) -> MessageEvents:
        return MessageEvents(
            model=model,
            message_id=message_id,
            shows_thinking=self.shows_thinking,
            stop_sequences=self.stop_sequences,
        )


# Event streams of the Messages API: of a whole message, or of a chat stream as it passes.

Fields = Mapping[str, Any]

PING: Final = sse.named_event({"type": "ping"})
# Type of a block -> its empty form, the type of its deltas, and the member that holds their text.
_BLOCKS: Final[Mapping[str, tuple[Fields, str, str]]] = {
    "text": ({"type": "text", "text": ""}, "text_delta", "text"),
    "thinking": (
        {"type": "thinking", "thinking": "", "signature": ""},
        "thinking_delta",
        "thinking",
    ),
    "tool_use": ({"type": "tool_use", "input": {}}, "input_json_delta", "partial_json"),
}


def message_events(message: Fields, racer: Fields) -> list[bytes]:
    """A finished message as events, to the end of the stream."""
    begun = dict(message, content=list[Any](), stop_reason=None, stop_sequence=None)
    blocks = [
        event
        for index, block in enumerate(message["content"])
        for event in _block_events(index, block)
    ]
    stop = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    return [_start(begun), *blocks, *_ending(stop, message["usage"], {"racer": racer})]


class MessageEvents:
    """Writes one candidate's chat stream as the events of a message.

    Args:
        model: The candidate's name.
        message_id: Id of the message; None: that of the chat stream.
        shows_thinking: Whether its reasoning is shown; where it is not, pings stand for it.
        stop_sequences: Those of the request.
    """

    def __init__(
        self,
        *,
        model: str,
        message_id: str | None,
        shows_thinking: bool,
        stop_sequences: Sequence[str],
    ) -> None:
        self._model = model
        self._id = message_id
        self._has_begun = False
        self._shows_thinking = shows_thinking
        self._stop_sequences = stop_sequences
        self._index = -1  # of the last block
        self._open = ""  # its type; empty once it has ended
        self._spliced = SplicedEvents(self._text_event)
        self._calls: list[object] = []  # the chat API's indexes of the calls, in order
        self._usage: object = None
        self._finish: Fields = {}  # the choice that finished
        self._is_refused = False

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as the candidate counted them so far, by their chat names."""
        return parsing.counts(self._usage, parsing.CHAT_USAGE)

    def feed(self, piece: Piece) -> list[bytes]:
        """See :class:`app.wire.format.EventWriter`. Raises UpstreamError."""
        if isinstance(piece, TextEvent):
            if self._open == "text" and piece.text and not piece.template.other_chars:
                return [self._spliced.event(piece)]
            piece = piece.parsed()
        events = list[bytes]()
        if not self._has_begun:
            events.append(self._begin(piece))
        if isinstance(piece.get("usage"), dict):
            self._usage = piece["usage"]
        for choice in piece["choices"]:
            events += self._delta_events(choice["delta"])
            if choice.get("finish_reason"):
                self._finish = choice
        return events

    def close(self, racer: Fields, usage: Mapping[str, int] | None = None) -> list[bytes]:
        """See :class:`app.wire.format.StreamWriter`."""
        return self._ending({"racer": racer}, usage)

    def end(self) -> bytes:
        """See :class:`app.wire.format.NamedWriter`."""
        return b"".join(self._ending({}, None))

    def _begin(self, piece: Fields) -> bytes:
        self._has_begun = True
        given: object = piece.get("id") if self._id is None else self._id
        self._id = given if isinstance(given, str) else ""
        return _start(
            {
                "id": self._id,
                "type": "message",
                "role": "assistant",
                "model": self._model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": answer.usage(None),  # candidates count at the end
            }
        )

    def _delta_events(self, delta: Fields) -> Iterator[bytes]:
        if reasoning := answer.reasoning(delta):
            if self._shows_thinking:
                yield from self._add("thinking", reasoning)
            else:
                yield PING
        if text := answer.text(delta):
            yield from self._add("text", text)
        self._is_refused = self._is_refused or bool(delta.get("refusal"))
        for place, call in enumerate(answer.calls(delta)):
            yield from self._call_events(call, place)

    def _call_events(self, call: Fields, place: int) -> Iterator[bytes]:
        """The events of a part of a call; the first part has its name."""
        function = parsing.as_object(self._model, call.get("function") or {})
        index: object = call.get("index", place)
        if index not in self._calls:
            if not isinstance(function.get("name"), str):
                raise parsing.invalid(self._model)
            call_id = answer.call_id(call, str(self._id), len(self._calls))
            self._calls.append(index)
            yield from self._start_block("tool_use", {"id": call_id, "name": function["name"]})
        elif index != self._calls[-1] or self._open != "tool_use":
            raise parsing.invalid(self._model)  # a block that has ended takes no further part
        arguments = function.get("arguments")
        if arguments and isinstance(arguments, str):
            yield _delta(self._index, "tool_use", arguments)

    def _add(self, kind: str, text: str) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._start_block(kind, {})
        yield _delta(self._index, kind, text)

    def _start_block(self, kind: str, members: Fields) -> Iterator[bytes]:
        yield from self._end_block()
        self._index += 1
        self._open = kind
        self._spliced = SplicedEvents(self._text_event)  # events have the block's index
        yield _block_start(self._index, {**_BLOCKS[kind][0], **members})

    def _end_block(self) -> Iterator[bytes]:
        if self._open:
            yield from _block_end(self._index, self._open)
            self._open = ""

    def _text_event(self, chunk: Fields) -> bytes:
        """The event of a chunk that has a text and nothing else."""
        return _delta(self._index, "text", answer.text(chunk["choices"][0]["delta"]))

    def _ending(self, members: Fields, usage: Mapping[str, int] | None) -> list[bytes]:
        finish_reason = self._finish.get("finish_reason")
        ending = Ending(
            finish_reason=finish_reason if isinstance(finish_reason, str) else None,
            stop_reason=self._finish.get("stop_reason"),
            has_calls=bool(self._calls),
            is_refused=self._is_refused,
        )
        counted = answer.usage(parsing.with_usage(self._usage, usage))
        stop = ending.stop(self._stop_sequences)
        return [*self._end_block(), *_ending(stop, counted, members)]


def _block_events(index: int, block: Fields) -> Iterator[bytes]:
    """A whole block: its content is one delta."""
    kind = cast("str", block["type"])
    empty, _, _ = _BLOCKS[kind]
    yield _block_start(index, {**block, **empty})
    whole = dump_json(block["input"]).decode() if kind == "tool_use" else block[kind]
    yield _delta(index, kind, whole)
    yield from _block_end(index, kind)


def _start(message: Fields) -> bytes:
    return sse.named_event({"type": "message_start", "message": message})


def _block_start(index: int, block: Fields) -> bytes:
    event = {"type": "content_block_start", "index": index, "content_block": block}
    return sse.named_event(event)


def _delta(index: int, kind: str, text: str) -> bytes:
    _, delta, member = _BLOCKS[kind]
    return sse.named_event(
        {"type": "content_block_delta", "index": index, "delta": {"type": delta, member: text}}
    )


def _block_end(index: int, kind: str) -> Iterator[bytes]:
    if kind == "thinking":
        delta = {"type": "signature_delta", "signature": SIGNATURE}
        event = {"type": "content_block_delta", "index": index, "delta": delta}
        yield sse.named_event(event)
    yield sse.named_event({"type": "content_block_stop", "index": index})


def _ending(stop: Fields, usage: Fields, members: Fields) -> list[bytes]:
    delta = {"type": "message_delta", "delta": stop, "usage": usage, **members}
    return [sse.named_event(delta), sse.named_event({"type": "message_stop"})]
