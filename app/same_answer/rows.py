"""Answer rows: what all candidates answered to sampled requests. Blocks: use threads.

They calibrate the promise `same_answer`, and need no label and no stored request. A sampled request
without the answers of all candidates counts as lost: dropping it would bias the sample towards
answerable requests.

Where misses are the loss, rows have labels: verdicts that count on the answers of all candidates.
The promise is about requests that some candidate answers right, so a request is left out if every
candidate is known to be wrong. One without all labels counts as lost, whatever its label would be:
to lose a row, or to add one that loses, only raises the threshold. So labels may be missing by
any rule that looks at its own request alone, and the bound holds. Verdicts of judge models are no
labels, and are not read.

Labels come later than answers, sooner on some requests than on others. If rows ended where labels
end, their end would depend on the labels. So rows end a fixed time ago (``label_waits``), which no
label chooses. A calibration loses what has no label when it is made.

A bet is made once, with the labels that came within the wait, by their times: whenever, and by
whichever gateway, it is computed. A request without them bets as one whose loss is 0, whatever its
label would be. That is the least of what its bet can be worth, so that late labels raise no false
alarm, by whatever rule they are late that looks at the request and those before it. To count it as
lost would bet the share of late labels against a bound without it; to make no bet would leave the
requests whose labels come sooner, which may be those with losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, cast

import numpy as np
from sqlalchemy import func, select

from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.samples.record import is_later_turn
from app.routing.premises import is_whole_but_for_outages
from app.routing.reasons import Reason
from app.same_answer.calibrations import AnswerCalibrations
from app.store import Store
from app.store.sampled_classes import read_classes
from app.store.tables import DecisionRow, SampleRow, VerdictRow
from app.utc import ago, latest
from racer_core.aggregation.leaders import UNREADABLE
from racer_core.calibration.shadow import is_sampled
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.verdicts import NO_VERDICT
from racer_core.types import BoolArray

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
            candidates answered, or a label that rows need is missing.
        verdicts: Candidate -> the checker's verdict; empty where there is no checker.
        labels: Candidate -> whether its answer is right; empty where rows need no labels.
        lacks_labels: All candidates answered, and a label that rows need is missing.
        equal: Candidate -> the candidates before it with an equal answer; empty where answers are
            not compared two by two.
    """

    decision_id: str
    created_at: str
    classes: Mapping[str, int | None] | None
    verdicts: Mapping[str, int]
    labels: Mapping[str, bool]
    lacks_labels: bool
    equal: Mapping[str, Sequence[str]]


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
        labels = [[row.labels[name] for name in pool] for row in part if row.labels]
        has_checker = any(row.verdicts for row in self.rows)
        is_labelled = any(row.labels for row in self.rows)
        given = AnswerClasses(
            pool=pool,
            classes=np.array(found, dtype=np.int16).reshape(shape),
            verdicts=np.array(verdicts, dtype=np.int8).reshape(shape) if has_checker else None,
            labels=np.array(labels, dtype=bool).reshape(shape) if is_labelled else None,
            fingerprints=tuple(row.decision_id.encode() for row in part),
        )
        if not any(row.equal for row in self.rows):
            return given
        readable, equal = given.classes != UNREADABLE, _comparisons(part, pool)
        compared = AnswerClasses.compared(pool, equal, readable, given.fingerprints)
        return replace(compared, verdicts=given.verdicts, labels=given.labels)

    def lost(self, start: int) -> int:
        """How many rows of a part lack answers, or labels that they need."""
        return sum(row.classes is None for row in self.rows[start:])


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSample:
    """The sampled requests of the first turns under one setup.

    Attributes:
        store: Where they are.
        pool: The candidates.
        calibrations: Know the setup in force: rows of another one are no rows.
        key: Key of the draws.
        deadline: The longest time that the calls for one request take.
        label_waits: How long requests wait for their labels, by application, where rows need them.
    """

    store: Store
    pool: tuple[str, ...]
    calibrations: AnswerCalibrations
    key: bytes
    deadline: timedelta
    label_waits: Mapping[str, timedelta]

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
                bets once, by the labels that came in time.
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
            .where(DecisionRow.created_at <= min(until, self._end(application)))
            .order_by(*(order if after else (each.desc() for each in order)))
            .limit(MAX_ROWS)
        )
        with self.store.transaction() as session:
            stored = session.execute(statement).all()
        times = [each[1] for each in stored]
        wait = self.label_waits.get(application)
        is_labelled = wait is not None
        within = wait if after else None
        labels = _labels(self.store, application, times, within) if is_labelled else {}
        rows: list[AnswerRow] = []
        waiting: list[str] = []
        for each in stored if after else reversed(stored):
            document, _, later, classes, whole = cast("_Stored", each)
            decision = DecisionRecord.from_document(document, None)
            if decision.answer_setup is None:  # of another promise, or at other terms
                continue
            if decision.answer_setup != self.calibrations.setup:
                rows, waiting = [], []  # it changed since: what came before is another sample
                continue
            if not _could_be_a_row(decision, self.pool, later):
                continue
            if classes is None:
                waiting.append(decision.created_at)
            found, verdicts, equal = read_classes(classes or "{}")
            recorded = equal if self.calibrations.is_compared else found
            is_known = bool(whole) and recorded.keys() >= {*self.pool}
            correct = labels.get(decision.decision_id, {})
            lacks_labels = is_known and is_labelled and not correct.keys() >= {*self.pool}
            is_known = is_known and not lacks_labels
            if is_labelled and is_known and not any(correct[name] for name in self.pool):
                continue
            rows.append(
                AnswerRow(
                    decision_id=decision.decision_id,
                    created_at=decision.created_at,
                    classes=found if is_known else None,
                    verdicts=verdicts,
                    labels=correct if is_known else {},
                    lacks_labels=lacks_labels,
                    equal=equal,
                )
            )
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

    def labels(self, rows: AnswerRows, count: int) -> dict[bytes, dict[str, bool]]:
        """Fingerprint -> candidate -> the verdict that counts, of the oldest rows that have any.

        Raises:
            StoreError: The store cannot be used.
        """
        times = [row.created_at for row in rows.rows[:count]]
        found = _labels(self.store, rows.application, times, None)
        return {decision_id.encode(): given for decision_id, given in found.items()}

    def count_since(self, application: str, since: str, enough: int) -> int:
        """How many requests were sampled and answered since a time, up to a number; rows are fewer.

        Raises:
            StoreError: The store cannot be used.
        """
        samples = (
            select(SampleRow.decision_id)
            .join(DecisionRow, DecisionRow.id == SampleRow.decision_id)
            .where(DecisionRow.application == application, DecisionRow.created_at > since)
            .where(DecisionRow.created_at <= self._end(application))
            .limit(enough)
        )
        with self.store.transaction() as session:
            return session.scalar(select(func.count()).select_from(samples.subquery())) or 0

    def _end(self, application: str) -> str:
        """The time after which there are no rows yet: those of the future never are."""
        wait = self.label_waits.get(application)
        return latest() if wait is None else ago(wait)


