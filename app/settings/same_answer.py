"""Settings of the promise `same_answer`: calls in rounds (section `same_answer`)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from app.settings.base import Frozen
from app.settings.candidates import Name
from app.settings.routing import Alpha
from racer_core.aggregation.answers import Equality

VOTE: Final = "vote"  # the reference that is the whole pool's vote
# Equalities by which any two answers can be compared without the others and without the question.
COMPARABLE: Final = tuple(
    each for each in Equality if each not in (Equality.AUTO, Equality.SEMANTIC)
)


class SameAnswer(Frozen):
    """The promise `same_answer`: at most alpha of the answers differ from the reference's."""

    alpha: Alpha = 0.05
    """Largest share of requests whose answer differs from the reference's."""
    reference: Name = VOTE
    """The reference: `vote`, that of the whole pool, or a candidate."""
    max_rounds: Annotated[int, Field(ge=1, le=3)] = 2
    """Most rounds of calls of one request, 1 to 3."""
    calibrate: Literal["from_traffic"] | None = None
    """`from_traffic`: the gateway calibrates by itself, as soon as enough requests are sampled,
    daily, and after an alarm; null: on `racer calibrate --same-answer`."""
