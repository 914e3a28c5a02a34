"""Decision store: the tables of decisions and verdicts, and retention. Blocks: never on the loop.

What is computed over all decisions of a calibration is in ``statistics.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    String,
    and_,
    delete,
    exists,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Session

from app.errors import NotFound
from app.monitoring.decisions.record import DecisionRecord
from app.store import Store, now
from app.store.engine import begin_writing, insert_new, lock
from app.store.tables import QUERY_KEY, DecisionRow, VerdictRow
from app.utc import ago, latest

log = logging.getLogger(__name__)

_CHUNK: Final = 1_000  # rows deleted in one transaction
UNCALIBRATED: Final = ""  # in the column of calibrations, which is never null


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Feedback on one candidate's answer."""

    correct: bool
    counts: bool  # False: from a data key, and waiting for an admin to accept it
    key: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision with its feedback."""

    decision: DecisionRecord
    verdicts: Mapping[str, Verdict]  # by candidate, in the order of the pool
    judged: bool  # as a member of the shadow sample
    loss: float | None

    @property
    def counted(self) -> dict[str, bool]:
        """The verdicts that count."""
        return {name: each.correct for name, each in self.verdicts.items() if each.counts}

    @property
    def complete(self) -> bool:
        """It is in the shadow sample, and every candidate has a verdict that counts."""
        sampled = self.decision.shadow_rate is not None
        return sampled and self.counted.keys() == set(self.decision.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDecision:
    """A shadow decision that the drift alarms bet on, with its label where it came.

    Attributes:
        at: Its place in the order of decisions: its time and its id.
        fingerprint: Of its query.
        judged: Its label came, in time to count or not.
        loss: None: it does not count, or there is no label that counts.
        critical_score: None: there is no label that counts.
    """

    at: tuple[str, str]
    fingerprint: str
    judged: bool
    loss: float | None
    critical_score: float | None


class DecisionStore:
    """The queries on the store's tables; each method but ``run`` is one transaction.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.run = store.run
        self.is_shared = store.is_shared

    def add(
        self,
        decisions: Sequence[DecisionRecord],
        ordinary: Sequence[bool],
        is_watched: Callable[[DecisionRecord], bool] = lambda _: False,
    ) -> set[tuple[str, str]]:
        """Insert decisions; returns those of their queries that another gateway has stored already.

        A query is an application and a fingerprint. Decisions that are known to be repeated are not
        looked up.

        A decision that is stored already stays as it is: a gateway that could not learn whether its
        transaction was committed writes the same decisions again.

        Args:
            decisions: The decisions.
            ordinary: Which of them count for the risk of their calibration.
            is_watched: Whether the drift alarms bet on one, once it is known to be a repeat.
        """
        with self._store.transaction() as session:
            shared = self._store.is_shared
            repeated = self._repeated(session, decisions) if shared else set[tuple[str, str]]()
            marked = marked_repeats(decisions, repeated)
            rows = [
                _row(each, flag) | {"watched": is_watched(known)}
                for each, flag, known in zip(decisions, ordinary, marked, strict=True)
            ]
            insert_new(session, DecisionRow, rows)
        return repeated

    def get(self, decision_id: str) -> StoredDecision:
        """One decision. Raises :class:`NotFound`."""
        with self._store.transaction() as session:
            return _stored(session, decision_id)

    def add_verdicts(
        self,
        decision_id: str,
        new_verdicts: Callable[[StoredDecision], Mapping[str, bool]],
        *,
        key: str,
        counts: bool,
    ) -> tuple[StoredDecision, int]:
        """Write verdicts over those that wait; returns the decision then, and how many were new.

        Args:
            decision_id: The decision.
            new_verdicts: Returns which verdicts to write in view of those that are stored, or
                raises. The decision is locked meanwhile.
            key: The name of the key that gives them.
            counts: Whether they count at once.

        Raises:
            NotFound: The decision is not stored.
        """
        with self._store.transaction() as session:
            begin_writing(session)
            _find(session, decision_id, lock=True)
            new = new_verdicts(_stored(session, decision_id))
            for candidate, correct in new.items():
                session.merge(
                    VerdictRow(
                        decision_id=decision_id,
                        candidate=candidate,
                        correct=correct,
                        counts=counts,
                        key=key,
                        created_at=now(),
                    )
                )
            session.flush()
            return _stored(session, decision_id), len(new)

    def accept(self, decision_ids: Sequence[str]) -> list[StoredDecision]:
        """Let the verdicts that wait count, of all these decisions or of none.

        Raises:
            NotFound: One of them is not stored.
        """
        with self._store.transaction() as session:
            begin_writing(session)
            for decision_id in sorted(decision_ids):  # one order of locks: no deadlock
                _find(session, decision_id, lock=True)
                waits = (VerdictRow.decision_id == decision_id) & ~VerdictRow.counts
                # It is a label since now: bets count labels by their time.
                accepted = update(VerdictRow).where(waits)
                session.execute(accepted.values(counts=True, created_at=now()))
            session.flush()
            return [_stored(session, decision_id) for decision_id in decision_ids]

    def set_loss(
        self,
        decision: DecisionRecord,
        loss: float | None,
        *,
        critical_score: float | None = None,
        once: bool = True,
    ) -> None:
        """Mark a shadow decision as judged.

        Args:
            decision: The decision.
            loss: Its loss; None if it does not count.
            critical_score: None: there is no label that counts for the drift alarms.
            once: A query has one loss, however often it is judged.
        """
        with self._store.transaction() as session:
            self.set_loss_in(session, decision, loss, critical_score=critical_score, once=once)

    def set_loss_in(
        self,
        session: Session,
        decision: DecisionRecord,
        loss: float | None,
        *,
        critical_score: float | None = None,
        once: bool = True,
    ) -> None:
        """:meth:`set_loss` within a transaction.

        With ``once`` a query has one loss, however many gateways sampled it: it is locked, and the
        loss is dropped if another of its decisions has one.
        """
        if loss is not None and once and self._store.is_shared:
            key = _query_key(decision)
            lock(session, key)
            has_loss = exists().where(
                _is_on(key),
                DecisionRow.loss.is_not(None),
                DecisionRow.id != decision.decision_id,
            )
            if session.scalar(select(has_loss)):
                loss = critical_score = None
        unjudged = (DecisionRow.id == decision.decision_id) & ~DecisionRow.judged
        values = {"judged": True, "loss": loss, "critical_score": critical_score}
        session.execute(update(DecisionRow).where(unjudged).values(values))

    def watched_in(
        self,
        session: Session,
        calibration_ids: Sequence[str],
        application: str,
        after: tuple[str, str],
        limit: int,
    ) -> list[WatchedDecision]:
        """The first decisions after a place on which the drift alarms bet, in order.

        None of the future: a clock that was ahead made them, and later ones would be before them.

        Args:
            session: The transaction.
            calibration_ids: The calibrations that made them.
            application: Their application.
            after: The time and the id of a decision.
            limit: The largest number.
        """
        place = DecisionRow.created_at, DecisionRow.id
        found = session.execute(
            select(
                *place,
                DecisionRow.fingerprint,
                DecisionRow.judged,
                DecisionRow.loss,
                DecisionRow.critical_score,
            )
            .where(_watched(calibration_ids, application))
            .where(tuple_(*place) > tuple_(*(literal(each) for each in after)))
            .where(DecisionRow.created_at <= latest())
            .order_by(*place)
            .limit(limit)
        )
        return [
            WatchedDecision(
                at=(created_at, decision_id),
                fingerprint=fingerprint or "",
                judged=judged,
                loss=loss,
                critical_score=critical_score,
            )
            for created_at, decision_id, fingerprint, judged, loss, critical_score in found
        ]

    def oldest_of_newest_in(
        self, session: Session, calibration_ids: Sequence[str], application: str, count: int
    ) -> str:
        """The time before which all but the newest watched decisions are; empty: there are none."""
        created_at = DecisionRow.created_at
        newest = select(created_at).where(_watched(calibration_ids, application))
        return session.scalar(newest.order_by(created_at.desc()).offset(count).limit(1)) or ""

    def past_limits(self, keep_days: float | None, keep_rows: int) -> str | None:
        """The time up to which decisions are past the retention limits; None: none is.

        Args:
            keep_days: The age in days up to which decisions are kept; None: any age.
            keep_rows: The number of the newest decisions that are kept.
        """
        created_at = DecisionRow.created_at
        expiry = "" if keep_days is None else ago(timedelta(days=keep_days))
        surplus = select(created_at).order_by(created_at.desc()).offset(keep_rows).limit(1)
        with self._store.transaction() as session:
            up_to = max(expiry, session.scalar(surplus) or "")
            oldest = session.scalar(select(func.min(created_at)))
        return up_to if oldest is not None and oldest <= up_to else None

    def prune(self, up_to: str) -> int:
        """Delete some decisions up to a time, with their verdicts.

        Deletes at most 1,000 at a time, so that other transactions do not wait long.

        Returns:
            How many were deleted; 0 when none is left to delete.
        """
        with self._store.transaction() as session:
            # Rows that another transaction has locked (another gateway prunes, or feedback comes
            # in) are skipped: without waiting there is no deadlock.
            chunk = select(DecisionRow.id).where(DecisionRow.created_at <= up_to).limit(_CHUNK)
            ids = session.scalars(chunk.with_for_update(skip_locked=True)).all()
            session.execute(delete(DecisionRow).where(DecisionRow.id.in_(ids)))
        return len(ids)

    def _repeated(
        self, session: Session, decisions: Sequence[DecisionRecord]
    ) -> set[tuple[str, str]]:
        """New queries of which another decision by the same calibration is stored.

        Of each it reads the first such decision, however many there are.
        """
        new = {
            _query_key(each): (each.application, each.fingerprint)
            for each in decisions
            if not each.repeated
        }
        if not new:
            return set()
        queries = func.unnest(literal([*new], ARRAY(String))).column_valued("queries")
        is_stored = exists().where(
            _is_on(queries),
            DecisionRow.id.not_in({each.decision_id for each in decisions}),
        )
        return {new[key] for key in session.scalars(select(queries).where(is_stored))}


