"""Database tables. A change here needs a migration and a new version: see ``schema.py``."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Dialect, ForeignKey, Index, LargeBinary, String, TypeDecorator, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

CALIBRATION_ID: Final = String(64)
# The query of a decision, as one value: of several columns PostgreSQL's planner may look up any in
# an index, and then read all rows that have it.
QUERY_KEY: Final = "(fingerprint || ' ' || calibration_id || ' ' || application)"


class Base(DeclarativeBase):
    """The metadata of all tables."""


_AMOUNT_DIGITS: Final = 40


class Amount(TypeDecorator[int]):
    """An amount of :mod:`racer_core.prices`: the integers of SQL have too few digits for it."""

    impl = String(_AMOUNT_DIGITS)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        """As decimal digits. Raises ValueError where there are too many for a row."""
        del dialect
        if value is not None and not -(10 ** (_AMOUNT_DIGITS - 1)) < value < 10**_AMOUNT_DIGITS:
            raise ValueError("an amount has more digits than a row of the store")
        return None if value is None else str(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> int | None:
        """From decimal digits."""
        del dialect
        return None if value is None else int(value)


class CalibrationRow(Base):
    """One calibration, as ``app/store/calibration_record.py`` encodes it."""

    __tablename__ = "calibrations"

    id: Mapped[str] = mapped_column(CALIBRATION_ID, primary_key=True)
    created_at: Mapped[str] = mapped_column(String(32), index=True)
    artifact: Mapped[str] = mapped_column(String(64))
    document: Mapped[str]  # pool, options, evidence, notes: JSON
    arrays: Mapped[bytes] = mapped_column(LargeBinary)  # scores, labels, fingerprints: npz
    digest: Mapped[str] = mapped_column(String(64))  # sha256 of all of the above
    # When it was first activated by its id, or began as a canary, after its figures were shown;
    # None: only the upload that made it activated it, if anything did.
    chosen_at: Mapped[str | None] = mapped_column(String(32))


class ActiveRow(Base):
    """The calibration that decides, one for each artifact and fleet.

    Gateways with a new artifact can then be started beside those with the old one: each follows
    its own.
    """

    __tablename__ = "active_calibrations"

    artifact: Mapped[str] = mapped_column(String(64), primary_key=True)
    calibration_id: Mapped[str] = mapped_column(ForeignKey("calibrations.id"))


class CanaryRow(Base):
    """The calibration that decides a share of the requests beside the active one."""

    __tablename__ = "canary_calibrations"

    artifact: Mapped[str] = mapped_column(String(64), primary_key=True)
    calibration_id: Mapped[str] = mapped_column(ForeignKey("calibrations.id"))
    share: Mapped[float]
    since: Mapped[str] = mapped_column(String(32))
    ended: Mapped[str | None]  # the alarm that ended it; None: it decides


class DecisionRow(Base):
    """One routed query. The columns are what is searched and counted; the rest is a document."""

    __tablename__ = "decisions"
    # What is counted over a million rows is counted in an index. An entry of PostgreSQL's has room
    # for a third of a page, which the names of a large set may not find there.
    __table_args__ = (
        Index(
            "decisions_by_set",
            *("calibration_id", "ordinary", "application", "selected", "null_selected"),
        ).ddl_if(dialect="sqlite"),
        Index("decisions_by_kind", "calibration_id", "ordinary").ddl_if(dialect="postgresql"),
        Index("decisions_by_sample", "calibration_id", "application", "shadow", "judged", "loss"),
        Index("decisions_by_time", "created_at", "application"),
        Index("decisions_by_rate", "application", "sampling_rate", "created_at"),
        Index(
            "decisions_by_bet",
            *("calibration_id", "application", "created_at", "id"),
            sqlite_where=text("watched = 1"),
            postgresql_where=text("watched"),
        ),
        # Queries that another gateway has seen; a single gateway keeps them in memory.
        Index("decisions_by_query", text(QUERY_KEY), "loss").ddl_if(dialect="postgresql"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[str] = mapped_column(String(32))
    calibration_id: Mapped[str] = mapped_column(CALIBRATION_ID)
    key: Mapped[str] = mapped_column(String(128))  # name of the API key
    selected: Mapped[str]  # the set in the order of the pool: JSON
    null_selected: Mapped[bool]
    ordinary: Mapped[bool]  # at the calibration's own alpha, score and pool: it counts for the risk
    shadow: Mapped[bool]  # all candidates were called
    judged: Mapped[bool]  # a shadow decision with a verdict on every candidate
    loss: Mapped[float | None]  # of a judged one; None where it does not count
    watched: Mapped[bool]  # a shadow decision that the drift alarms bet on
    critical_score: Mapped[float | None]  # of a judged one, ties broken; None: no verdicts in time
    document: Mapped[str]
    neighbours: Mapped[bytes | None] = mapped_column(LargeBinary)  # pattern ids, 4 bytes each
    fingerprint: Mapped[str | None] = mapped_column(String(64))  # keyed hash of the query
    application: Mapped[str] = mapped_column(String(256))
    sampling_rate: Mapped[float | None]  # in force for it; None where it could not be drawn


class VerdictRow(Base):
    """Whether one candidate's answer to a decision was right."""

    __tablename__ = "verdicts"

    decision_id: Mapped[str] = mapped_column(
        ForeignKey("decisions.id", ondelete="CASCADE"), primary_key=True
    )
    candidate: Mapped[str] = mapped_column(String(256), primary_key=True)
    correct: Mapped[bool]
    counts: Mapped[bool]  # False: a data key's, not yet accepted
    key: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[str] = mapped_column(String(32))


