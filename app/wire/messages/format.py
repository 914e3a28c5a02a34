"""The API format of ``/v1/messages``: candidates are called by chat, clients read messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from app.wire import parsing, sse
from app.wire.chat import Chat
from app.wire.format import NamedWriter, StreamWriter
from app.wire.messages import answer, errors
from app.wire.messages.answer import Ending
from app.wire.messages.events import PING, MessageEvents, message_events


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
