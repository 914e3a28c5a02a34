"""When recorded answers are the same, for commands: as the gateway would compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec

from app.judging.math_pool import DEADLINE_S, MathPool
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.grading import Grade, check_reference
from racer_core.aggregation.reasoning import REASONING, ReasoningFilter
from racer_core.aggregation.rule import SIMILARITY, AnswerRule
from racer_core.aggregation.wording import SHIPPED, TextRule
from racer_core.encoder.base import Encoder
from racer_core.records.row import MAX_QUERY_CHARS
from racer_core.types import FloatArray


def answer_rule(
    equality: Equality,
    *,
    reasoning: ReasoningFilter = REASONING,
    text: TextRule | None = None,
    similarity: float = SIMILARITY,
    encoder: Encoder | None = None,
    embed_chars: int = MAX_QUERY_CHARS,
) -> AnswerRule:
    """The rule of an equality, with mathematics where its library is installed.

    Args:
        equality: The kind of answers.
        reasoning: Removes the reasoning from each text.
        text: When two sentences are the same; None: as shipped.
        similarity: Of ``semantic``.
        encoder: Of ``semantic``; None: there is none.
        embed_chars: The encoder reads this many characters of an answer.

    Raises:
        InputError: The equality needs an encoder, or a library that is not installed.
    """

    def embed(texts: Sequence[str]) -> FloatArray:
        assert encoder is not None
        return encoder.encode([each[:embed_chars] for each in texts]).embeddings.astype(float)

    if equality is Equality.MATH:
        check_reference("1", Grade.MATH)
    has_library = find_spec("math_verify") is not None
    return AnswerRule(
        equality=equality,
        reasoning=reasoning,
        text=text or SHIPPED,
        similarity=similarity,
        embed=None if encoder is None else embed,
        math_forms=math_forms if has_library else None,
    )


def math_forms(texts: Sequence[str]) -> list[str | None]:
    """The normal form of the mathematics in each text, by sandboxed processes.

    Raises:
        InputError: The library is not installed.
    """
    return asyncio.run(_math_forms(texts))


async def _math_forms(texts: Sequence[str]) -> list[str | None]:
    async with MathPool(DEADLINE_S) as pool:
        distinct = list(dict.fromkeys(texts))
        forms = await asyncio.gather(*map(pool.form, distinct))
    found = dict(zip(distinct, forms, strict=True))
    return [found[text] for text in texts]
