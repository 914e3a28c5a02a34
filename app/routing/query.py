"""Query extraction: the text that the router reads, and what the request needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from app.json_output import dump_json
from app.routing.conditions import Conditions
from racer_core.aggregation.rule import answer_format
from racer_core.records.request import GATEWAY_FIELDS, RequestTurn, conversation_of

if TYPE_CHECKING:  # the row reader process starts without pydantic, which takes half a second
    from app.routing.applications import Membership
    from app.settings import Candidate, Settings

Need = Literal["tools", "vision", "json_schema"]

MAX_ROW_BYTES: Final = 2**20
# Bytes of a request as JSON, so that it fits into a row beside labels and digests.
MAX_DRAWN_BYTES: Final = MAX_ROW_BYTES - 2**17
_UNMEASURED: Final = GATEWAY_FIELDS | {"store"}

_GUIDED = ("guided_", "structured_outputs")  # vLLM's own spellings of structured outputs
# A tuple, not a set: a client's `type` may be a list, which has no hash.
NO_CANDIDATE: Final = (
    "no candidate can serve its request, by their `capabilities`: leave it out, or add a candidate"
)
_IMAGES = ("image_url", "input_image", "image", "video_url")


class Supports(Protocol):
    """What a candidate supports: one boolean for each :data:`Need`, and its longest request."""

    @property
    def context_chars(self) -> int | None:
        """Longest request in characters, over all texts; None: no limit."""
        ...


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class Query:
    """The text that the router reads, and the properties of the request that matter for routing."""

    text: str
    conditions: Conditions  # what candidates are sent beside the query
    text_chars: int = 0  # of the whole text, of which `text` may be the beginning
    later: bool = False  # a turn after the first of a conversation
    answers: int = 0  # to which other turns were sent before it
    needs: frozenset[Need] = frozenset()  # capabilities that a candidate must have
    chars: int = 0  # of all texts for the candidates
    is_too_large: bool = False  # for a row of its application, whose rows are drawn
    is_thinned: bool = False  # its application leaves passages out, which others may not share

    @property
    def is_cut(self) -> bool:
        """Whether the router reads only the beginning of its text."""
        return self.text_chars > len(self.text)

    def able(self, candidates: Iterable[Candidate]) -> tuple[str, ...]:
        """The candidates with the capabilities that the request needs."""
        return tuple(each.name for each in candidates if self.suits(each.capabilities))

    def suits(self, able: Supports) -> bool:
        """Whether a candidate with these capabilities can serve the request."""
        longest = able.context_chars
        if longest is not None and self.chars > longest:
            return False
        return not self.needs or all(getattr(able, need) for need in self.needs)


def of_body(
    fields: Mapping[str, Any],
    path: str,
    conditions: Conditions,
    settings: Settings,
    application: Membership | None,
) -> Query:
    """The query of a request.

    Rows that are whole requests are read by the same functions.

    Args:
        fields: The fields that candidates are sent.
        path: The endpoint of candidates to which it goes.
        conditions: What candidates are sent, but for the query.
        settings: Which text is routed on, and the limit on it.
        application: That of the request; None: none is configured.

    Raises:
        InputError: No turn to route on, or one without text.
    """
    conversation = conversation_of(fields, path)
    read, left_out = settings.routing.text, ()
    if application is not None:
        read, left_out = application.terms.text or read, application.terms.leave_out
    text = conversation.text(read, left_out)
    return Query(
        text=text[: settings.limits.query_chars],
        conditions=conditions,
        text_chars=len(text),
        later=conversation.is_later,
        answers=conversation.answers,
        needs=_needs(conversation.turns, fields),
        chars=_chars(conversation.turns),
        is_too_large=(
            application is not None
            and application.terms.premise == "drawn"
            and is_too_large_to_draw(fields)
        ),
        is_thinned=left_out != (),
    )


def needs_of_body(fields: Mapping[str, Any], path: str, conditions: Conditions) -> Query:
    """The query of a labelled row, without its text: what a candidate must be able to serve."""
    turns = conversation_of(fields, path).turns
    return Query(text="", conditions=conditions, needs=_needs(turns, fields), chars=_chars(turns))


def _chars(turns: Sequence[RequestTurn]) -> int:
    return sum(len(turn.text) for turn in turns)


def is_too_large_to_draw(fields: Mapping[str, Any]) -> bool:
    """Whether no row can hold a request, so that rows drawn at random do not stand for it.

    Args:
        fields: The body, or its fields that candidates are sent.
    """
    sent = {name: value for name, value in fields.items() if name not in _UNMEASURED}
    return len(dump_json(sent)) > MAX_DRAWN_BYTES


def _needs(turns: Sequence[RequestTurn], fields: Mapping[str, Any]) -> frozenset[Need]:
    needs: set[Need] = set()
    if fields.get("tools") or fields.get("functions"):
        needs.add("tools")
    if any(part.get("type") in _IMAGES for turn in turns for part in turn.parts):
        needs.add("vision")
    is_guided = any(fields.get(name) and name.startswith(_GUIDED) for name in fields)
    if is_guided or answer_format(fields) == "json_schema":
        needs.add("json_schema")
    return frozenset(needs)