def _labels(
    store: Store, application: str, times: Sequence[str], within: timedelta | None
) -> dict[str, dict[str, bool]]:
    """Decision -> candidate -> the verdict that counts, of sampled requests made in these times.

    Args:
        store: Where they are.
        application: The application.
        times: When the requests were made.
        within: Only verdicts that count since at most so long after the request; None: all.
    """
    statement = (
        select(
            DecisionRow.created_at,
            VerdictRow.created_at,
            VerdictRow.decision_id,
            VerdictRow.candidate,
            VerdictRow.correct,
        )
        .join(DecisionRow, DecisionRow.id == VerdictRow.decision_id)
        .where(DecisionRow.shadow, DecisionRow.application == application, VerdictRow.counts)
        .where(DecisionRow.created_at >= min(times, default=_EVER))
        .where(DecisionRow.created_at <= max(times, default=""))
    )
    found: dict[str, dict[str, bool]] = {}
    with store.transaction() as session:
        for made_at, counts_since, decision_id, candidate, correct in session.execute(statement):
            taken = datetime.fromisoformat(counts_since) - datetime.fromisoformat(made_at)
            if within is None or taken <= within:
                found.setdefault(decision_id, {})[candidate] = correct
    return found


def _lowest_rate(store: Store, application: str, since: str) -> float:
    """The lowest sampling rate that was in force, whether a request was drawn at it or not."""
    statement = select(func.min(DecisionRow.sampling_rate)).where(
        DecisionRow.application == application,
        DecisionRow.created_at >= since,
        DecisionRow.sampling_rate > 0.0,
    )
    with store.transaction() as session:
        return session.scalar(statement) or 1.0


def _comparisons(rows: Sequence[AnswerRow], pool: Sequence[str]) -> BoolArray:
    """Which answers of each row are equal, shape (n, K, K)."""
    equal = np.zeros((len(rows), len(pool), len(pool)), dtype=bool)
    equal[:] = np.eye(len(pool), dtype=bool)
    column = {name: number for number, name in enumerate(pool)}
    for found, row in zip(equal, rows, strict=True):
        for name, others in row.equal.items():
            for other in others:
                one, two = column[name], column[other]
                found[one, two] = found[two, one] = True
    return equal


def _could_be_a_row(decision: DecisionRecord, pool: Sequence[str], later: bool | None) -> bool:
    reasons = [each.partition(":") for each in decision.reasons]
    if later is None:
        later = is_later_turn(decision.reasons)
    down = [name for reason, _, name in reasons if reason == Reason.CANDIDATE_DOWN]
    return not later and is_whole_but_for_outages(decision.pool, down, pool)
