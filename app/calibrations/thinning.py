"""Thinning: sampled rows of several sampling rates as a sample at the lowest rate.

A decision is drawn if u < rate, for u a keyed hash of its id, or of its conversation and turn,
uniform in [0, 1) and independent of the request. Among the requests of a period with the rates
r_1, ..., r_k, those with u < r = min r_j are a sample at the rate r of all of them, whatever
changed between the rates: rows and requests are exchangeable, and every law of rows of equal weight
holds. The weights w_i = 1 / r_j would be worth no more: sum_i w_i / max w has the mean r N for N
requests, which is the number that remains.

r is the lowest rate that was in force, for drawn requests or not. The lowest rate of the drawn rows
would depend on u: a short period at a low rate, of which no request was drawn, would not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from app.calibrations.columns import RowColumns
from app.settings import DEFAULT


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
        ``kept`` remain at ``rate``; ``since`` is when a higher rate began that is in force now,
        null if none is; ``unsampled`` requests came while the sampling was off, and the rows do
        not stand for them.
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
        kept[places] = rows.draws[places] < rate
        weights[places] = 1.0 if len(places) == of_it.sum() else 1.0 / rate
        found.append(
            {
                "application": name or None,
                "drawn": len(places),
                "kept": int(kept[places].sum()),
                "rate": rate,
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


def _end_of(in_force: Sequence[RateInForce], rate: float) -> str | None:
    """The time just after the last request at a rate; None while it is in force."""
    last = max((each.last_at for each in in_force if each.rate == rate), default=None)
    if last is None or not any(each.rate > rate and each.last_at > last for each in in_force):
        return None
    end = datetime.fromisoformat(last) + timedelta(microseconds=1)
    return end.isoformat(timespec="microseconds")
