"""Normal forms of answers: two answers count as the same vote if their forms are equal.

Most kinds of equality are pure text functions (:mod:`racer_core.aggregation.answers`). ``math``
uses a library in a sandboxed process, ``semantic`` the router's encoder. Tool calls always vote as
canonical JSON. Long answers are read on a thread; answers longer than ``VOTE_CHARS`` do not vote.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import NotReady
from app.routing.query import answer_format
from app.upstream.reply import Reply
from app.wire.format import Choice
from racer_core.aggregation.answers import Equality, normalise, tool_call_form
from racer_core.aggregation.semantic import Meaning, cluster

_SMALL_CHARS: Final = 64 * 2**10  # reading these takes less time than a thread costs
VOTE_CHARS: Final = 2**20  # of an answer: its reader holds the GIL, on a thread too

# Multiple choice: options on lines of their own, "A. ...", "(B) ...", at least A and B.
_OPTIONS: Final = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]", re.MULTILINE)

Embed = Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]]
MathForm = Callable[[str], Awaitable[str | None]]


def equality_of(setting: Equality, query: str, fields: Mapping[str, Any]) -> Equality:
    """The kind of equality that ``auto`` selects for one request; another setting is itself."""
    if setting is not Equality.AUTO:
        return setting
    if answer_format(fields) in ("json_schema", "json_object"):
        return Equality.JSON
    if {"A", "B"} <= set(_OPTIONS.findall(query)):
        return Equality.CHOICE
    return Equality.SEMANTIC


class AnswerReader:
    """Reads the normal form of an answer.

    Args:
        embed: The router's encoder; None: there is none, and open texts do not vote.
        math_form: The normal form of mathematics, from the sandboxed process.
        similarity: Least cosine similarity inside a cluster of ``semantic``.
        embed_chars: The encoder reads this many characters of an answer.
    """

    def __init__(
        self, embed: Embed | None, math_form: MathForm, *, similarity: float, embed_chars: int
    ) -> None:
        self._embed = embed
        self._math_form = math_form
        self._similarity = similarity
        self._embed_chars = embed_chars

    async def form(self, kind: Equality, choices: Sequence[Choice]) -> str | None:
        """The form of one candidate's answer: the most common form of its choices.

        With ``semantic``, only tool calls have a form before all answers have arrived.
        """
        return _most_common([await self._form(kind, choice) for choice in choices])

    @staticmethod
    def form_at_once(kind: Equality, choices: Sequence[Choice]) -> str | None:
        """The same without waiting, for an answer of which :meth:`waits` is False."""
        return _most_common([_text_form(kind, choice) for choice in choices])

    @staticmethod
    def waits(kind: Equality, choices: Sequence[Choice]) -> bool:
        """Whether such an answer is read on a thread or in another process."""
        return kind is Equality.MATH or any(
            [choice.tool_calls or len(choice.text or "") > _SMALL_CHARS for choice in choices]
        )

    @property
    def has_encoder(self) -> bool:
        """Whether answers can be compared by meaning."""
        return self._embed is not None

    async def meaning(self, reply: Reply) -> Meaning | None:
        """What an answer is compared by, two by two; None where it cannot be read.

        Rows and requests call this for one answer at a time, so equal texts have equal embeddings.

        Raises:
            NotReady: There is no encoder.
        """
        if self._embed is None:
            raise NotReady("no encoder is loaded")
        form = await self.form(Equality.SEMANTIC, reply.choices)  # of tool calls
        if form is not None:
            return Meaning(form)
        if reply.answer is None or not _is_votable(reply.best_choice):
            return None
        form = await asyncio.to_thread(normalise, Equality.EXACT, reply.text)
        if form is None:
            return None
        vectors = await self._embed([reply.text[: self._embed_chars]])
        return Meaning(form, vectors[0].astype(np.float64))

    def is_same(self, one: Meaning, other: Meaning) -> bool:
        """Whether two answers are equal by meaning."""
        return one.equals(other, self._similarity)

    async def semantic(
        self, texts: Mapping[str, str], scores: Mapping[str, float]
    ) -> tuple[dict[str, str], frozenset[str]]:
        """The cluster of every candidate's text, and the medoid of each cluster."""
        names = [name for name, text in texts.items() if len(text) <= VOTE_CHARS]
        if not names or self._embed is None:
            return {}, frozenset()
        vectors = await self._embed([texts[name][: self._embed_chars] for name in names])
        return await asyncio.to_thread(
            cluster, vectors.astype(np.float64), names, texts, scores, self._similarity
        )

    async def _form(self, kind: Equality, choice: Choice) -> str | None:
        if choice.tool_calls:
            return await asyncio.to_thread(_calls_form, choice.tool_calls)
        if kind is Equality.MATH and _is_votable(choice):
            return await self._math_form(choice.text or "")
        if len(choice.text or "") > _SMALL_CHARS:
            return await asyncio.to_thread(_text_form, kind, choice)
        return _text_form(kind, choice)


def _text_form(kind: Equality, choice: Choice) -> str | None:
    if not _is_votable(choice) or kind in (Equality.SEMANTIC, Equality.TOOL_CALL, Equality.MATH):
        return None
    return normalise(kind, choice.text or "")


def _is_votable(choice: Choice) -> bool:
    return not choice.refused and choice.text is not None and len(choice.text) <= VOTE_CHARS


def _most_common(forms: Sequence[str | None]) -> str | None:
    """The most common form; of several, the first."""
    if len(forms) == 1:
        return forms[0]
    counted = Counter(form for form in forms if form is not None)
    return max(counted, key=counted.__getitem__) if counted else None


def _calls_form(calls: Sequence[Mapping[str, Any]]) -> str | None:
    """Runs on a thread: the length of calls is known only after they are written out."""
    return None if len(str(calls)) > VOTE_CHARS else tool_call_form(calls)
