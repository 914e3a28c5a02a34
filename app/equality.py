"""What an answer counts as in a vote: the form of each candidate's answer.

Most kinds are pure text (:mod:`racer_core.aggregation.answers`). ``math`` asks a library in a
process of its own, ``semantic`` the router's encoder. Tool calls always vote as canonical JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.query import answer_format
from app.surfaces.base import Said
from racer_core.aggregation.answers import Equality, normalise, tool_call_form
from racer_core.aggregation.semantic import cluster

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
    """Reads what a candidate's answer counts as."""

    def __init__(self, embed: Embed, math_form: MathForm, similarity: float) -> None:
        self._embed = embed
        self._math_form = math_form
        self._similarity = similarity

    async def form(self, kind: Equality, choices: Sequence[Said]) -> str | None:
        """The form of one candidate's answer: of its choices, the one that most of them have.

        Of ``semantic`` only tool calls have a form before all answers are there.
        """
        forms = [await self._form(kind, said) for said in choices]
        counted = Counter(form for form in forms if form is not None)
        return max(counted, key=counted.__getitem__) if counted else None  # the first among equals

    async def semantic(
        self, texts: Mapping[str, str], scores: Mapping[str, float]
    ) -> tuple[dict[str, str], frozenset[str]]:
        """The cluster of every candidate's text, and the candidates that speak for a cluster."""
        names = list(texts)
        vectors = await self._embed([texts[name] for name in names])
        return cluster(vectors.astype(np.float64), names, texts, scores, self._similarity)

    async def _form(self, kind: Equality, said: Said) -> str | None:
        if said.tool_calls:
            return tool_call_form(said.tool_calls)
        if said.refused or said.text is None:
            return None
        match kind:
            case Equality.MATH:
                return await self._math_form(said.text)
            case Equality.SEMANTIC | Equality.TOOL_CALL:
                return None
            case _:
                return normalise(kind, said.text)