def _watched(calibration_ids: Sequence[str], application: str) -> ColumnElement[bool]:
    of_it = DecisionRow.calibration_id.in_(calibration_ids), DecisionRow.application == application
    return and_(*of_it, DecisionRow.watched)


def marked_repeats(
    decisions: Sequence[DecisionRecord], repeated: Collection[tuple[str, str]]
) -> list[DecisionRecord]:
    """The decisions, with those marked as repeats whose application and fingerprint are listed."""
    return [
        replace(each, repeated=True) if (each.application, each.fingerprint) in repeated else each
        for each in decisions
    ]


def _is_on(key: str | ColumnElement[Any]) -> ColumnElement[bool]:
    """The condition that a stored decision is on the query with this key."""
    stored = literal_column(QUERY_KEY, String)
    return stored == key


def _query_key(decision: DecisionRecord) -> str:
    """As `QUERY_KEY` is in the table."""
    calibration_id = decision.calibration_id or UNCALIBRATED
    return f"{decision.fingerprint} {calibration_id} {decision.application}"


def unknown_decision(decision_id: str) -> NotFound:
    """The error for a decision that is not stored, or that the caller may not see."""
    return NotFound(
        f"no decision {decision_id[:128]!r}: it was never made, is no longer kept, or is another "
        "key's",
        code="unknown_decision",
        param="decision_id",
    )


