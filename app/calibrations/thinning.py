"""Thinning: sampled rows of several sampling rates as a sample at the lowest rate.

A decision is drawn if u < rate, for u a keyed hash of its id, or of its conversation and turn,
uniform in [0, 1) and independent of the request. Among the requests of a period with the rates
r_1, ..., r_k, those with u < r = min r_j are a sample at the rate r of all of them, whatever
changed between the rates: rows and requests are exchangeable, and every law of rows of equal weight
holds. The weights w_i = 1 / r_j would be worth no more: sum_i w_i / max w has the mean r N for N
requests, which is the number that remains.

r is the lowest rate that was in force, for drawn requests or not. The lowest rate of the drawn rows
would depend on u: a short period at a low rate, of which no request was drawn, would not count.

Of a conversation the rows stand for the first turns that every rate in force draws: for
:func:`racer_core.calibration.shadow.drawn_turns` of the highest one. Of these turns at most one is
drawn, so that rows are independent. A turn that a client repeats may be drawn several times; one of
these rows is kept, whichever its decision's id says.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from app.calibrations.columns import RowColumns
from app.settings import DEFAULT
from racer_core.calibration.shadow import drawn_turns
from racer_core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RateInForce:
    """A sampling rate of an application's stored requests, drawn or not.

    Attributes:
        application: Its name; empty where none is configured.
        rate: The rate; 0 while the sampling was off.
        requests: How many requests came at this rate.
        last_at: The time of the last of them: UTC, ISO 8601.
    """

    application: str
    rate: float
    requests: int
    last_at: str


class SamplingRates(Protocol):
    """Reads the sampling rates of stored requests."""

    def __call__(self, since: str | None) -> Sequence[RateInForce]:
        """Return those from a time on; None: of all requests; blocks."""
        ...


def thinned(
    rows: RowColumns, in_force: Sequence[RateInForce], *, by_application: bool
) -> tuple[RowColumns, list[dict[str, Any]]]:
    """The rows, with the sampled ones of each application thinned to its lowest rate.

    The rows of an application that are all sampled have no weights then.

    Args:
        rows: The rows of an upload; the weight of a sampled one is 1 / its rate.
        in_force: The sampling rates of the period that the rows stand for.
        by_application: Applications are configured, each with a rate of its own.

    Returns:
        The rows, and the evidence of each application with sampled rows: ``drawn`` rows of which
        ``kept`` remain at ``rate``, of the first ``turns`` of each conversation; ``since`` is when
        a higher rate began that is in force now, null if none is; ``unsampled`` requests came
        while the sampling was off, and the rows do not stand for them.
    """
    if rows.draws is None:
        return rows, []
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights.copy()
    names = _applications(rows, by_application=by_application)
    kept = np.ones(len(rows), np.bool_)
    found: list[dict[str, Any]] = []
    for name in sorted(set(names[rows.sampled].tolist())):
        of_it = names == name
        places = np.flatnonzero(of_it & rows.sampled)
        own = [each for each in in_force if each.application == name]
        rate = _lowest(own, float(weights[places].max()))
        turns = drawn_turns(_highest(own, float(weights[places].min())))
        kept[places] = rows.draws[places] < rate
        if rows.turn_places is not None:
            kept[places] &= rows.turn_places[places] < turns
        kept[_repeated(rows, np.flatnonzero(of_it & rows.sampled & kept))] = False
        weights[places] = 1.0 if len(places) == of_it.sum() else 1.0 / rate
        found.append(
            {
                "application": name or None,
                "drawn": len(places),
                "kept": int(kept[places].sum()),
                "rate": rate,
                "turns": turns,
                "since": _end_of(own, rate),
                "unsampled": sum(each.requests for each in own if not each.rate),
            }
        )
    plain = bool((weights == 1.0).all())
    return replace(rows, weights=None if plain else weights).take(np.flatnonzero(kept)), found


def _applications(rows: RowColumns, *, by_application: bool) -> NDArray[np.str_]:
    """The application of each row as decisions store it, shape (n,)."""
    if not by_application:
        return np.full(len(rows), "")
    return np.array([group or DEFAULT for group in rows.groups or (None,) * len(rows)])


def _lowest(in_force: Sequence[RateInForce], largest_weight: float) -> float:
    """The lowest rate in force, or that of a row whose decision is no longer stored."""
    stated = min(1.0, 1.0 / largest_weight)
    lowest = min((each.rate for each in in_force if each.rate), default=1.0)
    # Of a rate's inverse the last bits may be lost.
    return lowest if lowest < stated or math.isclose(lowest, stated) else stated


def _highest(in_force: Sequence[RateInForce], least_weight: float) -> float:
    """The highest rate in force, or that of a row whose decision is no longer stored."""
    stated = min(1.0, 1.0 / least_weight)
    highest = max((each.rate for each in in_force), default=0.0)
    # Of a rate's inverse the last bits may be lost.
    return highest if highest > stated or math.isclose(highest, stated) else stated


def _repeated(rows: RowColumns, places: NDArray[np.intp]) -> list[int]:
    """The rows at these places that share a conversation with one that is kept."""
    if rows.decision_ids is None:
        return []
    of_conversation: list[int] = places[rows.clusters[places] >= 0].tolist()
    drawn = {
        place: blake2b(bytes(rows.decision_ids[place]), digest_size=8).digest()
        for place in of_conversation
    }
    first: dict[int, int] = {}
    for place in sorted(of_conversation, key=drawn.__getitem__):
        first.setdefault(int(rows.clusters[place]), place)
    return [place for place in of_conversation if first[int(rows.clusters[place])] != place]


def _end_of(in_force: Sequence[RateInForce], rate: float) -> str | None:
    """The time just after the last request at a rate; None while it is in force."""
    last = max((each.last_at for each in in_force if each.rate == rate), default=None)
    if last is None or not any(each.rate > rate and each.last_at > last for each in in_force):
        return None
    end = datetime.fromisoformat(last) + timedelta(microseconds=1)
    return end.isoformat(timespec="microseconds")


# Sampled scores: rows of the shadow sample, compared with the decisions that the gateway stored.
#
# Such a row states the rate at which its decision was drawn, and brings router scores where
# requests are not stored. Equal to those of its decision, under the same artifact and fleet, they
# are the router's own.

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
