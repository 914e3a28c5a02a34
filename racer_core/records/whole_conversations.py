"""Whole conversations: whether requests, or rows, are the consecutive turns of one.

A turn is a request: the texts so far, to which a model gives the next. The turn after it has the
same texts, the answer, and what followed the answer, such as the user's next words or the results
of tools. Texts are kept as digests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from racer_core.types import Turn

_BYTES: Final = 16
_ANSWER: Final = "assistant"


def beginnings(turns: Sequence[Turn], chars: int | None = None) -> list[bytes]:
    """A digest of each beginning of the texts, from none of them to all.

    Args:
        turns: The texts of a request without system prompts.
        chars: Characters of each that count; None: all.
    """
    found = [bytes(_BYTES)]
    for turn in turns:
        text = f"{turn.role}\0{turn.text[:chars]}".encode(errors="surrogatepass")
        found.append(blake2b(found[-1] + text, digest_size=_BYTES).digest())
    return found


def answer_places(turns: Sequence[Turn]) -> list[int]:
    """The places at which answers begin: there the turn before this one ended."""
    roles = [turn.role for turn in turns]
    return [
        place
        for place, role in enumerate(roles)
        if role == _ANSWER and roles[place - 1 : place] != [_ANSWER]
    ]


@dataclass(frozen=True, slots=True)
class TurnMark:
    """A turn of a served conversation, by which the next one is known.

    Attributes:
        count: Number of texts of its request.
        digest: That of them all.
    """

    count: int
    digest: bytes

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> TurnMark:
        """The mark of a request with these texts."""
        return cls(len(turns), beginnings(turns)[-1])

    def is_followed_by(self, turns: Sequence[Turn]) -> bool:
        """Whether a request with these texts is the next turn, or the same again."""
        if len(turns) < self.count or beginnings(turns[: self.count])[-1] != self.digest:
            return False
        places = [at for at in answer_places(turns) if at >= self.count]
        return len(turns) == self.count or (places == [self.count] and turns[-1].role != _ANSWER)


@dataclass(slots=True)
class _Seen:
    beginnings: list[bytes] = field(default_factory=list[bytes])  # of the longest turn
    turns: set[int] = field(default_factory=set[int])  # numbers of texts
    answered: set[int] = field(default_factory=set[int])  # the same of turns that were answered
    is_mixed: bool = False  # turns do not continue each other, or one is there twice


class WholeConversations:
    """The conversations of a file, whose rows come in any order.

    Args:
        chars: Characters of each text that count; None: all.
    """

    def __init__(self, chars: int | None = None) -> None:
        self._chars = chars
        self._seen = defaultdict[str, _Seen](_Seen)

    def add(self, name: str, turns: Sequence[Turn]) -> None:
        """A row of this conversation, with the texts of its request without system prompts."""
        seen, found = self._seen[name], beginnings(turns, self._chars)
        common = min(len(found), len(seen.beginnings))
        seen.is_mixed |= found[:common] != seen.beginnings[:common] or len(turns) in seen.turns
        seen.beginnings = max(found, seen.beginnings, key=len)
        seen.turns.add(len(turns))
        seen.answered.update(answer_places(turns))

    @property
    def problem(self) -> str | None:
        """What is wrong with the first conversation that is not whole; None: all are whole."""
        for name, seen in self._seen.items():
            if seen.is_mixed or 1 not in seen.turns or seen.answered - seen.turns:
                return (
                    f"conversation {name[:128]!r} lacks a turn, has one twice, or has turns that "
                    "do not continue each other: give all its turns from the first on, each a row "
                    'with all texts before it in "messages" or "request", or leave "conversation" '
                    "out of its rows"
                )
        return None
