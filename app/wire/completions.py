"""The text completions API, ``/v1/completions``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from app.wire import parsing
from app.wire.chunked import ChunkedFormat
from app.wire.format import Choice


@dataclass(frozen=True, slots=True)
class Completions(ChunkedFormat):
    """Text completions."""

    path: ClassVar[str] = "completions"
    id_prefix: ClassVar[str] = "cmpl-"
    text_key: ClassVar[str] = "text"

    def _checked(self, name: str, choice: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(choice.get("text"), str):
            raise parsing.invalid(name)
        return choice

    def _checked_part(self, name: str, choice: dict[str, Any]) -> dict[str, Any]:
        return self._checked(name, choice)

    def _text_of(self, choice: Mapping[str, Any]) -> object:
        return choice["text"]

    def _with_text(self, choice: Mapping[str, Any], text: str) -> dict[str, Any]:
        return {**choice, self.text_key: text}

    def pieces(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The texts, then the finish."""
        head_names = ("id", "object", "created", "model", "system_fingerprint")
        head = {name: body[name] for name in head_names if name in body}
        content = [{**choice, "finish_reason": None} for choice in body["choices"]]
        finish: list[dict[str, Any]] = [
            {"index": i, "text": "", "logprobs": None}
            | {"finish_reason": choice.get("finish_reason") or "stop"}
            for i, choice in enumerate(body["choices"])
        ]
        return self._with_usage(body, {**head, "choices": content}, {**head, "choices": finish})

    def choices(self, body: Mapping[str, Any]) -> Sequence[Choice]:
        """See :class:`app.wire.format.ApiFormat`."""
        return [
            Choice(text=choice["text"], cut=choice.get("finish_reason") == "length")
            for choice in body["choices"]
        ]

    def refusal(self, decision_id: str, sentence: str) -> dict[str, Any]:
        """See :class:`app.wire.format.ApiFormat`."""
        return {
            "id": decision_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": "auto",
            "choices": [{"index": 0, "text": sentence, "finish_reason": "stop", "logprobs": None}],
            "usage": dict.fromkeys(parsing.CHAT_USAGE, 0),
        }
