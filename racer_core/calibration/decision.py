"""Routing decisions: the set of one query, best first, made from prediction sets of a batch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import ArrayLike

from racer_core.calibration.augmentation import checked_scores
from racer_core.types import (
    BoolArray,
    FloatArray,
    IdArray,
    RiskTarget,
    RoutingDecision,
    Score,
    enum_member,
)


class ScoredBatch(Protocol):
    """A router's output for a batch."""

    @property
    def scores(self) -> FloatArray:
        """f, shape (B, K), in [0, 1]."""
        ...

    @property
    def neighbours(self) -> IdArray | None:
        """Pattern ids of the nearest training rows, shape (B, J)."""
        ...


def scores_and_neighbours(batch: ArrayLike | ScoredBatch) -> tuple[FloatArray, IdArray | None]:
    """The checked scores (B, K) of an array or of a router's output, and its neighbours (B, J).

    Raises:
        InputError: The scores are no matrix of numbers in [0, 1].
    """
    if hasattr(batch, "scores"):
        scored = cast("ScoredBatch", batch)
        return checked_scores(scored.scores), scored.neighbours
    return checked_scores(np.asarray(batch, dtype=np.float64)), None


def score_prints(scores: FloatArray, neighbours: IdArray | None) -> tuple[bytes, ...]:
    """What stands for the fingerprints of queries of which only the router's output is known.

    Args:
        scores: f, shape (B, K).
        neighbours: Pattern ids of the nearest training rows, shape (B, J).
    """
    near = [b""] * len(scores) if neighbours is None else [each.tobytes() for each in neighbours]
    rows = np.ascontiguousarray(scores)
    return tuple(
        hashlib.blake2b(row.tobytes() + ids, digest_size=16).digest()
        for row, ids in zip(rows, near, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Prediction sets for a batch."""

    selected: BoolArray  # (B, K)
    null_selected: BoolArray  # (B,)
    null_abstained: BoolArray  # (B,): emptied because p_null >= tau


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The decisions for one query at several risk levels; a larger alpha never enlarges the set."""

    nonconformity: tuple[float, ...]  # s(x, m), in the order of the pool; lower fits better
    decisions: tuple[RoutingDecision, ...]  # in the order of the alphas


def decision_from_sets(
    sets: Sets,
    pool: Sequence[str],
    scores: FloatArray,
    *,
    alpha: float,
    score: Score,
    lambda_hat: float,
    truncated: bool,
) -> RoutingDecision:
    """The decision for one query from its sets (B = 1) and router scores (K,), best first."""
    chosen = np.flatnonzero(sets.selected[0])
    best_first: list[int] = chosen[np.argsort(-scores[chosen], kind="stable")].tolist()
    return RoutingDecision(
        selected=tuple(pool[i] for i in best_first),
        scores=tuple(float(scores[i]) for i in best_first),
        null_selected=bool(sets.null_selected[0]),
        alpha=alpha,
        score=score,
        lambda_hat=lambda_hat,
        truncated=truncated,
        abstain_reason=None if chosen.size else _abstain_reason(sets),
    )


def _abstain_reason(sets: Sets) -> str:
    if sets.null_abstained[0]:
        return "p_null"
    return "null_only" if sets.null_selected[0] else "empty"


def whole_pool_decision(
    pool: Sequence[str],
    scores: Sequence[float],
    *,
    risk_target: RiskTarget,
    alpha: float,
    score: Score,
    truncated: bool,
) -> RoutingDecision:
    """The decision to call the whole pool, best first."""
    order = sorted(range(len(pool)), key=lambda i: -scores[i])
    risk_target = enum_member(RiskTarget, risk_target, "risk_target")
    return RoutingDecision(
        selected=tuple(pool[i] for i in order),
        scores=tuple(scores[i] for i in order),
        null_selected=risk_target == RiskTarget.PAPER,  # the whole of M'
        alpha=alpha,
        score=score,
        lambda_hat=math.inf,
        truncated=truncated,
    )
