"""Stored calibrations of the promise `same_answer`: answer classes of sampled requests. Blocks.

A record holds rows, not thresholds: policy and threshold of any reference, number of rounds, alpha
and smaller pool follow from them. Adding one deletes others of its
application: all but its newest ``KEPT``, the newest and the active one of each setup, and those to
which a stored decision refers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from sqlalchemy import delete, exists, func, select, text
from sqlalchemy.orm import Session

from app.errors import Conflict, NotFound, StoreDamaged
from app.store.calibrations import Store
from app.store.engine import begin_writing, notify
from app.store.tables import AnswerCalibrationRow, DecisionRow
from app.utc import following, now
from racer_core.errors import RacerError
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.types import BoolArray

KEPT: Final = 30  # newest records of an application
# What is added to the evidence of a stored record: when it was first so.
ALARM: Final = "alarm_at"
CHOSEN: Final = "chosen_at"  # activated by its id, after its figures were shown
MARKS: Final = (ALARM, CHOSEN)
_PARTS: Final = ("fitting", "rows")
_VERDICTS: Final = "verdicts of {}"  # name of the array, where there is a checker
_LABELS: Final = "labels of {}"  # name of the array, where misses are the loss
_EQUAL: Final = "equal of {}"  # name of the array, where answers are compared two by two
_IDS: Final = "ids of {}"  # name of the array
_COLUMNS: Final = (
    AnswerCalibrationRow.id,
    AnswerCalibrationRow.created_at,
    AnswerCalibrationRow.activated_at,
    AnswerCalibrationRow.answer_setup,
    AnswerCalibrationRow.application,
    AnswerCalibrationRow.document,
)


@dataclass(frozen=True, kw_only=True)
class AnswerCalibrationRecord:
    """Rows of answer classes that were drawn from one application's traffic.

    Attributes:
        id: Its id.
        created_at: UTC, ISO 8601.
        answer_setup: Digest of what the configuration adds to requests and of when answers are
            equal; under another one it says nothing.
        application: The application; empty where none is configured.
        fitting: The rows that fit policies.
        rows: The rows that calibrate thresholds.
        lost: Calibration rows without the answers of all candidates, which count as lost.
        salt: Key of the noise that breaks ties; empty: there is none.
        alpha: The risk level for which the rounds are tuned.
        prices: Price of a call of each candidate then, by which order and rounds are chosen; None:
            there were none.
        evidence: What was found when it was made.
        activated_at: When it was activated last; None: never.
    """

    id: str
    created_at: str
    answer_setup: str
    application: str
    fitting: AnswerClasses
    rows: AnswerClasses
    lost: int
    salt: bytes
    alpha: float
    prices: Mapping[str, float] | None = None
    evidence: Mapping[str, Any]
    activated_at: str | None = None

    @property
    def pool(self) -> tuple[str, ...]:
        """The candidates, in the order of the columns."""
        return self.rows.pool

    @property
    def refusal(self) -> str | None:
        """Why it decides nothing; None: it decides where it was activated last."""
        return self.evidence.get("refused")

    @property
    def is_chosen(self) -> bool:
        """Whether it was activated by its id, after its figures were shown."""
        return CHOSEN in self.evidence

    @property
    def counts_misses(self) -> bool:
        """Whether its rows have labels, and each has a right candidate."""
        return self.rows.labels is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCalibrationSummary:
    """A record without its rows."""

    id: str
    created_at: str
    activated_at: str | None
    active: bool  # it decides for its application under the configured setup
    application: str
    evidence: Mapping[str, Any]


class AnswerCalibrationStore:
    """The queries on the table; each method is one transaction.

    Every method raises :class:`app.errors.StoreError` when the store cannot be used.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.run = store.run

    def add(
        self,
        record: AnswerCalibrationRecord,
        *,
        activate: bool,
        expected_active_id: str | None = None,
    ) -> AnswerCalibrationRecord:
        """Store a record, and activate it in the same transaction if requested.

        Args:
            record: The record.
            activate: It shall decide.
            expected_active_id: The record that must decide until then; an empty one expects none.
                Of gateways that calibrate at the same time the first one wins.

        Returns:
            The record with its number among those of its application, of all setups (``ordinal``),
            by which it spends a part of the false-alarm probability: no two have the same.

        Raises:
            Conflict: ``expected_active_id`` is given, and another one decides.
        """
        document = {
            "pool": record.pool,
            "lost": record.lost,
            "alpha": record.alpha,
            "prices": record.prices,
        }
        given: dict[str, Any] = {
            called.format(name): array
            for name, part in zip(_PARTS, _parts(record), strict=True)
            for called, array in (
                (_VERDICTS, part.verdicts),
                (_LABELS, part.labels),
                (_EQUAL, None if part.equal is None else np.packbits(part.equal, axis=-1)),
            )
            if array is not None
        }
        ids: dict[str, Any] = {
            _IDS.format(name): np.array(part.fingerprints, dtype=np.bytes_)
            for name, part in zip(_PARTS, _parts(record), strict=True)
        }
        arrays = io.BytesIO()
        np.savez_compressed(
            arrays,
            fitting=record.fitting.classes,
            rows=record.rows.classes,
            salt=np.frombuffer(record.salt, np.uint8),
            **given,
            **ids,
        )
        with self._store.transaction() as session:
            _lock(session)
            if expected_active_id is not None:
                decides, _ = _active(session, record.answer_setup).get(record.application, ("", ""))
                if decides != expected_active_id:
                    raise Conflict("another calibration was activated meanwhile")
            evidence = {**record.evidence, "ordinal": _next_ordinal(session, record.application)}
            activated_at = _activated_at(session, record.application) if activate else None
            record = replace(record, evidence=evidence, activated_at=activated_at)
            notify(session)
            session.add(
                AnswerCalibrationRow(
                    id=record.id,
                    created_at=record.created_at,
                    activated_at=record.activated_at,
                    answer_setup=record.answer_setup,
                    application=record.application,
                    document=json.dumps(document | {"evidence": evidence}),
                    arrays=arrays.getvalue(),
                )
            )
            prune(session, record.application)
        return record

    def activate(self, calibration_id: str, answer_setup: str) -> None:
        """Make a stored record decide, and mark it as chosen unless it does already.

        Raises:
            NotFound: No such record.
            Conflict: It was made under another setup, or refused.
        """
        with self._store.transaction() as session:
            row = session.get(AnswerCalibrationRow, calibration_id)
            if row is None:
                raise _unknown(calibration_id)
            if row.answer_setup != answer_setup:
                raise Conflict(
                    f"calibration {calibration_id} was made for other candidates, parameters or "
                    "another equality of answers than are configured now: calibrate anew"
                )
            refusal = json.loads(row.document)["evidence"].get("refused")
            if refusal is not None:
                raise Conflict(f"calibration {calibration_id} decides nothing: {refusal}")
            notify(session)
            if _active(session, answer_setup).get(row.application, ("", ""))[0] != row.id:
                mark_chosen(row)
            row.activated_at = _activated_at(session, row.application)

    def active(self, answer_setup: str) -> dict[str, tuple[str, str]]:
        """Application -> id of the record that decides, and since when."""
        with self._store.transaction() as session:
            return _active(session, answer_setup)

    def raise_alarm(self, calibration_id: str, alarm_at: str) -> None:
        """Keep the time of a record's first alarm in its evidence; a deleted record has none."""
        with self._store.transaction() as session:
            row = session.get(AnswerCalibrationRow, calibration_id)
            if row is not None:
                _mark(row, ALARM, alarm_at)

    def record(self, calibration_id: str) -> AnswerCalibrationRecord:
        """One record with its rows. Raises :class:`NotFound`, :class:`StoreDamaged`."""
        with self._store.transaction() as session:
            row = session.get(AnswerCalibrationRow, calibration_id)
            if row is None:
                raise _unknown(calibration_id)
            return decoded(row)

    def summaries(self, answer_setup: str) -> list[AnswerCalibrationSummary]:
        """All records without their rows, newest first."""
        active = {calibration_id for calibration_id, _ in self.active(answer_setup).values()}
        newest_first = AnswerCalibrationRow.created_at.desc(), AnswerCalibrationRow.id
        with self._store.transaction() as session:
            rows = session.execute(select(*_COLUMNS).order_by(*newest_first)).all()
        return [_summary(row, active=row.id in active) for row in rows]


