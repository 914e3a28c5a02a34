"""Templates of events: the formats and texts that tests learn them from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.event_template import EventTemplate
from app.wire.format import ApiFormat

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


def chat(text: object, **fields: Any) -> dict[str, Any]:
    """A chunk as servers send it."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return {"id": "a", "object": "chat.completion.chunk", "choices": [choice]} | fields


def completion(text: object, **fields: Any) -> dict[str, Any]:
    """The like of a continued prompt."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    return {"id": "a", "object": "text_completion", "choices": [choice]} | fields


SHAPES = [(Chat(), chat), (Completions(), completion)]


def template_of(api_format: ApiFormat, data: str) -> EventTemplate | None:
    """What is learnt from one event."""
    return api_format.event_template(data, api_format.piece("adder", data))
