"""Sampled scores: rows of the shadow sample, compared with the decisions that the gateway stored.

Such a row states the rate at which its decision was drawn, and brings router scores where requests
are not stored. Equal to those of its decision, under the same artifact and fleet, they are the
router's own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from app.calibrations.columns import RowColumns
from racer_core.errors import InputError

FALLBACK: Final = "fallback"  # instead of the calibration that answered a request


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledScores:
    """What is stored of one sampled decision.

    Attributes:
        scores: The router's scores in the order of the pool; None: it gave
            none, or another artifact's router gave them.
        later: The request is a turn after the first of a conversation.
        application: Its application; empty where none is configured.
        rate: The rate at which it was drawn; None: it was not.
        calibration_id: The calibration by which it was answered; None: by the fallback.
        created_at: When it was made: UTC, ISO 8601.
        is_of_other_members: Since then it changed which requests the applications have, or how
            their turns are drawn.
    """

    scores: tuple[float, ...] | None
    later: bool
    application: str
    rate: float | None
    created_at: str
    calibration_id: str | None = None
    is_of_other_members: bool = False


class StoredScores(Protocol):
    """Reads sampled decisions."""

    def __call__(self, decision_ids: Sequence[str], setup: str) -> Mapping[str, SampledScores]:
        """Return those that are stored, with scores of one artifact and fleet; blocks."""
        ...


def compared(
    rows: RowColumns,
    stored: StoredScores,
    *,
    setup: str,
    drawn: Collection[str],
    since: str | None = None,
) -> RowColumns:
    """The rows, with what the store says of those that bring scores.

    A decision that is no longer stored was drawn at the stated rate as far as its id tells.

    Args:
        rows: The rows of an upload.
        stored: Reads sampled decisions.
        setup: Digest of artifact and fleet.
        drawn: The applications whose rows are drawn from their traffic. Rows of theirs without a
            request must be stored decisions: nothing else says what they were.
        since: The time from which on the rows stand for all requests; None: any.

    Raises:
        InputError: A row states another rate than its decision was drawn at, is older than
            ``since``, or is a drawn row without a request that is not what is stored.
    """
    if rows.decision_ids is None:
        return rows
    ids = [each.decode() for each in rows.decision_ids.tolist()]
    found = stored([each for each in ids if each], setup)
    verified, later = np.zeros(len(rows), np.bool_), rows.later.copy()
    answered_by = [""] * len(rows)
    groups = rows.groups or (None,) * len(rows)
    for place, (decision_id, group) in enumerate(zip(ids, groups, strict=True)):
        known = found.get(decision_id)
        if known is not None:
            weight = 1.0 if rows.weights is None else float(rows.weights[place])
            if known.rate is None or not math.isclose(weight * known.rate, 1.0):
                raise InputError(
                    f"row {place + 1}: the decision {decision_id} was drawn at the rate "
                    f"{known.rate or 0:.4g}, and its weight {weight:.4g} states another: use the "
                    "rows of `GET /shadow/rows` unchanged"
                )
            if known.is_of_other_members:
                raise InputError(
                    f"row {place + 1}: since the decision {decision_id} was drawn, `applications` "
                    "has other members or `turns`: use the rows that `GET /shadow/rows` has now"
                )
            answered_by[place] = known.calibration_id or FALLBACK
            if since is not None and known.created_at < since:
                raise InputError(
                    f"row {place + 1}: the decision {decision_id} was made at {known.created_at}, "
                    f"before `since`, {since}: leave older rows out, or state an earlier time",
                    param="since",
                )
        if np.isnan(rows.scores[place]).any():
            continue  # a whole request
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
    return replace(rows, verified=verified, later=later, answered_by=np.array(answered_by))
