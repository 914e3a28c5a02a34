"""What an answer counts as in a vote: the form of each candidate's answer.

Most kinds are pure text (:mod:`racer_core.aggregation.answers`). ``math`` asks a library in a
process of its own, ``semantic`` the router's encoder. Tool calls always vote as canonical JSON.
Long answers are read on a thread, and those longer than ``VOTE_CHARS`` not at all.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.routing.query import answer_format
from app.wire.format import Choice
from racer_core.aggregation.answers import Equality, normalise, tool_call_form
from racer_core.aggregation.semantic import cluster

_SMALL_CHARS: Final = 64 * 2**10  # read in so little time that a thread would cost more
VOTE_CHARS: Final = 2**20  # of an answer: a thread holds the interpreter while it reads, too

# Options set out line by line, as multiple choice is: "A. ...", "(B) ...", at least A and B.
_OPTIONS: Final = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]", re.MULTILINE)

Embed = Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]]
MathForm = Callable[[str], Awaitable[str | None]]


def kind_of(setting: Equality, query: str, fields: Mapping[str, Any]) -> Equality:
    """What ``auto`` means for one request; any other setting is itself."""
    if setting is not Equality.AUTO:
        return setting
    if answer_format(fields) in ("json_schema", "json_object"):
        return Equality.JSON
    if {"A", "B"} <= set(_OPTIONS.findall(query)):
        return Equality.CHOICE
    return Equality.SEMANTIC


class AnswerReader:
    """Reads what a candidate's answer counts as.

    Args:
        embed: The router's encoder.
        math_form: The library that reads mathematics.
        similarity: The least within a class of ``semantic``.
        embed_chars: How much of an answer the encoder is given.
    """

    def __init__(
        self, embed: Embed, math_form: MathForm, *, similarity: float, embed_chars: int
    ) -> None:
        self._embed = embed
        self._math_form = math_form
        self._similarity = similarity
        self._embed_chars = embed_chars

    async def form(self, kind: Equality, choices: Sequence[Choice]) -> str | None:
        """The form of one candidate's answer: of its choices, the one that most of them have.

        Of ``semantic`` only tool calls have a form before all answers are there.
        """
        return _most_common([await self._form(kind, said) for said in choices])

    @staticmethod
    def form_at_once(kind: Equality, choices: Sequence[Choice]) -> str | None:
        """The same, of an answer that :meth:`waits` for nothing, and so calls no tool."""
        assert not any(said.tool_calls for said in choices)
        return _most_common([_text_form(kind, said) for said in choices])

    @staticmethod
    def waits(kind: Equality, choices: Sequence[Choice]) -> bool:
        """Whether it takes a thread or another process to read such an answer."""
        return kind is Equality.MATH or any(
            said.tool_calls or len(said.text or "") > _SMALL_CHARS for said in choices
        )

    async def semantic(
        self, texts: Mapping[str, str], scores: Mapping[str, float]
    ) -> tuple[dict[str, str], frozenset[str]]:
        """The cluster of every candidate's text, and the candidates that speak for a cluster."""
        names = [name for name, text in texts.items() if len(text) <= VOTE_CHARS]
        if not names:
            return {}, frozenset()
        vectors = await self._embed([texts[name][: self._embed_chars] for name in names])
        return await asyncio.to_thread(
            cluster, vectors.astype(np.float64), names, texts, scores, self._similarity
        )

    async def _form(self, kind: Equality, said: Choice) -> str | None:
        if said.tool_calls:
            return await asyncio.to_thread(_calls_form, said.tool_calls)
        if kind is Equality.MATH and _is_votable(said):
            return await self._math_form(said.text or "")
        if len(said.text or "") > _SMALL_CHARS:
            return await asyncio.to_thread(_text_form, kind, said)
        return _text_form(kind, said)


def _text_form(kind: Equality, said: Choice) -> str | None:
    if not _is_votable(said) or kind in (Equality.SEMANTIC, Equality.TOOL_CALL, Equality.MATH):
        return None
    return normalise(kind, said.text or "")


def _is_votable(said: Choice) -> bool:
    return not said.refused and said.text is not None and len(said.text) <= VOTE_CHARS


def _most_common(forms: Sequence[str | None]) -> str | None:
    """The first among equals."""
    counted = Counter(form for form in forms if form is not None)
    return max(counted, key=counted.__getitem__) if counted else None


def _calls_form(calls: Sequence[Mapping[str, Any]]) -> str | None:
    """On a thread: how long calls are is only known once they are written out."""
    return None if len(str(calls)) > VOTE_CHARS else tool_call_form(calls)
