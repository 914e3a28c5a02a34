"""Settings of the answer cache (section `answer_cache`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.settings.base import Frozen

Temperature = Literal["zero", "unset", "any"]


class AnswerCacheSettings(Frozen):
    """Answers of requests to `auto` and its pools that come again, letter by letter, by one key."""

    ttl_s: Annotated[float, Field(gt=0, le=30 * 86_400)] = 3_600.0
    """Seconds that an answer is kept."""
    max_bytes: Annotated[int, Field(ge=2**16)] = 64 * 2**20
    """Memory for the answers in bytes (64 MiB), of which each takes its JSON and 1 KiB; beyond it
    the least recently used one is removed."""
    temperature: Temperature = "zero"
    """Which requests are cached, by the temperature that all their candidates are sent: `zero`;
    `unset`, also none, with which servers draw each answer anew; or `any`."""
