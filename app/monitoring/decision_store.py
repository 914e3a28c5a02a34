"""Decisions and verdicts, as they are kept. Blocks: never on the loop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
from sqlalchemy import CursorResult, delete, false, func, select, update
from sqlalchemy.orm import Session

from app.errors import NotFound
from app.json_output import dumped
from app.monitoring.decision_record import DecisionRecord
from app.store import Store, now
from app.store.engine import begin_writing, insert_into
from app.store.tables import DecisionRow, VerdictRow

_CHUNK = 1_000  # rows deleted in one transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What somebody said of one candidate's answer."""

    correct: bool
    counts: bool  # False: a data key's, which waits for an admin
    key: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision and all that is known of it."""

    note: DecisionRecord
    verdicts: Mapping[str, Verdict]  # by candidate, in the order of the pool
    judged: bool  # as a member of the shadow sample
    loss: float | None

    @property
    def counted(self) -> dict[str, bool]:
        """The verdicts that count."""
        return {name: each.correct for name, each in self.verdicts.items() if each.counts}

    @property
    def complete(self) -> bool:
        """A shadow decision of which every candidate has a verdict that counts."""
        return self.note.shadow_rate is not None and self.counted.keys() == set(self.note.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCount:
    """How many decisions chose one set, and nobody said anything of them."""

    selected: tuple[str, ...]
    null_selected: bool
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVerdicts:
    """One decision's set, and what is known of it."""

    selected: tuple[str, ...]
    null_selected: bool
    verdicts: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCounts:
    """How many decisions of one calibration are kept."""

    decisions: int
    shadow: int
    judged: int


