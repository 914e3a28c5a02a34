"""What answers are compared by: normal forms, content words, or meanings.

Most kinds of equality are pure functions of texts (:mod:`racer_core.aggregation.rule`). ``math``
uses a library in a sandboxed process, ``semantic`` the router's encoder. Tool calls always vote as
canonical JSON. Long answers are read on a thread; answers longer than ``VOTE_CHARS`` do not vote.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import NotReady
from app.upstream.reply import Reply
from app.wire.format import Choice
from racer_core.aggregation.answers import Equality, is_textual, normalise, tool_call_form
from racer_core.aggregation.rule import Compared, are_same
from racer_core.aggregation.semantic import Meaning
from racer_core.aggregation.wording import TextRule, Wording, asked_words, wording

_SMALL_CHARS: Final = 64 * 2**10  # reading these takes less time than a thread costs
VOTE_CHARS: Final = 2**20  # of an answer: its reader holds the GIL, on a thread too

Embed = Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]]
MathForm = Callable[[str], Awaitable[str | None]]


class AnswerReader:
    """Reads what an answer is compared by.

    Args:
        embed: The router's encoder; None: there is none, and answers have no meanings.
        math_form: The normal form of mathematics, from the sandboxed process.
        similarity: Least cosine similarity of two meanings that are the same.
        text: When two sentences are the same.
        embed_chars: The encoder reads this many characters of an answer.
    """

    def __init__(
        self,
        embed: Embed | None,
        math_form: MathForm,
        *,
        similarity: float,
        text: TextRule,
        embed_chars: int,
    ) -> None:
        self._embed = embed
        self._math_form = math_form
        self._similarity = similarity
        self._text = text
        self._embed_chars = embed_chars

    async def form(self, kind: Equality, choices: Sequence[Choice]) -> str | None:
        """The form of one candidate's answer: the most common form of its choices.

        Where answers are compared two by two, only tool calls have one.
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

    async def compared(self, kind: Equality, reply: Reply, question: str) -> Compared | None:
        """What an answer is compared by; None where it cannot be read.

        Rows and requests call this for one answer at a time, so equal texts have equal embeddings.

        Args:
            kind: The equality of answers to the request.
            reply: The answer.
            question: The text of the request.

        Raises:
            NotReady: Meanings need an encoder, and there is none.
        """
        if kind is Equality.SEMANTIC and self._embed is None:
            raise NotReady("no encoder is loaded")
        form = await self.form(kind, reply.choices)
        if form is not None:
            return Meaning(form)
        if not kind.is_pairwise or reply.answer is None or not _is_votable(reply.best_choice):
            return None
        if kind is Equality.TEXT:
            return await self._wording(reply.text, question)
        form = await asyncio.to_thread(normalise, Equality.EXACT, reply.text)
        if form is None:
            return None
        assert self._embed is not None
        vectors = await self._embed([reply.text[: self._embed_chars]])
        return Meaning(form, vectors[0].astype(np.float64))

    def is_same(self, one: Compared, other: Compared) -> bool:
        """Whether two answers are equal. Symmetric."""
        return are_same(one, other, self._text, self._similarity)

    @staticmethod
    async def _wording(text: str, question: str) -> Wording | None:
        """On a thread where text and question are long."""
        if len(text) + len(question) > _SMALL_CHARS:
            asked = await asyncio.to_thread(asked_words, question)
            return await asyncio.to_thread(wording, text, asked)
        return wording(text, asked_words(question))

    async def _form(self, kind: Equality, choice: Choice) -> str | None:
        if choice.tool_calls:
            return await asyncio.to_thread(_calls_form, choice.tool_calls)
        if kind is Equality.MATH and _is_votable(choice):
            return await self._math_form(choice.text or "")
        if len(choice.text or "") > _SMALL_CHARS:
            return await asyncio.to_thread(_text_form, kind, choice)
        return _text_form(kind, choice)


def _text_form(kind: Equality, choice: Choice) -> str | None:
    if not _is_votable(choice) or not is_textual(kind) or kind is Equality.TOOL_CALL:
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
