"""Five ordinary requests, as applications send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SYSTEM: Final = "Answer briefly."
# By what is unlike a plain question: the fields that are added to it.
ORDINARY: Final[Mapping[str, Mapping[str, Any]]] = {
    "a plain question": {},
    "temperature 0.7": {"temperature": 0.7},
    "max_tokens 100": {"max_tokens": 100},
    "a system prompt": {"before": [{"role": "system", "content": SYSTEM}]},
    "a second turn": {
        "before": [
            {"role": "user", "content": "What is 20 plus 22?"},
            {"role": "assistant", "content": "20 + 22 = 42"},
        ]
    },
}
# Those that a certificate covers after the quickstart. `racer doctor` prints what certifies all.
CERTIFIED: Final = ("a plain question",)


def request(name: str, question: str) -> dict[str, Any]:
    """The body of one of them."""
    fields = dict(ORDINARY[name])
    before = fields.pop("before", [])
    return {"model": "auto", "messages": [*before, {"role": "user", "content": question}], **fields}
