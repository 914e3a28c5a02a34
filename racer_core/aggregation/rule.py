"""When two recorded answers are the same: an equality with all that decides it.

Rows are compared as requests are served. Kinds that need more than the texts take what computes it
from the caller: an encoder, or mathematics in a process that can be killed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.reasoning import REASONING, ReasoningFilter
from racer_core.aggregation.semantic import Meaning
from racer_core.aggregation.wording import SHIPPED, TextRule, Wording, asked_words, wording
from racer_core.errors import InputError
from racer_core.types import FloatArray, enum_member

SIMILARITY: Final = 0.9
# Multiple choice: options on lines of their own, "A. ...", "(B) ...", at least A and B.
_OPTIONS: Final = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]", re.MULTILINE)

Compared = Meaning | Wording  # what an answer is compared by


def equality_of(setting: Equality, question: str, fields: Mapping[str, Any]) -> Equality:
    """The kind of equality that ``auto`` selects for one request; another setting is itself.

    Args:
        setting: The configured equality.
        question: The text of the request.
        fields: Its fields.
    """
    if setting is not Equality.AUTO:
        return setting
    if answer_format(fields) in ("json_schema", "json_object"):
        return Equality.JSON
    if {"A", "B"} <= set(_OPTIONS.findall(question)):
        return Equality.CHOICE
    return Equality.TEXT


def answer_format(fields: Mapping[str, Any]) -> str | None:
    """The answer format that a request demands: ``json_schema``, ``json_object``, ``text``."""
    text: object = fields.get("text")  # its place in /v1/responses
    responses = cast("dict[str, object]", text).get("format") if isinstance(text, dict) else None
    wanted: object = fields.get("response_format") or responses
    kind = cast("dict[str, object]", wanted).get("type") if isinstance(wanted, dict) else None
    return kind if isinstance(kind, str) else None


def compares_texts(kind: Equality) -> bool:
    """Whether texts and their questions are all that it takes: no library, and no encoder."""
    return kind not in (Equality.MATH, Equality.SEMANTIC)


def are_same(one: Compared, other: Compared, text: TextRule, similarity: float) -> bool:
    """Whether two answers are equal, two by two or, where they have only a form, by their forms."""
    if isinstance(one, Wording) and isinstance(other, Wording):
        return text.equals(one, other)
    if isinstance(one, Meaning) and isinstance(other, Meaning):
        return one.equals(other, similarity)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRule:
    """When recorded answers are the same.

    Attributes:
        equality: The kind of answers.
        reasoning: Removes the reasoning from each text.
        text: Of ``text`` and ``auto``.
        similarity: Of ``semantic``: the least cosine similarity.
        embed: Of ``semantic``: unit vectors of texts, shape (n, d).
        math_forms: Of ``math``: the normal form of each text. Hostile texts may take for ever: use
            a process that a deadline can kill.
    """

    equality: Equality
    reasoning: ReasoningFilter = REASONING
    text: TextRule = SHIPPED
    similarity: float = SIMILARITY
    embed: Callable[[Sequence[str]], FloatArray] | None = None
    math_forms: Callable[[Sequence[str]], Sequence[str | None]] | None = None

    def __post_init__(self) -> None:
        """Refuse an equality without what computes it; turn its name into the member.

        Raises:
            InputError: It needs an encoder or a library.
        """
        object.__setattr__(self, "equality", enum_member(Equality, self.equality, "equality"))
        if self.equality is Equality.SEMANTIC and self.embed is None:
            raise InputError(
                "equality `semantic` needs an encoder of answers: choose `text`, which needs none",
                param="equality",
            )
        if self.equality is Equality.MATH and self.math_forms is None:
            raise InputError(
                "equality `math` needs what computes the forms of mathematics: give `math_forms`",
                param="equality",
            )

    def compared(
        self, kind: Equality, texts: Sequence[str], questions: Sequence[str]
    ) -> list[Compared | None]:
        """What texts are compared by, under the kind of their requests; None: cannot be read."""
        if kind is Equality.TEXT:
            pairs = zip(texts, questions, strict=True)
            return [wording(text, asked_words(question)) for text, question in pairs]
        if kind is Equality.MATH:
            assert self.math_forms is not None
            forms = self.math_forms(texts)
            return [None if form is None else Meaning(form) for form in forms]
        if kind is Equality.SEMANTIC:
            assert self.embed is not None
            vectors = self.embed(texts)
            forms = (normalise(Equality.EXACT, text) for text in texts)
            found = zip(forms, vectors, strict=True)
            return [None if form is None else Meaning(form, vector) for form, vector in found]
        forms = (normalise(kind, text) for text in texts)
        return [None if form is None else Meaning(form) for form in forms]

    def are_same(self, one: Compared, other: Compared) -> bool:
        """Whether two answers are equal. Symmetric."""
        return are_same(one, other, self.text, self.similarity)
