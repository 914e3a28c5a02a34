"""What the request path needs to know of a way of asking.

A *body* is a whole answer, a *piece* one event of a stream, both as the candidate sent them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from app.wire.event_template import EventTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a candidate's answer."""

    text: str | None = None  # None: no text at all, a tool call, say
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    refused: bool = False  # the candidate declined to answer
    cut: bool = False  # the answer ended at the token limit


class StreamWriter(Protocol):
    """Rewrites one candidate's stream while it passes through."""

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as the candidate counted them so far."""
        ...

    def feed(self, piece: Mapping[str, Any]) -> list[bytes]:
        """Events that can go out now; the finishing piece is held back."""
        ...

    def close(self, racer: Mapping[str, Any]) -> list[bytes]:
        """The last events; the ``racer`` object rides on the last of them."""
        ...


class ApiFormat(Protocol):
    """One way of asking, with what this request asks of it."""

    path: ClassVar[str]  # below a base URL, such as ``chat/completions``
    id_prefix: ClassVar[str]  # how the ids of its answers begin
    end: ClassVar[bytes]  # what ends a stream, after its last event

    @property
    def n(self) -> int:
        """How many choices were asked for."""
        ...

    def body(self, name: str, data: bytes) -> dict[str, Any]:
        """Parse a whole answer of candidate ``name``. Raises UpstreamError unless it is one."""
        ...

    def piece(self, name: str, data: str) -> dict[str, Any]:
        """Parse one event of its stream. Raises UpstreamError, also when the event is an error."""
        ...

    def event_template(self, data: str, piece: Mapping[str, Any]) -> EventTemplate | None:
        """What events that say as little as this one look like; None where that is not known."""
        ...

    def ends(self, piece: Mapping[str, Any]) -> Mapping[int, bool]:
        """The choices that this piece is about, and whether each is whole with it."""
        ...

    def chars(self, piece: Mapping[str, Any]) -> int:
        """How many characters the candidate wrote with this piece."""
        ...

    def pieces(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A whole answer as the pieces of a stream."""
        ...

    def choices(self, body: Mapping[str, Any]) -> Sequence[Choice]:
        """What was said, at least one choice."""
        ...

    def usage(self, body: Mapping[str, Any]) -> dict[str, int]:
        """Counts of tokens by their chat names (prompt, completion, total); empty if not given.

        Takes a body or a piece.
        """
        ...

    def streamed(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The payload that asks for the same as a stream, with its usage at the end."""
        ...

    def is_wanted(self, piece: Mapping[str, Any]) -> bool:
        """Whether the client asked for this piece; the usage at the end is for us."""
        ...

    def stamped(
        self,
        body: Mapping[str, Any],
        *,
        decision_id: str,
        model: str,
        usage: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """The answer as it goes to the client: our id, the candidate's name, the usage given."""
        ...

    def named(self, piece: Mapping[str, Any], model: str) -> dict[str, Any]:
        """A body or piece under the candidate's own name."""
        ...

    def refusal(self, decision_id: str, sentence: str) -> dict[str, Any]:
        """An answer in which nobody was called."""
        ...

    def event(self, piece: Mapping[str, Any]) -> bytes:
        """A piece as it goes out."""
        ...

    def live(self, *, decision_id: str, model: str) -> StreamWriter:
        """A writer for a stream that passes through."""
        ...

    def whole_stream(self, body: Mapping[str, Any], racer: Mapping[str, Any]) -> list[bytes]:
        """A finished, stamped answer as events, to the end of the stream."""
        ...

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """The event with which a stream ends that cannot go on: our envelope."""
        ...
