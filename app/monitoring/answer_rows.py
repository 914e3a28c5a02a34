"""Answer rows: what all candidates answered to sampled requests. Blocks: use threads.

They calibrate the promise `same_answer`, and need no label and no stored request. A sampled request
without the answers of all candidates counts as lost: left out, the rows would be drawn by what
could be answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

import numpy as np
from sqlalchemy import func, select

from app.monitoring.decision_record import DecisionRecord
from app.monitoring.sample_record import is_later_turn, read_classes
from app.routing.premises import is_whole_but_for_outages
from app.routing.reasons import Reason
from app.store import Store
from app.store.tables import DecisionRow, SampleRow
from racer_core.calibration.shadow import is_sampled
from racer_core.sequential.answer_classes import UNREADABLE, AnswerClasses
from racer_core.sequential.verdicts import NO_VERDICT

MAX_ROWS: Final = 10_000  # that are read at a time
_EVER: Final = "9999"
_Stored = tuple[str, str, bool | None, str | None, bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """One sampled request of an application.

    Attributes:
        decision_id: Its decision.
        created_at: When it was made.
        classes: Candidate -> class of its answer, null where it cannot be read; None: not all
            candidates answered.
        verdicts: Candidate -> the checker's verdict; empty where there is no checker.
    """

    decision_id: str
    created_at: str
    classes: Mapping[str, int | None] | None
    verdicts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRows:
    """The rows of one application, oldest first.

    Attributes:
        application: The application.
        since: The time before which none is.
        rows: Each request once.
        pending: Requests whose answers may still arrive; neither they nor later ones are rows.
        thinned: Rows left out because the sampling rate was lower for a time.
        read_until: When the last request was made that was read, a row or none; None: none was.
        is_cut: There may be later ones.
    """

    application: str
    since: str
    rows: Sequence[AnswerRow]
    pending: int
    thinned: int
    read_until: str | None
    is_cut: bool

    def classes(self, pool: tuple[str, ...], start: int, stop: int | None) -> AnswerClasses:
        """The whole rows in a part of them."""
        part = [row for row in self.rows[start:stop] if row.classes is not None]
        found = [
            [UNREADABLE if (given := (row.classes or {})[name]) is None else given for name in pool]
            for row in part
        ]
        shape = len(part), len(pool)
        verdicts = [[row.verdicts.get(name, NO_VERDICT) for name in pool] for row in part]
        has_checker = any(row.verdicts for row in self.rows)
        return AnswerClasses(
            pool=pool,
            classes=np.array(found, dtype=np.int16).reshape(shape),
            verdicts=np.array(verdicts, dtype=np.int8).reshape(shape) if has_checker else None,
            fingerprints=tuple(row.decision_id.encode() for row in part),
        )

    def lost(self, start: int) -> int:
        """How many rows of a part lack answers."""
        return sum(row.classes is None for row in self.rows[start:])


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSample:
    """The sampled requests of the first turns under one setup.

    Attributes:
        store: Where they are.
        pool: The candidates.
        answer_setup: The setup in force: rows of another one are no rows.
        key: Key of the draws.
        deadline: The longest time that the calls for one request take.
    """

    store: Store
    pool: tuple[str, ...]
    answer_setup: str
    key: bytes
    deadline: timedelta

    def rows(
        self, application: str, *, since: str = "", after: str = "", until: str = _EVER
    ) -> AnswerRows:
        """The rows of an application.

        Rows are the requests that the promise serves at the application's own terms. Others are
        none, nor are those that only a part of the pool may or can serve, but for outages.

        Args:
            application: The application; empty where none is configured.
            since: Only requests after that, the newest ones.
            after: Only requests after that, the oldest ones, at whatever rate they were drawn: each
                is looked at once.
            until: Only requests until then.

        Raises:
            StoreError: The store cannot be used.
        """
        order = DecisionRow.created_at, DecisionRow.id
        statement = (
            select(
                DecisionRow.document,
                DecisionRow.created_at,
                SampleRow.later,
                SampleRow.classes,
                SampleRow.whole,
            )
            .outerjoin(SampleRow, SampleRow.decision_id == DecisionRow.id)
            .where(DecisionRow.shadow, DecisionRow.application == application)
            .where(DecisionRow.created_at > since, DecisionRow.created_at > after)
            .where(DecisionRow.created_at <= until)
            .order_by(*(order if after else (each.desc() for each in order)))
            .limit(MAX_ROWS)
        )
        with self.store.transaction() as session:
            stored = session.execute(statement).all()
        rows: list[AnswerRow] = []
        waiting: list[str] = []
        for each in stored if after else reversed(stored):
            document, _, later, classes, whole = cast("_Stored", each)
            decision = DecisionRecord.from_document(document, None)
            if decision.answer_setup is None:  # of another promise, or at other terms
                continue
            if decision.answer_setup != self.answer_setup:
                rows, waiting = (
                    [],
                    [],
                )  # the setup changed since: what came before is another sample
                continue
            if not _could_be_a_row(decision, self.pool, later):
                continue
            if classes is None:
                waiting.append(decision.created_at)
            found, verdicts = read_classes(classes or "{}")
            rows.append(
                AnswerRow(
                    decision_id=decision.decision_id,
                    created_at=decision.created_at,
                    classes=found if whole and all(name in found for name in self.pool) else None,
                    verdicts=verdicts,
                )
            )
        times = [each[1] for each in stored]
        # Sampled requests wait in a queue, however long: one is lost when a later one has answers.
        answered = times if len(times) == MAX_ROWS else [each[1] for each in stored if each[3]]
        pending_since = ""
        if answered:
            newest = datetime.fromisoformat(max(answered))
            pending_since = (newest - self.deadline).isoformat(timespec="microseconds")
        waiting = [time for time in waiting if time >= pending_since]
        if waiting:
            rows = [row for row in rows if row.created_at < min(waiting)]
            times = [time for time in times if time < min(waiting)]
        kept = rows
        if rows and not after:
            lowest = _lowest_rate(self.store, application, rows[0].created_at)
            kept = [row for row in rows if is_sampled(self.key, row.decision_id.encode(), lowest)]
        return AnswerRows(
            application=application,
            since=since or after,
            rows=kept,
            pending=len(waiting),
            thinned=len(rows) - len(kept),
            read_until=max(times, default=None),
            is_cut=len(stored) == MAX_ROWS and not waiting,
        )

    def count_since(self, application: str, since: str, enough: int) -> int:
        """How many requests were sampled and answered since a time, up to a number; rows are fewer.

        Raises:
            StoreError: The store cannot be used.
        """
        samples = (
            select(SampleRow.decision_id)
            .join(DecisionRow, DecisionRow.id == SampleRow.decision_id)
            .where(DecisionRow.application == application, DecisionRow.created_at > since)
            .limit(enough)
        )
        with self.store.transaction() as session:
            return session.scalar(select(func.count()).select_from(samples.subquery())) or 0


def _lowest_rate(store: Store, application: str, since: str) -> float:
    """The lowest sampling rate that was in force, whether a request was drawn at it or not."""
    statement = select(func.min(DecisionRow.sampling_rate)).where(
        DecisionRow.application == application,
        DecisionRow.created_at >= since,
        DecisionRow.sampling_rate > 0.0,
    )
    with store.transaction() as session:
        return session.scalar(statement) or 1.0


def _could_be_a_row(decision: DecisionRecord, pool: Sequence[str], later: bool | None) -> bool:
    reasons = [each.partition(":") for each in decision.reasons]
    if later is None:
        later = is_later_turn(decision.reasons)
    down = [name for reason, _, name in reasons if reason == Reason.CANDIDATE_DOWN]
    return not later and is_whole_but_for_outages(decision.pool, down, pool)
