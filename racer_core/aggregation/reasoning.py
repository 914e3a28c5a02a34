"""Reasoning text in answers: a model's thoughts between two markers are no part of its answer.

Votes, grades, evaluators' prompts and recorded answers all read an answer through this module.
Servers that send the reasoning in a field of its own need no marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

Markers = Sequence[tuple[str, str]]  # pairs: opening, closing

MARKERS: Final[Markers] = (("<think>", "</think>"),)


class ReasoningFilter:
    """Removes the reasoning from answers.

    The text between an opening and its closing marker is reasoning; so is the rest of a text after
    an opening marker that is never closed: the token limit has cut it. Some chat templates write
    the opening marker into the prompt, so whatever precedes a closing marker without an opening
    one is reasoning, too.

    Args:
        markers: Pairs of an opening and a closing marker; none: nothing is reasoning.
    """

    def __init__(self, markers: Markers = MARKERS) -> None:
        self.closing_of = dict(markers)
        # The longest first, because one marker may begin like another.
        names = sorted({*self.closing_of, *self.closing_of.values()}, key=len, reverse=True)
        halves = {name[:size] for name in names for size in range(1, len(name))}
        # The first character of a marker; a marker; the beginning of one at the end of the text.
        self.first = re.compile(_any_of(sorted({name[:1] for name in names})))
        self.pattern = re.compile(_any_of(names))
        self.half = re.compile(_any_of(sorted(halves, key=len, reverse=True)) + r"\Z")
        self.longest_half = max(map(len, halves), default=0)

    def answer(self, text: str) -> str:
        """The answer in a text; the text itself where it has no marker. Linear in the text."""
        if self.pattern.search(text) is None:
            return text
        reader = AnswerReader(self)
        reader.feed(text)
        return reader.answer.strip()


class AnswerReader:
    """Reads an answer that arrives in pieces.

    Args:
        reasoning: The markers.
        keeps_text: False keeps no text, only whether there is an answer: for streams.
    """

    def __init__(self, reasoning: ReasoningFilter, *, keeps_text: bool = True) -> None:
        self._reasoning = reasoning
        self._keeps_text = keeps_text
        self._parts: list[str] = []
        self._closing: str | None = None  # the marker that ends the open reasoning
        self._rest = ""  # may begin a marker

    def feed(self, text: str) -> None:
        """Read the next piece."""
        if not self._rest and self._reasoning.first.search(text) is None:
            if self._closing is None:
                self._take(text)
            return
        text = self._rest + text
        begin = 0
        for found in self._reasoning.pattern.finditer(text):
            marker = found[0]
            if self._closing is None:
                self._take(text[begin : found.start()])
                self._closing = self._reasoning.closing_of.get(marker)
                if self._closing is None:  # closed without an opening
                    self._parts.clear()
            elif marker == self._closing:
                self._closing = None
            else:
                continue
            begin = found.end()
        half = self._reasoning.half.search(
            text, max(begin, len(text) - self._reasoning.longest_half)
        )
        end = half.start() if half else len(text)
        if self._closing is None:
            self._take(text[begin:end])
        self._rest = text[end:]

    def _take(self, part: str) -> None:
        if self._keeps_text or (not self._parts and part.strip()):
            self._parts.append(part)

    @property
    def has_answer(self) -> bool:
        """Whether the answer so far is more than white space."""
        return bool(self.answer.strip())

    @property
    def answer(self) -> str:
        """The answer so far."""
        return "".join(self._parts) + (self._rest if self._closing is None else "")


def _any_of(names: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, names))})" if names else r"(?!)"


REASONING: Final = ReasoningFilter()  # by the default markers