class SampleRow(Base):
    """What is kept of one decision of the shadow sample beside its record."""

    __tablename__ = "samples"

    decision_id: Mapped[str] = mapped_column(
        ForeignKey("decisions.id", ondelete="CASCADE"), primary_key=True
    )
    application: Mapped[str | None] = mapped_column(String(256), index=True)
    later: Mapped[bool]  # a turn after the first of a conversation
    conversation: Mapped[str | None] = mapped_column(String(64))  # keyed hash; None: a first turn
    classes: Mapped[str]  # candidate -> class of its answer, null without one: JSON
    digests: Mapped[str]  # candidate -> digest of what it was sent: JSON
    whole: Mapped[bool]  # every candidate was called: it can be labelled
    body: Mapped[bytes | None] = mapped_column(LargeBinary)  # request and answers, encrypted
    # Digest of what the configuration adds to requests and of when answers are equal.
    answer_setup: Mapped[str | None] = mapped_column(String(64))


class JudgementRow(Base):
    """A judge model's verdict on one candidate's answer. It counts for no risk."""

    __tablename__ = "judgements"

    decision_id: Mapped[str] = mapped_column(
        ForeignKey("decisions.id", ondelete="CASCADE"), primary_key=True
    )
    candidate: Mapped[str] = mapped_column(String(256), primary_key=True)
    judge: Mapped[str] = mapped_column(String(256), primary_key=True)  # name of the judge model
    correct: Mapped[bool]
    created_at: Mapped[str] = mapped_column(String(32))


class AnswerCalibrationRow(Base):
    """One calibration of the promise `same_answer`, as ``answer_calibrations.py`` encodes it.

    Of those of one setup and application the one that was activated last decides.
    """

    __tablename__ = "answer_calibrations"

    id: Mapped[str] = mapped_column(CALIBRATION_ID, primary_key=True)
    created_at: Mapped[str] = mapped_column(String(32), index=True)
    activated_at: Mapped[str | None] = mapped_column(String(32))
    answer_setup: Mapped[str] = mapped_column(String(64), index=True)
    application: Mapped[str] = mapped_column(String(256))
    document: Mapped[str]  # pool, evidence, number of lost rows: JSON
    arrays: Mapped[bytes] = mapped_column(LargeBinary)  # answer classes and keyed noise: npz


class SeenRowsRow(Base):
    """Labelled rows whose curve over alpha was shown, and the terms that were fixed before."""

    __tablename__ = "seen_rows"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)  # of the labelled rows
    seen_at: Mapped[str] = mapped_column(String(32), index=True)
    terms: Mapped[str]  # a JSON list
    sketch: Mapped[bytes] = mapped_column(LargeBinary)  # hashes of queries, ascending, 8 bytes each


class StoreKeyRow(Base):
    """A key of keyed hashes in other tables, made by the first gateway that needs it."""

    __tablename__ = "store_keys"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class WatchRow(Base):
    """The drift alarms of one application, fed by every gateway that decides with a calibration.

    The row without an application is that of a calibration without applications.
    """

    __tablename__ = "watches"

    calibration_id: Mapped[str] = mapped_column(
        ForeignKey("calibrations.id", ondelete="CASCADE"), primary_key=True
    )
    application: Mapped[str] = mapped_column(String(256), primary_key=True, default="")
    since: Mapped[str] = mapped_column(String(32))
    state: Mapped[str]
    raised: Mapped[str]  # the streams that alarmed: a JSON list, also in the state


class LimitRow(Base):
    """What gateways have spent of a limit in one period, less what came back."""

    __tablename__ = "limits"

    name: Mapped[str] = mapped_column(String(160), primary_key=True)
    period: Mapped[str] = mapped_column(String(10), primary_key=True)  # 2026-11, minute
    used: Mapped[int] = mapped_column(Amount)
    at: Mapped[float]  # seconds of the database's clock; 0: nothing was spent yet


class LeaseRow(Base):
    """What one gateway has spent of a limit in one period, and what it may spend."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(160), primary_key=True)
    period: Mapped[str] = mapped_column(String(10), primary_key=True)
    lease: Mapped[str] = mapped_column(String(32), primary_key=True)
    spent: Mapped[int] = mapped_column(Amount)
    reserved: Mapped[int] = mapped_column(Amount)  # by requests under way
    ceiling: Mapped[int] = mapped_column(Amount)  # of both together
    until: Mapped[float]  # then the lease ends, unless the gateway renews it
