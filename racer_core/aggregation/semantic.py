"""Equality of open answers by meaning, two by two. Pure; the caller computes the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from racer_core.types import FloatArray

_DECIMALS: Final = 6  # precision of similarities of float32 embeddings


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """What an answer is compared by.

    Attributes:
        form: Its normal form; answers of the same form are equal.
        embedding: Unit vector of its text, shape (d,); None: it is equal to its form alone.
    """

    form: str
    embedding: FloatArray | None = None

    def equals(self, other: Meaning, threshold: float) -> bool:
        """Whether two answers are equal: by form, or at this cosine similarity. Symmetric."""
        if self.form == other.form:
            return True
        if self.embedding is None or other.embedding is None:
            return False
        return round(float(self.embedding @ other.embedding), _DECIMALS) >= threshold
