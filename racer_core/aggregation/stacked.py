"""Stacked vote: the weight of each candidate's vote, learned from labelled answers.

A conditional logit over the distinct answers to a query. The answer a has the strength

    v(a) = sum over candidates m that gave a of (skill_m + trust_m logit f(x, m))

and a is right with probability softmax(v). Fitted on training rows, with the candidates outside a
set masked as in serving (:mod:`racer_core.offline.stacking`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from racer_core.errors import InputError
from racer_core.types import FloatArray

_CLIP = 0.02  # as for the patterns: a score of 0 or 1 is not certainty


@dataclass(frozen=True, slots=True)
class StackedVote:
    """Two numbers per candidate, in the order of the pool: skill (K,) and trust (K,)."""

    pool: tuple[str, ...]
    skill: FloatArray
    trust: FloatArray

    def __post_init__(self) -> None:
        """Refuse wrong shapes and values that are not finite."""
        shape = (len(self.pool),)
        if self.skill.shape != shape or self.trust.shape != shape:
            raise InputError(f"skill {self.skill.shape} and trust {self.trust.shape} for {shape}")
        if not np.isfinite(self.skill).all() or not np.isfinite(self.trust).all():
            raise InputError("skill and trust must be finite")

    def count(self, candidate: str, score: float) -> float:
        """The count of one candidate's vote, given its router score."""
        column = self.pool.index(candidate)
        return float(self.skill[column] + self.trust[column] * clipped_logit(np.asarray(score)))

    def counts(self, scores: FloatArray) -> FloatArray:
        """The same for router scores of the whole pool, shape (n, K)."""
        return self.skill + self.trust * clipped_logit(scores)


def clipped_logit(scores: FloatArray) -> FloatArray:
    """log(f / (1 - f)) with f clipped to [.02, .98]."""
    clipped = np.clip(scores, _CLIP, 1.0 - _CLIP)
    return np.log(clipped / (1.0 - clipped))