def mark_chosen(row: AnswerCalibrationRow) -> None:
    """Mark a record whose figures had a part in its activation; an earlier mark stays."""
    _mark(row, CHOSEN, now())


def _mark(row: AnswerCalibrationRow, mark: str, since: str) -> None:
    document = json.loads(row.document)
    if mark not in document["evidence"]:
        document["evidence"][mark] = since
        row.document = json.dumps(document)


def _lock(session: Session) -> None:
    """Let one transaction at a time store a record."""
    begin_writing(session)
    if session.connection().dialect.name == "postgresql":
        table = AnswerCalibrationRow.__tablename__
        session.execute(text(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))


def _activated_at(session: Session, application: str) -> str:
    """When a record is activated: the last one decides, so after all others of its application."""
    newest = select(func.max(AnswerCalibrationRow.activated_at)).where(
        AnswerCalibrationRow.application == application
    )
    return following(session.scalar(newest))


def _active(session: Session, answer_setup: str) -> dict[str, tuple[str, str]]:
    rows = session.execute(
        select(
            AnswerCalibrationRow.application,
            AnswerCalibrationRow.id,
            AnswerCalibrationRow.activated_at,
        )
        .where(AnswerCalibrationRow.answer_setup == answer_setup)
        .where(AnswerCalibrationRow.activated_at.is_not(None))
        .order_by(AnswerCalibrationRow.activated_at)
    )
    return {application: (found, since or "") for application, found, since in rows}