class DecisionStore:
    """The queries on the store's tables; each method but ``run`` is one transaction.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.run = store.run
        self.is_shared = store.is_shared

    def add(self, notes: Sequence[DecisionRecord], ordinary: Sequence[bool]) -> set[str]:
        """Keep decisions, and return which of their queries came to another gateway before.

        Those that are kept already are left as they are: a gateway that was not told whether its
        decisions were written writes them again.

        Args:
            notes: The decisions.
            ordinary: Which of them count for the risk of their calibration.
        """
        rows = [_row(note, flag) for note, flag in zip(notes, ordinary, strict=True)]
        with self._store.transaction() as session:
            before = self._came_before(session, notes) if self._store.is_shared else set[str]()
            insert = insert_into(session, DecisionRow)
            session.execute(insert.on_conflict_do_nothing(), rows)
        return before

    def known(self, decision_id: str) -> StoredDecision:
        """One decision. Raises :class:`NotFound`."""
        with self._store.transaction() as session:
            return _known(session, decision_id)

    def say(
        self,
        decision_id: str,
        fresh: Callable[[StoredDecision], Mapping[str, bool]],
        *,
        key: str,
        counts: bool,
    ) -> tuple[StoredDecision, int]:
        """Write verdicts over those that wait; return what is known then, and how many were new.

        Args:
            decision_id: The decision.
            fresh: Says what is new in view of what is known, or refuses; while it does, nobody
                else can say anything of the decision.
            key: Whose verdicts they are.
            counts: Whether they count at once.

        Raises:
            NotFound: The decision is not kept.
        """
        with self._store.transaction() as session:
            begin_writing(session)
            _find(session, decision_id, alone=True)
            new = fresh(_known(session, decision_id))
            for candidate, right in new.items():
                session.merge(
                    VerdictRow(
                        decision_id=decision_id,
                        candidate=candidate,
                        correct=right,
                        counts=counts,
                        key=key,
                        created_at=now(),
                    )
                )
            session.flush()
            return _known(session, decision_id), len(new)

    def accept(self, decision_ids: Sequence[str]) -> list[StoredDecision]:
        """Let the verdicts that wait count, of all these decisions or of none.

        Raises:
            NotFound: One of them is not kept.
        """
        with self._store.transaction() as session:
            begin_writing(session)
            for decision_id in sorted(decision_ids):  # two that lock in one order do not meet
                _find(session, decision_id, alone=True)
                of_it = VerdictRow.decision_id == decision_id
                session.execute(update(VerdictRow).where(of_it).values(counts=True))
            session.flush()
            return [_known(session, decision_id) for decision_id in decision_ids]

    def judge(self, note: DecisionRecord, loss: float | None) -> None:
        """Note that all is known of a shadow decision, and its loss; None where none counts."""
        with self._store.transaction() as session:
            self.judge_in(session, note, loss)

    def judge_in(self, session: Session, note: DecisionRecord, loss: float | None) -> bool:
        """The same as part of a transaction; returns whether the loss counts, and is new.

        One query has one loss, however many gateways drew it: the decisions of it are locked, and
        what another did is seen.
        """
        if loss is not None and self._store.is_shared:
            same = (
                select(DecisionRow.id, DecisionRow.loss)
                .where(DecisionRow.calibration_id == note.calibration_id)
                .where(DecisionRow.fingerprint == note.fingerprint)
                .order_by(DecisionRow.id)
                .with_for_update()
            )
            if any(
                counted is not None and each != note.decision_id
                for each, counted in session.execute(same)
            ):
                loss = None
        fresh = (DecisionRow.id == note.decision_id) & ~DecisionRow.judged
        statement = update(DecisionRow).where(fresh).values(judged=True, loss=loss)
        written = cast("CursorResult[Any]", session.execute(statement)).rowcount == 1
        return written and loss is not None

    def counts(self, calibration_id: str) -> DecisionCounts:
        """How many decisions of a calibration are kept."""
        of_it = DecisionRow.calibration_id == calibration_id
        with self._store.transaction() as session:

            def count(*conditions: Any) -> int:
                return session.scalar(select(func.count()).where(of_it, *conditions)) or 0

            return DecisionCounts(
                decisions=count(),
                shadow=count(DecisionRow.shadow),
                judged=count(DecisionRow.shadow, DecisionRow.judged),
            )

    def served(self, calibration_id: str) -> tuple[list[SetCount], list[SetVerdicts]]:
        """The ordinary decisions of a calibration, without and with verdicts that count."""
        ordinary = (DecisionRow.calibration_id == calibration_id) & DecisionRow.ordinary
        chosen = DecisionRow.selected, DecisionRow.null_selected
        by_set = select(*chosen, func.count()).where(ordinary).group_by(*chosen)
        # An expression hides the index: from the few verdicts to their decisions is the short way.
        of_it = DecisionRow.calibration_id.concat("") == calibration_id
        said = (
            select(DecisionRow.id, *chosen, VerdictRow.candidate, VerdictRow.correct)
            .join(VerdictRow, VerdictRow.decision_id == DecisionRow.id)
            .where(of_it, DecisionRow.ordinary, VerdictRow.counts)
        )
        sets: dict[str, tuple[str, bool]] = {}
        verdicts: dict[str, dict[str, bool]] = {}
        with self._store.transaction() as session:
            for decision_id, selected, null, candidate, correct in session.execute(said):
                sets[decision_id] = (selected, null)
                verdicts.setdefault(decision_id, {})[candidate] = correct
            totals = Counter(
                {(selected, null): count for selected, null, count in session.execute(by_set)}
            )
        unjudged = [
            SetCount(selected=tuple(json.loads(names)), null_selected=null, count=count)
            for (names, null), count in (totals - Counter(sets.values())).items()
        ]
        judged = [
            SetVerdicts(
                selected=tuple(json.loads(names)), null_selected=null, verdicts=verdicts[key]
            )
            for key, (names, null) in sets.items()
        ]
        return unjudged, judged

    def losses(self, calibration_id: str) -> list[float]:
        """The losses of a calibration's shadow decisions that count."""
        of_it = DecisionRow.calibration_id == calibration_id
        with self._store.transaction() as session:
            found = session.scalars(
                select(DecisionRow.loss).where(of_it, DecisionRow.loss.is_not(None))
            )
            return [loss for loss in found if loss is not None]

    def shadow(
        self, calibration_ids: Sequence[str]
    ) -> list[tuple[DecisionRecord, dict[str, bool]]]:
        """The judged shadow decisions of these calibrations with their verdicts, oldest first."""
        wanted = DecisionRow.calibration_id.in_(calibration_ids), DecisionRow.judged
        documents = (
            select(DecisionRow.id, DecisionRow.document)
            .where(*wanted)
            .order_by(DecisionRow.created_at, DecisionRow.id)
        )
        said = (
            select(VerdictRow.decision_id, VerdictRow.candidate, VerdictRow.correct)
            .join(DecisionRow, DecisionRow.id == VerdictRow.decision_id)
            .where(*wanted)
        )
        verdicts: dict[str, dict[str, bool]] = {}
        with self._store.transaction() as session:
            kept = session.execute(documents).all()
            for decision_id, candidate, correct in session.execute(said):
                verdicts.setdefault(decision_id, {})[candidate] = correct
        return [
            (DecisionRecord.from_document(document, None), verdicts[decision_id])
            for decision_id, document in kept
            if decision_id in verdicts  # else it was deleted between the two
        ]

    def prune(self, keep_days: float, keep_rows: int) -> int:
        """Delete some of what is too old or too much, with its verdicts, and return how many.

        A part at a time, so that nobody waits long for the store.
        """
        created_at = DecisionRow.created_at
        expired = datetime.now(UTC) - timedelta(days=keep_days)
        old = created_at < expired.isoformat(timespec="microseconds")
        with self._store.transaction() as session:
            surplus = session.scalar(
                select(created_at).order_by(created_at.desc()).offset(keep_rows).limit(1)
            )
            too_much = false() if surplus is None else created_at <= surplus
            # Who waits for nobody while it holds decisions is in no deadlock: those that another
            # gateway deletes or somebody judges just now are passed over.
            goes = select(DecisionRow.id).where(old | too_much).limit(_CHUNK)
            ids = list(session.scalars(goes.with_for_update(skip_locked=True)))
            session.execute(delete(DecisionRow).where(DecisionRow.id.in_(ids)))
        return len(ids)

    def _came_before(self, session: Session, notes: Sequence[DecisionRecord]) -> set[str]:
        """Which of these queries another decision was made of by the same calibration."""
        prints = {note.fingerprint for note in notes}
        own = {note.decision_id for note in notes}
        found = select(DecisionRow.fingerprint).where(
            DecisionRow.fingerprint.in_(prints),
            DecisionRow.calibration_id.in_({note.calibration_id for note in notes}),
            DecisionRow.id.not_in(own),
        )
        return {each for each in session.scalars(found) if each is not None}


