"""Sample store: the tables of shadow samples and of judge models' verdicts. Blocks: use threads.

Whole requests and answers are stored encrypted, and only with a key. Everything else that is stored
of a sample contains no text of it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from sqlalchemy import ColumnElement, Row, Select, and_, case, exists, func, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from app.errors import StoredRequestsUnreadable
from app.ids import RANDOM_CHARS
from app.json_output import dump_json
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.store import unknown_decision
from app.monitoring.samples.record import (
    Sample,
    SampledDecision,
    SampledExchange,
    is_later_turn,
)
from app.store import Store, now
from app.store.encryption import Cipher
from app.store.engine import insert_into
from app.store.sampled_classes import classes_document, read_classes
from app.store.tables import DecisionRow, JudgementRow, SampleRow, VerdictRow
from app.utc import latest

PAGE: Final = 500  # decisions that one statement reads
_CAN_BE_SHOWN: Final[ColumnElement[bool]] = and_(SampleRow.body.is_not(None), SampleRow.whole)
CHECKED: Final = 100  # stored requests, to see whether a key is wrong


class SampleStore:
    """The queries on the tables; each method but ``run`` is one transaction, unless it says so.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.

    Args:
        store: The store.
        cipher: Encrypts requests and answers; None: they are not stored.
    """

    def __init__(self, store: Store, cipher: Cipher | None = None) -> None:
        self._store = store
        self._cipher = cipher
        self.run = store.run

    @property
    def stores_requests(self) -> bool:
        """Whether requests and answers are stored."""
        return self._cipher is not None

    def add(self, sample: Sample) -> bool:
        """Insert a sample; returns False where its decision is not stored, as after its retention.

        A sample that is stored already stays as it is.
        """
        row = self._row(sample)
        with self._store.transaction() as session:
            if session.get(DecisionRow, sample.decision_id) is None:
                return False
            session.execute(insert_into(session, SampleRow).on_conflict_do_nothing(), [row])
        return True

    def get(self, decision_id: str) -> SampledDecision:
        """One decision of the shadow sample.

        Raises:
            NotFound: It is not stored, or not in the sample.
        """
        with self._store.transaction() as session:
            rows = session.execute(_selected().where(DecisionRow.id == decision_id)).all()
            found = self._decoded(session, rows)
        if not found:
            raise unknown_decision(decision_id)
        return found[0]

    def rows(
        self, *, application: str | None = None, since: str | None = None
    ) -> Iterator[SampledDecision]:
        """Every decision of the shadow sample, oldest first, with one request in memory at a time.

        One transaction for each page of decisions, and one for each request.

        Args:
            application: Only its requests; None: those of all.
            since: Only decisions from then on: UTC, ISO 8601.
        """
        page = _of(_selected().options(defer(SampleRow.body, raiseload=True)), application, since)
        after: ColumnElement[bool] = true()
        while True:
            with self._store.transaction() as session:
                read = session.execute(page.where(after).limit(PAGE)).all()
                found = self._decoded(session, read, with_requests=False)
            for each in found:
                yield self._with_request(each)
            if len(read) < PAGE:
                return
            last = read[-1][0]
            after = or_(
                DecisionRow.created_at > last.created_at,
                and_(DecisionRow.created_at == last.created_at, DecisionRow.id > last.id),
            )

    def unlabelled(self, application: str, before: str) -> list[str]:
        """The decisions that wait for verdicts that count, oldest first.

        Args:
            application: Their application.
            before: Only decisions before this time, UTC, ISO 8601, or of the future: a clock that
                was ahead made them.
        """
        statement = (
            select(SampleRow.decision_id)
            .join(DecisionRow, DecisionRow.id == SampleRow.decision_id)
            .where(SampleRow.application == application, _CAN_BE_SHOWN, ~DecisionRow.judged)
            .where(or_(DecisionRow.created_at < before, DecisionRow.created_at > latest()))
            .order_by(DecisionRow.created_at)
        )
        with self._store.transaction() as session:
            return list(session.scalars(statement))

    def has_judgements(self, application: str | None = None, since: str | None = None) -> bool:
        """Whether any of these decisions has a judge model's verdict."""
        judged = select(JudgementRow.decision_id).join(
            DecisionRow, DecisionRow.id == JudgementRow.decision_id
        )
        with self._store.transaction() as session:
            return session.scalar(_of(judged, application, since).limit(1)) is not None

    def check_readable(self, application: str | None = None, since: str | None = None) -> None:
        """Check that the keys of this start are not altogether wrong.

        Raises:
            StoredRequestsUnreadable: They decrypt none of the newest ``CHECKED`` stored requests.
        """
        stored = (
            select(SampleRow.decision_id)
            .join(DecisionRow, DecisionRow.id == SampleRow.decision_id)
            .where(SampleRow.body.is_not(None))
            .order_by(DecisionRow.created_at.desc())
        )
        with self._store.transaction() as session:
            newest = list(session.scalars(_of(stored, application, since).limit(CHECKED)))
        if newest and all(self._read_exchange(each)[1] for each in newest):
            raise StoredRequestsUnreadable

    def decisions(self, decision_ids: Sequence[str]) -> Iterator[tuple[DecisionRecord, bool]]:
        """Sampled decisions, and which are later turns.

        One transaction for each page.
        """
        without_requests = _selected().options(defer(SampleRow.body, raiseload=True))
        for start in range(0, len(decision_ids), PAGE):
            page = DecisionRow.id.in_(decision_ids[start : start + PAGE])
            with self._store.transaction() as session:
                rows = session.execute(without_requests.where(page)).all()
                found = [
                    (each.document, None if sample is None else sample.later)
                    for each, sample in rows
                ]
            for document, later in found:
                decision = DecisionRecord.from_document(document, None)
                yield decision, is_later_turn(decision.reasons) if later is None else later

    def waiting(
        self,
        application: str | None = None,
        limit: int = 100,
        *,
        judge: str | None = None,
        since: str | None = None,
    ) -> tuple[list[SampledDecision], int]:
        """Samples with stored answers that wait for a label, and how many wait in all.

        For verdicts that count they come in random order, so that those that people label first are
        a random part; for a judge, oldest first. A sample without the answers of all candidates
        waits for none. One that cannot be decrypted is counted and not returned.

        Args:
            application: Only its requests; None: those of all.
            limit: The largest number of samples to return.
            judge: They wait for this judge model's verdicts; None: for verdicts that count.
            since: Returns only decisions from then on: UTC, ISO 8601. The others are counted, too.

        Raises:
            StoredRequestsUnreadable: As :meth:`check_readable`.
        """
        self.check_readable(application, since)
        is_labelled: ColumnElement[bool] = DecisionRow.judged.expression
        if judge is not None:
            is_labelled = exists().where(
                JudgementRow.decision_id == DecisionRow.id, JudgementRow.judge == judge
            )
        wanted = _selected().where(_CAN_BE_SHOWN, ~is_labelled)
        if application is not None:
            wanted = wanted.where(SampleRow.application == application)
        with self._store.transaction() as session:
            waits = wanted.with_only_columns(func.count(), maintain_column_froms=True)
            count = session.scalar(waits.order_by(None)) or 0
            if judge is None:
                wanted = wanted.order_by(None).order_by(_random_part(DecisionRow.id))
            if since is not None:
                wanted = wanted.where(DecisionRow.created_at >= since)
            found: list[SampledDecision] = []
            for offset in itertools.count(step=limit):
                page = session.execute(wanted.offset(offset).limit(limit)).all()
                found += [
                    each
                    for each in self._decoded(session, page)
                    if each.sample is None or not each.sample.is_unreadable
                ]
                if len(found) >= limit or len(page) < limit:
                    break
        return found[:limit], count

    def counts(self) -> dict[str | None, tuple[int, int]]:
        """Application -> samples that wait for verdicts that count, and samples that have them."""
        labelled: ColumnElement[bool] = DecisionRow.judged.expression
        waits = func.sum(case((and_(_CAN_BE_SHOWN, ~labelled), 1), else_=0))
        ended = func.sum(case((labelled, 1), else_=0))
        wanted = (
            select(SampleRow.application, waits, ended)
            .join(DecisionRow, DecisionRow.id == SampleRow.decision_id)
            .where(DecisionRow.shadow)
            .group_by(SampleRow.application)
        )
        with self._store.transaction() as session:
            return {name: (int(some), int(rest)) for name, some, rest in session.execute(wanted)}

    def add_judgements(self, decision_id: str, correct: Mapping[str, bool], *, judge: str) -> int:
        """Store a judge model's verdicts; those that it gave before stay. Returns how many are new.

        Raises:
            NotFound: The decision is not stored, or not in the sample.
        """
        rows = [
            {
                "decision_id": decision_id,
                "candidate": name,
                "judge": judge,
                "correct": right,
                "created_at": now(),
            }
            for name, right in correct.items()
        ]
        with self._store.transaction() as session:
            decision = session.get(DecisionRow, decision_id)
            if decision is None or not decision.shadow:
                raise unknown_decision(decision_id)
            insert = insert_into(session, JudgementRow).on_conflict_do_nothing()
            added = session.scalars(insert.returning(JudgementRow.candidate), rows).all()
        return len(added)

    def _decoded(
        self,
        session: Session,
        rows: Sequence[Row[DecisionRow, SampleRow | None]],
        *,
        with_requests: bool = True,
    ) -> list[SampledDecision]:
        """The rows with their verdicts."""
        decisions = [
            (DecisionRecord.from_document(each.document, None), sample) for each, sample in rows
        ]
        ids = [decision.decision_id for decision, _ in decisions]
        correct: dict[str, dict[str, bool]] = {}
        counted = select(VerdictRow).where(VerdictRow.decision_id.in_(ids), VerdictRow.counts)
        for verdict in session.scalars(counted):
            correct.setdefault(verdict.decision_id, {})[verdict.candidate] = verdict.correct
        judgements: dict[str, dict[str, dict[str, bool]]] = {}
        judged = select(JudgementRow).where(JudgementRow.decision_id.in_(ids))
        for each in session.scalars(judged.order_by(JudgementRow.judge)):
            of_decision = judgements.setdefault(each.decision_id, {})
            of_decision.setdefault(each.judge, {})[each.candidate] = each.correct
        return [
            SampledDecision(
                decision=decision,
                sample=None if sample is None else self._sample(sample, with_requests),
                correct=correct.get(decision.decision_id, {}),
                judgements=judgements.get(decision.decision_id, {}),
            )
            for decision, sample in decisions
        ]

    def _row(self, sample: Sample) -> dict[str, Any]:
        exchange = sample.exchange
        body = None
        if self._cipher is not None and exchange is not None:
            document = {
                "request": dict(exchange.request),
                "path": exchange.path,
                "answers": dict(exchange.answers),
                "calls": {name: dict(call) for name, call in exchange.calls.items()},
            }
            body = self._cipher.encrypt(dump_json(document), sample.decision_id)
        return {
            "decision_id": sample.decision_id,
            "application": sample.application,
            "later": sample.later,
            "conversation": sample.conversation,
            "classes": classes_document(sample.classes, sample.verdicts, sample.equal),
            "digests": dump_json(dict(sample.digests)).decode(),
            "whole": sample.whole,
            "body": body,
            "answer_setup": sample.answer_setup,
        }

    def _sample(self, row: SampleRow, with_request: bool) -> Sample:
        exchange, is_unreadable = None, False
        classes, verdicts, equal = read_classes(row.classes)
        if with_request:
            exchange, is_unreadable = self._exchange(row.decision_id, row.body)
        return Sample(
            decision_id=row.decision_id,
            application=row.application,
            later=row.later,
            conversation=row.conversation,
            classes=classes,
            verdicts=verdicts,
            equal=equal,
            digests=json.loads(row.digests),
            whole=row.whole,
            exchange=exchange,
            is_unreadable=is_unreadable,
            answer_setup=row.answer_setup,
        )

    def _with_request(self, sampled: SampledDecision) -> SampledDecision:
        """A decision that was read without its request."""
        if sampled.sample is None:
            return sampled
        exchange, is_unreadable = self._read_exchange(sampled.sample.decision_id)
        sample = replace(sampled.sample, exchange=exchange, is_unreadable=is_unreadable)
        return replace(sampled, sample=sample)

    def _read_exchange(self, decision_id: str) -> tuple[SampledExchange | None, bool]:
        """As :meth:`_exchange`, in a transaction of its own."""
        if self._cipher is None:
            return None, False
        of_it = SampleRow.decision_id == decision_id
        with self._store.transaction() as session:
            body = session.scalar(select(SampleRow.body).where(of_it))
        return self._exchange(decision_id, body)

    def _exchange(
        self, decision_id: str, body: bytes | None
    ) -> tuple[SampledExchange | None, bool]:
        """A stored request with its answers; and whether it cannot be decrypted."""
        if self._cipher is None or body is None:
            return None, False
        try:
            return SampledExchange(**json.loads(self._cipher.decrypt(body, decision_id))), False
        except StoredRequestsUnreadable:
            return None, True


def _random_part(decision_id: InstrumentedAttribute[str]) -> ColumnElement[str]:
    """The end of an id, which does not depend on its time."""
    return func.substr(decision_id, func.length(decision_id) - RANDOM_CHARS + 1)


def _selected() -> Select[DecisionRow, SampleRow | None]:
    """Sampled decisions with what is kept beside them, oldest first."""
    statement = (
        select(DecisionRow, SampleRow)
        .outerjoin(SampleRow, SampleRow.decision_id == DecisionRow.id)
        .where(DecisionRow.shadow)
        .order_by(DecisionRow.created_at, DecisionRow.id)
    )
    return cast("Select[DecisionRow, SampleRow | None]", statement)


Selected = TypeVar("Selected", bound=Select[*tuple[Any, ...]])


def _of(statement: Selected, application: str | None, since: str | None) -> Selected:
    """The statement for decisions of one application, or of all, from a time on."""
    if application is not None:
        statement = statement.where(DecisionRow.application == application)
    return statement if since is None else statement.where(DecisionRow.created_at >= since)