def _next_ordinal(session: Session, application: str) -> int:
    """One more than the highest of all setups, which share a false-alarm probability.

    Older records may be deleted, so their number says nothing.
    """
    documents = session.scalars(
        select(AnswerCalibrationRow.document).where(AnswerCalibrationRow.application == application)
    )
    return 1 + max((json.loads(each)["evidence"]["ordinal"] for each in documents), default=-1)


def prune(session: Session, application: str) -> None:
    """Delete an application's records that neither decide nor explain a stored decision."""
    newest_first = AnswerCalibrationRow.created_at.desc(), AnswerCalibrationRow.id.desc()
    found = session.execute(
        select(AnswerCalibrationRow.id, AnswerCalibrationRow.answer_setup)
        .where(AnswerCalibrationRow.application == application)
        .order_by(*newest_first)
    ).all()
    newest: dict[str, str] = {}  # of each setup; one of them has the highest ordinal
    for calibration_id, setup in found:
        newest.setdefault(setup, calibration_id)
    active = {_active(session, setup).get(application, ("", ""))[0] for setup in newest}
    old = {calibration_id for calibration_id, _ in found[KEPT:]} - active - {*newest.values()}
    refers = exists().where(DecisionRow.calibration_id == AnswerCalibrationRow.id)
    session.execute(
        delete(AnswerCalibrationRow).where(AnswerCalibrationRow.id.in_(old), ~refers),
        execution_options={"synchronize_session": False},
    )


def _parts(record: AnswerCalibrationRecord) -> tuple[AnswerClasses, AnswerClasses]:
    return record.fitting, record.rows


def decoded(row: AnswerCalibrationRow) -> AnswerCalibrationRecord:
    """The record of a stored row. Raises :class:`StoreDamaged`."""
    try:
        document = json.loads(row.document)
        with np.load(io.BytesIO(row.arrays), allow_pickle=False) as arrays:
            fitting, rows = (
                AnswerClasses(
                    pool=tuple(document["pool"]),
                    classes=arrays[name],
                    fingerprints=tuple(arrays[_IDS.format(name)].tolist()),
                    verdicts=arrays.get(_VERDICTS.format(name)),
                    labels=arrays.get(_LABELS.format(name)),
                    equal=_comparisons(arrays.get(_EQUAL.format(name)), document["pool"]),
                )
                for name in _PARTS
            )
            salt = arrays["salt"].tobytes()
        return AnswerCalibrationRecord(
            id=row.id,
            created_at=row.created_at,
            answer_setup=row.answer_setup,
            application=row.application,
            fitting=fitting,
            rows=rows,
            lost=document["lost"],
            salt=salt,
            alpha=document["alpha"],
            prices=document["prices"],
            evidence=document["evidence"],
            activated_at=row.activated_at,
        )
    except (KeyError, OSError, TypeError, ValueError, RacerError) as exc:
        raise StoreDamaged(f"calibration {row.id} cannot be read: calibrate anew") from exc


def _comparisons(packed: Any, pool: Sequence[str]) -> BoolArray | None:
    """Comparisons of a part's answers, (n, K, K), from their bits."""
    if packed is None:
        return None
    return np.unpackbits(packed, axis=-1, count=len(pool)).astype(bool)


def _summary(row: Any, *, active: bool) -> AnswerCalibrationSummary:
    evidence = json.loads(row.document)["evidence"]
    return AnswerCalibrationSummary(
        id=row.id,
        created_at=row.created_at,
        activated_at=row.activated_at,
        active=active and evidence.get("refused") is None,
        application=row.application,
        evidence=evidence,
    )


def _unknown(calibration_id: str) -> NotFound:
    return NotFound(f"no calibration {calibration_id[:128]!r}", code="calibration_not_found")
