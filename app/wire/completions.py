"""The text completions API, ``/v1/completions``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from app.wire import parsing
from app.wire.chunked import ChunkedFormat
from app.wire.format import AnswerKind, Choice


@dataclass(frozen=True, slots=True)
class Completions(ChunkedFormat):
    """Text completions."""

    path: ClassVar[str] = "completions"
    id_prefix: ClassVar[str] = "cmpl-"
    text_key: ClassVar[str] = "text"
    kinds: ClassVar[tuple[str, str]] = ("text_completion", "text_completion")
    head_names: ClassVar[frozenset[str]] = frozenset(
        {"id", "object", "created", "model", "system_fingerprint"}
    )

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

    def _part(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        return dict(choice)

    def _last_part(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def _kind_of(self, choice: Mapping[str, Any]) -> AnswerKind:
        return _choice(choice).kind

    def _joined(self, text: str | None) -> dict[str, Any]:
        return {"text": text or "", "logprobs": None}

    def choices(self, body: Mapping[str, Any]) -> Sequence[Choice]:
        """See :class:`app.wire.format.ApiFormat`."""
        return [_choice(choice, finish=choice.get("finish_reason")) for choice in body["choices"]]

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


def _choice(choice: Mapping[str, Any], finish: object = None) -> Choice:
    return Choice(
        text=choice["text"],
        finish_reason=finish if isinstance(finish, str) else None,
        is_withheld=finish == "content_filter",
    )
