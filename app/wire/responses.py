"""The Responses API, ``/v1/responses``, stateless: nothing is stored between requests."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from app.wire import parsing, sse
from app.wire.event_template import EventTemplate, Piece, parsed
from app.wire.format import AnswerKind, Choice, NamedWriter, RenamedEvents, StreamWriter

_USAGE: Final = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "total_tokens": "total_tokens",
}
_WHOLE: Final = ("response.completed", "response.incomplete")
_FAILED: Final = ("response.failed", "error")
# Reasons of responses that are not complete -> the chat API's finish reason.
_CUTS: Final[Mapping[object, str]] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
_NOTHING: Final = AnswerKind.NOTHING
# How the types of events begin that have a part of an answer and no text.
_EVENTS: Final = {
    "response.refusal.": AnswerKind.REFUSAL,
    "response.reasoning": AnswerKind.WITHHELD,
    "response.function_call_arguments.": AnswerKind.ANSWER,
}


@dataclass(frozen=True, slots=True)
class Responses:
    """The Responses API; see :class:`app.wire.format.ApiFormat`."""

    path: ClassVar[str] = "responses"
    id_prefix: ClassVar[str] = "resp_"

    @property
    def n(self) -> int:
        """One output."""
        return 1

    def body(self, name: str, data: bytes) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        return _checked(name, parsing.sent(name, data))

    def piece(self, name: str, data: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        piece = parsing.sent(name, data)
        kind = piece.get("type")
        if not isinstance(kind, str):
            raise parsing.invalid(name)
        if kind in _FAILED:
            raise parsing.failed(name)
        if kind in _WHOLE:
            _checked(name, parsing.as_object(name, piece.get("response")))
        return piece

    def event_template(self, data: str, piece: Mapping[str, Any]) -> EventTemplate | None:
        """None: every event has its own number."""
        return None

    def ends(self, piece: Mapping[str, Any]) -> Mapping[int, bool]:
        """See :class:`app.wire.format.ApiFormat`."""
        return {0: piece["type"] in _WHOLE}

    def chars(self, piece: Mapping[str, Any]) -> int:
        """See :class:`app.wire.format.ApiFormat`; a `done` event repeats its deltas."""
        return parsing.text_length(piece.get("delta"))

    def pieces(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every output item added, its text in one delta, done; then the whole response."""
        begun = {**body, "status": "in_progress", "output": list[Any](), "usage": None}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(body["output"]):
            events += _item_events(index, item)
        ended = "completed" if body.get("status") != "incomplete" else "incomplete"
        events.append({"type": f"response.{ended}", "response": dict(body)})
        return [{**piece, "sequence_number": i} for i, piece in enumerate(events)]

    def choices(self, body: Mapping[str, Any]) -> Sequence[Choice]:
        """All output together is one choice."""
        items: list[dict[str, Any]] = body["output"]
        parts = [part for item in items for part in _parts(item)]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        calls = [item for item in items if item.get("type") == "function_call"]
        return [
            Choice(
                text="".join(texts) if texts else None,
                tool_calls=tuple(
                    {"function": {"name": c.get("name"), "arguments": c.get("arguments")}}
                    for c in calls
                ),
                refused=any(part.get("type") == "refusal" for part in parts),
                finish_reason=_finish_reason(body, calls),
                has_other=any(_item_kind(item) is AnswerKind.ANSWER for item in items),
                is_withheld=_incomplete_reason(body) == "content_filter"
                or any(_item_kind(item) is AnswerKind.WITHHELD for item in items),
            )
        ]

    def kind(self, piece: Mapping[str, Any]) -> AnswerKind:
        """See :class:`app.wire.format.ApiFormat`."""
        event = str(piece["type"])
        if event in _WHOLE:  # reasoning came before, or nothing was sent of it
            kind = self.choices(piece["response"])[0].kind
            return _NOTHING if kind is AnswerKind.WITHHELD else kind
        if event.startswith("response.output_text."):
            text: object = piece.get("delta") or piece.get("text")
            return Choice(text=text if isinstance(text, str) else None).kind
        if event.startswith("response.output_item."):
            item: object = piece.get("item")
            return _item_kind(cast("dict[str, Any]", item)) if isinstance(item, dict) else _NOTHING
        return next((kind for begin, kind in _EVENTS.items() if event.startswith(begin)), _NOTHING)

    def texts(self, piece: Mapping[str, Any]) -> Mapping[Hashable, str]:
        """See :class:`app.wire.format.ApiFormat`; some events repeat the text of others."""
        event = str(piece["type"])
        if event in _WHOLE:
            choice = self.choices(piece["response"])[0]
            is_text = not choice.tool_calls and not choice.has_other
            return {event: choice.text} if choice.text and is_text else {}
        text: object = piece.get("delta") or piece.get("text")
        has_text = event.startswith("response.output_text.") and isinstance(text, str) and text
        return {event: str(text)} if has_text else {}

    def joined(self, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`; the last piece has it."""
        return next(dict(each["response"]) for each in pieces if each["type"] in _WHOLE)

    def usage(self, body: Mapping[str, Any]) -> dict[str, int]:
        """See :class:`app.wire.format.ApiFormat`."""
        response: object = body.get("response")  # of a piece
        whole = cast("dict[str, Any]", response) if isinstance(response, dict) else body
        return parsing.counts(whole.get("usage"), _USAGE)

    def without_usage(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        if "type" in body and isinstance(body.get("response"), dict):
            return {**body, "response": parsing.without_usage(body["response"])}
        return parsing.without_usage(body)

    def streamed(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        return {**payload, "stream": True}

    def is_wanted(self, piece: Mapping[str, Any]) -> bool:
        """See :class:`app.wire.format.ApiFormat`."""
        return True

    def stamped(
        self,
        body: Mapping[str, Any],
        *,
        decision_id: str,
        model: str,
        usage: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        ours = None if usage is None else {t: usage[o] for t, o in _USAGE.items() if o in usage}
        counted = parsing.with_usage(body.get("usage"), ours)
        return {**body, "id": decision_id, "model": model} | ({"usage": counted} if counted else {})

    def named(self, piece: Mapping[str, Any], model: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        if "type" not in piece:
            return {**piece, "model": model}
        if not isinstance(piece.get("response"), dict):
            return dict(piece)
        return {**piece, "response": {**piece["response"], "model": model}}

    def refusal(self, decision_id: str, sentence: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        content: list[dict[str, Any]] = [
            {"type": "output_text", "text": sentence, "annotations": []},
        ]
        message = {"type": "message", "id": f"msg_{decision_id}", "status": "completed"}
        return {
            "id": decision_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "completed",
            "model": "auto",
            "output": [{**message, "role": "assistant", "content": content}],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": dict.fromkeys(_USAGE, 0)
            | {
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def event(self, piece: Mapping[str, Any]) -> bytes:
        """A named event."""
        return sse.named_event(piece)

    def live(self, *, decision_id: str, model: str) -> StreamWriter:
        """See :class:`app.wire.format.ApiFormat`."""
        return _LiveEvents(self, decision_id, model)

    def renamed(self, model: str) -> NamedWriter:
        """See :class:`app.wire.format.ApiFormat`; the last event ends the stream."""
        return RenamedEvents(
            lambda piece: self.event(self.named(piece, model)), is_wanted=self.is_wanted, end=b""
        )

    def whole_stream(self, body: Mapping[str, Any], racer: Mapping[str, Any]) -> list[bytes]:
        """See :class:`app.wire.format.ApiFormat`."""
        *first, last = self.pieces(body)
        return [*map(self.event, first), self.event(_with_racer(last, racer))]

    def answer_text(self, body: Mapping[str, Any]) -> str:
        """See :class:`app.wire.format.ApiFormat`."""
        return self.choices(body)[0].text or ""

    def waiting(self, text: str) -> bytes:
        """See :class:`app.wire.format.ApiFormat`."""
        return sse.comment(text)

    def error_event(self, status: int, error: Mapping[str, Any]) -> bytes:
        """Our error envelope, which is also a valid error event of this API."""
        fields: dict[str, Any] = error["error"]
        own = {name: fields.get(name) for name in ("code", "message", "param")}
        return self.event({"type": "error", "sequence_number": 0, **own, **error})


class _LiveEvents:
    """Events with our id and the candidate's name; the last one waits for the ``racer`` object."""

    def __init__(self, api_format: Responses, decision_id: str, model: str) -> None:
        self._api_format = api_format
        self._decision_id = decision_id
        self._model = model
        self._last: dict[str, Any] | None = None

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as the candidate counted them, once it has."""
        return self._api_format.usage(self._last["response"]) if self._last else {}

    def feed(self, piece: Piece) -> list[bytes]:
        """Events that can go out now."""
        piece = parsed(piece)
        stamped = dict(piece)
        if isinstance(piece.get("response"), dict):
            stamped["response"] = self._stamped(piece["response"])
        if any(self._api_format.ends(piece).values()):
            self._last = stamped
            return []
        return [self._api_format.event(stamped)]

    def close(
        self, racer: Mapping[str, Any], usage: Mapping[str, int] | None = None
    ) -> list[bytes]:
        """See :class:`app.wire.format.StreamWriter`."""
        assert self._last is not None  # an unfinished stream is an error before this
        last = {**self._last, "response": self._stamped(self._last["response"], usage)}
        return [self._api_format.event(_with_racer(last, racer))]

    def _stamped(
        self, response: Mapping[str, Any], usage: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        return self._api_format.stamped(
            response, decision_id=self._decision_id, model=self._model, usage=usage
        )


def _with_racer(piece: Mapping[str, Any], racer: Mapping[str, Any]) -> dict[str, Any]:
    return {**piece, "response": {**piece["response"], "racer": racer}}


def _checked(name: str, body: dict[str, Any]) -> dict[str, Any]:
    if body.get("status") == "failed" or body.get("error"):
        raise parsing.failed(name)
    items = parsing.as_objects(name, body.get("output"))
    for item in items:
        if item.get("content") is not None:
            parsing.as_objects(name, item["content"])
    is_cut = body.get("status") == "incomplete" and _incomplete_reason(body) in _CUTS
    if body.get("status") != "completed" and not is_cut:
        raise parsing.unfinished(name)
    return body


def _finish_reason(body: Mapping[str, Any], calls: Sequence[object]) -> str:
    """The chat API's word for how a response ended."""
    if body.get("status") == "incomplete":
        return _CUTS[_incomplete_reason(body)]
    return "tool_calls" if calls else "stop"


def _incomplete_reason(body: Mapping[str, Any]) -> object:
    details: object = body.get("incomplete_details")
    return cast("dict[str, object]", details).get("reason") if isinstance(details, dict) else None


def _item_kind(item: Mapping[str, Any]) -> AnswerKind:
    """How much of an answer an output item has by its type alone; a message has its parts."""
    match item.get("type"):
        case "reasoning":
            return AnswerKind.WITHHELD
        case str(kind) if kind.endswith("_call") or kind == "mcp_approval_request":
            return AnswerKind.ANSWER
        case _:  # a type of tomorrow is no answer until it is known
            return _NOTHING


def _parts(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a message; other items have no text of the answer."""
    return list(item.get("content") or []) if item.get("type") == "message" else []


def _item_events(index: int, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    at = {"output_index": index, "item_id": item.get("id")}
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": index}
        | {"item": {**item, "status": "in_progress"} | ({"content": []} if _parts(item) else {})}
    ]
    for position, part in enumerate(_parts(item)):
        place = {**at, "content_index": position}
        text = cast("object", part.get("text"))
        is_text = part.get("type") == "output_text" and isinstance(text, str)
        blank = {**part, "text": ""} if is_text else part
        events.append({"type": "response.content_part.added", **place, "part": blank})
        if is_text:
            none = {"logprobs": list[object]()}
            events.append({"type": "response.output_text.delta", **place, "delta": text} | none)
            events.append({"type": "response.output_text.done", **place, "text": text} | none)
        events.append({"type": "response.content_part.done", **place, "part": part})
    if item.get("type") == "function_call":
        arguments = item.get("arguments")
        events.append(
            {"type": "response.function_call_arguments.done", **at, "arguments": arguments}
        )
    events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return events
