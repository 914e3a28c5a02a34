"""Sampled scores: rows without text, compared with the decisions that the gateway stored.

A row of the shadow sample brings router scores where requests are not stored. Equal to those of its
decision, under the same artifact and fleet, they are the router's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from app.calibrations.columns import RowColumns
from racer_core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledScores:
    """What is stored of one sampled decision.

    Attributes:
        scores: The router's scores in the order of the pool; None: it gave none.
        later: The request is a turn after the first of a conversation.
        application: Its application; empty where none is configured.
    """

    scores: tuple[float, ...] | None
    later: bool
    application: str


class StoredScores(Protocol):
    """Reads sampled decisions."""

    def __call__(self, decision_ids: Sequence[str], setup: str) -> Mapping[str, SampledScores]:
        """Return those that are stored, of one artifact and fleet; blocks."""
        ...


def compared(
    rows: RowColumns, stored: StoredScores, *, setup: str, drawn: Collection[str]
) -> RowColumns:
    """The rows, with what the store says of those that bring scores.

    Args:
        rows: The rows of an upload.
        stored: Reads sampled decisions.
        setup: Digest of artifact and fleet.
        drawn: The applications whose rows are drawn from their traffic. Rows of theirs without a
            request must be stored decisions: nothing else says what they were.

    Raises:
        InputError: A drawn row is not what is stored.
    """
    if rows.decision_ids is None:
        return rows
    ids = [each.decode() for each in rows.decision_ids.tolist()]
    found = stored([each for each in ids if each], setup)
    verified, later = np.zeros(len(rows), np.bool_), rows.later.copy()
    groups = rows.groups or (None,) * len(rows)
    for place, (decision_id, group) in enumerate(zip(ids, groups, strict=True)):
        known = found.get(decision_id)
        if known is not None:
            later[place] = known.later
            scores = None if known.scores is None else tuple(rows.scores[place].tolist())
            verified[place] = bool(rows.unlabelled[place]) or scores == known.scores is not None
        if decision_id and group in drawn:
            is_own = known is not None and known.application == group
            if not (verified[place] and is_own):
                raise InputError(
                    f"row {place + 1}: the scores of the decision {decision_id} are not those that "
                    f"are stored, or it is no longer stored, or of another application than "
                    f"{group!r}: upload rows of `GET /shadow/rows` while their decisions are "
                    "stored, or turn `watching.store_requests` on"
                )
    return replace(rows, verified=verified, later=later)
