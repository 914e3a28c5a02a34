"""Shadow sample: a random share of queries for which the whole pool is called, to be judged.

With a verdict on every candidate, the loss of a decision is known. The sample is drawn without a
look at the query, so the mean loss of the sample estimates the realised risk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from app.monitoring.decision_record import DecisionRecord, are_answered_like_rows
from app.monitoring.seen_queries import SeenQueries
from app.settings import GroupBy
from racer_core.calibration.shadow import is_sampled


class ShadowSample:
    """Draws which decisions are in the sample.

    Args:
        rate: The sampling rate.
        key: Secret of the draws, the same for all gateways; empty: nothing is drawn yet.
    """

    def __init__(self, rate: float, key: bytes) -> None:
        self.rate = rate
        self.key = key
        self._drawn: SeenQueries | None = SeenQueries()

    def restart(self, rows: Sequence[bytes] | None) -> None:
        """Begin again for a calibration.

        Args:
            rows: Fingerprints of its rows; None: it is a sample of traffic, so repeats are drawn
                for, too.
        """
        self._drawn = None if rows is None else SeenQueries(rows)

    def draw(self, decision_id: str, fingerprint: bytes, reasons: Collection[str]) -> bool:
        """Draw for a decision; returns whether it is in the sample.

        Unless the rows are a sample of traffic, a query is drawn for once: the first time that it
        is to be answered as the rows were. A decision that calls no candidate, or whose loss would
        not count, uses up no draw.
        """
        if self.rate == 0.0 or not self.key or not are_answered_like_rows(reasons):
            return False
        if self._drawn is not None and self._drawn.record(fingerprint):
            return False
        return is_sampled(self.key, decision_id.encode(), self.rate)


def labelled_rows(
    judged: Iterable[tuple[DecisionRecord, Mapping[str, bool]]],
    pool: Sequence[str],
    *,
    group_by: GroupBy,
    conditions_of: Callable[[str], Sequence[str] | None],
    keeps_repeats: bool,
) -> bytes:
    """Judged decisions as labelled rows, JSON lines.

    A decision of version 0.1 is no row: it does not say what was sent, nor what its group means.

    Args:
        judged: Shadow decisions with their verdicts.
        pool: The pool that the decisions must have, in order.
        group_by: The configured origin of groups; a group of another origin is another one.
        conditions_of: The digests of the first population of a calibration, by its id: what is
            answered like its rows was sent under these. None: unknown.
        keeps_repeats: Write every decision. Otherwise the first on each query, since repeats of a
            query are drawn for once at each gateway.
    """
    rows: dict[str, dict[str, Any]] = {}
    for decision, correct in judged:
        rate, calibration_id = decision.shadow_rate, decision.calibration_id
        if calibration_id is None or decision.pool != pool or decision.group_by != group_by:
            continue
        if decision.answered_like_rows and decision.scores and rate:
            conditions = conditions_of(calibration_id)
            if conditions is None:
                continue
            row: dict[str, Any] = {} if decision.query is None else {"query": decision.query}
            row |= {
                "scores": dict(zip(pool, decision.scores, strict=True)),
                "correct": {name: correct[name] for name in pool},
                "group": decision.group,
                "conditions": dict(zip(pool, conditions, strict=True)),
                "weight": 1.0 / rate,
                "decision_id": decision.decision_id,
            }
            rows.setdefault(decision.decision_id if keeps_repeats else decision.fingerprint, row)
    return "".join(f"{json.dumps(row)}\n" for row in rows.values()).encode()