def _row(note: DecisionRecord, ordinary: bool) -> dict[str, Any]:
    near = note.neighbours
    return {
        "id": note.decision_id,
        "created_at": note.created_at,
        "calibration_id": note.calibration_id,
        "key": note.key,
        "selected": dumped(note.selected).decode(),
        "null_selected": note.null_selected,
        "ordinary": ordinary,
        "shadow": note.shadow_rate is not None,
        "judged": False,
        "loss": None,
        "document": note.document(),
        "neighbours": None if near is None else np.array(near, dtype="<u4").tobytes(),
        "fingerprint": note.fingerprint,
    }


def _find(session: Session, decision_id: str, *, alone: bool = False) -> DecisionRow:
    row = session.get(DecisionRow, decision_id, with_for_update=alone or None)
    if row is None:
        raise unknown_decision(decision_id)
    return row


def unknown_decision(decision_id: str) -> NotFound:
    """The error for a decision that is not kept, or that the caller may not see."""
    return NotFound(
        f"no decision {decision_id[:128]!r}: it was never made, is no longer kept, or is another "
        "key's",
        code="unknown_decision",
        param="decision_id",
    )


def _known(session: Session, decision_id: str) -> StoredDecision:
    row = _find(session, decision_id)
    near = row.neighbours
    ids = None if near is None else tuple(np.frombuffer(near, dtype="<u4").tolist())
    note = DecisionRecord.from_document(row.document, ids)
    said = {
        each.candidate: Verdict(
            correct=each.correct, counts=each.counts, key=each.key, created_at=each.created_at
        )
        for each in session.scalars(select(VerdictRow).where(VerdictRow.decision_id == row.id))
    }
    verdicts = {name: said[name] for name in note.pool if name in said}
    return StoredDecision(note=note, verdicts=verdicts, judged=row.judged, loss=row.loss)