def _row(decision: DecisionRecord, ordinary: bool) -> dict[str, Any]:
    stored = decision.stored
    return {
        "id": decision.decision_id,
        "created_at": decision.created_at,
        "calibration_id": decision.calibration_id or UNCALIBRATED,
        "key": decision.key,
        "selected": stored.selected,
        "null_selected": decision.null_selected,
        "ordinary": ordinary,
        "shadow": decision.shadow_rate is not None,
        "sampling_rate": decision.sampling_rate,
        "judged": False,
        "loss": None,
        "document": decision.document(),
        "neighbours": stored.neighbours,
        "fingerprint": decision.fingerprint,
        "application": decision.application,
    }


def _find(session: Session, decision_id: str, *, lock: bool = False) -> DecisionRow:
    row = session.get(DecisionRow, decision_id, with_for_update=lock or None)
    if row is None:
        raise unknown_decision(decision_id)
    return row


def _stored(session: Session, decision_id: str) -> StoredDecision:
    row = _find(session, decision_id)
    near = row.neighbours
    ids = None if near is None else tuple(np.frombuffer(near, dtype="<u4").tolist())
    decision = DecisionRecord.from_document(row.document, ids)
    verdicts = {
        each.candidate: Verdict(
            correct=each.correct, counts=each.counts, key=each.key, created_at=each.created_at
        )
        for each in session.scalars(select(VerdictRow).where(VerdictRow.decision_id == row.id))
    }
    return StoredDecision(
        decision=decision,
        verdicts={name: verdicts[name] for name in decision.pool if name in verdicts},
        judged=row.judged,
        loss=row.loss,
    )
