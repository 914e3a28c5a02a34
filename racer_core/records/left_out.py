"""Passages that are left out of the text that a router reads: what an agent wraps around words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Passage(Protocol):
    """Two markers; what they enclose is left out with them."""

    @property
    def begin(self) -> str:
        """Text with which the passage begins; not empty."""
        ...

    @property
    def end(self) -> str:
        """Text with which it ends; empty: it ends with the turn."""
        ...


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A :class:`Passage` of plain values, for another process."""

    begin: str
    end: str = ""


def outside(text: str, passages: Iterable[Passage]) -> str:
    """The text outside of these passages, each piece of it in lines of its own.

    A passage ends at the first end marker after its beginning. A beginning without an end encloses
    nothing: it may be quoted. The time is linear in the text for each passage.

    Args:
        text: The text of one turn.
        passages: What is left out, in this order.
    """
    for each in passages:
        text = "\n".join(piece for piece in _pieces(text, each) if piece)
    return text


def _pieces(text: str, passage: Passage) -> Iterable[str]:
    place = 0
    while (start := text.find(passage.begin, place)) >= 0:
        after = start + len(passage.begin)
        stop = text.find(passage.end, after) if passage.end else len(text)
        if stop < 0:
            break
        yield text[place:start].strip()
        place = stop + len(passage.end)
    yield text[place:].strip()
