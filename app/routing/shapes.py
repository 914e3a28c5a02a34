"""Shape of a request: what makes it unlike the rows, told without its content.

A shape has the names of the fields that a request sends beside its turns, and the values of those
that are numbers, switches or words of the API. What a client writes itself (a system prompt, tools,
a schema) is a digest. A person who has the text can compute the digest and compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, cast

from app.routing.conditions import Conditions
from racer_core.records.request import TURN_FIELDS

_ID_BYTES: Final = 4
_SYSTEM: Final = ("system", "developer", "instructions")  # ends of names of a system prompt
_MAX_FIELDS: Final = 16
# Values of the APIs' own vocabulary, which say nothing of what a client writes.
_WORDS: Final = frozenset(
    [
        "auto",
        "none",
        "required",
        "text",
        "json_object",
        "json_schema",
        "minimal",
        "low",
        "medium",
        "high",
        "xhigh",
        "enabled",
        "disabled",
        "concise",
        "detailed",
        "default",
    ]
)
_KEYS: Final = frozenset(["type", "effort", "budget_tokens", "summary", "verbosity", "format"])


@dataclass(frozen=True, slots=True)
class ShapeField:
    """A field of a shape.

    Attributes:
        name: Its name in the request; of turns the field and the role, as ``messages.system``.
        digest: Digest of its value.
        value: The value; None: the digest alone may be shown.
    """

    name: str
    digest: str
    value: object = None

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        shown = {"digest": self.digest} if self.value is None else {"value": self.value}
        return {"name": self.name, **shown}

    @property
    def is_system_prompt(self) -> bool:
        """Whether it is a system prompt, in any API."""
        return self.name.rpartition(".")[2] in _SYSTEM

    def __str__(self) -> str:
        if self.is_system_prompt:
            return "a system prompt"
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a request.

    Attributes:
        id: Equal for requests that the same rows certify.
        endpoint: The endpoint of candidates.
        later: It is a later turn of a conversation.
        fields: What it sends beside its turns, and turns that are no plain text.
        is_whole: Rows can be made that have it: no field was left out, and no turn but a system
            prompt has a form of its own.
    """

    id: str
    endpoint: str
    later: bool
    fields: tuple[ShapeField, ...]
    is_whole: bool

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        return {
            "shape": self.id,
            "endpoint": self.endpoint,
            "later_turn": self.later,
            "fields": [each.as_json() for each in self.fields],
            "reproducible": self.is_whole,
        }

    def __str__(self) -> str:
        parts = [*(["a later turn"] if self.later else []), *map(str, self.fields)]
        if self.endpoint != "chat/completions":
            parts.insert(0, self.endpoint)
        return ", ".join(parts) or "a plain question"


def shape_id(conditions: Conditions, endpoint: str, *, later: bool) -> str:
    """The id of the shape of requests under these conditions."""
    text = f"{endpoint} {later} {conditions.identity}"
    return blake2b(text.encode(), digest_size=_ID_BYTES).hexdigest()


def shape_of(
    conditions: Conditions,
    parts: tuple[Mapping[str, str], Mapping[str, str]],
    fields: Mapping[str, Any],
    endpoint: str,
    *,
    later: bool,
) -> Shape:
    """The shape of a request.

    Args:
        conditions: Its conditions.
        parts: Its turns that are no plain text, and its fields beside the turns, as
            :meth:`app.routing.conditions.ConditionReader.parts` gives them.
        fields: The fields of its body that candidates are sent.
        endpoint: The endpoint of candidates to which it goes.
        later: It is a later turn.
    """
    turns, beside = parts
    found = [
        *(ShapeField(name, _digest(text)) for name, text in turns.items()),
        *(
            ShapeField(name, _digest(text), shown_value(fields.get(name)))
            for name, text in beside.items()
        ),
    ]
    systems = {f"{TURN_FIELDS[endpoint]}.{role}" for role in ("system", "developer")}
    is_whole = len(found) <= _MAX_FIELDS and turns.keys() <= systems
    return Shape(
        id=shape_id(conditions, endpoint, later=later),
        endpoint=endpoint,
        later=later,
        fields=tuple(found[:_MAX_FIELDS]),
        is_whole=is_whole,
    )


def shown_value(value: object) -> object:
    """A value that holds nothing that a client wrote; None for any other."""
    match value:
        case bool() | int() | float():
            return value
        case str() if value in _WORDS:
            return value
        case dict() if value and value.keys() <= _KEYS:
            shown = {
                name: shown_value(each) for name, each in cast("dict[str, object]", value).items()
            }
            return None if None in shown.values() else shown
        case _:
            return None


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()
