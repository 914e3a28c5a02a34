"""Traffic of `same_answer` in process: sampled requests, and the calibrator that follows them."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import select

from app.access.typical_usage import TypicalUsage
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.store import DecisionStore
from app.routing.decision import ChosenBy
from app.same_answer.calibrations import Staleness
from app.same_answer.calibrator import AnswerCalibrator
from app.settings import Settings
from app.store import Store, now
from app.store.answer_calibrations import AnswerCalibrationStore, AnswerCalibrationSummary
from app.store.tables import AnswerCalibrationRow, SampleRow
from racer_core.calibration.shadow import is_sampled
from tests.kit.monitored import calibration_record, decision_record
from tests.kit.same_answer import NAMES, answer

SETUP = "setup"
START = datetime.now(UTC) - timedelta(hours=1)  # of the requests, one a second
KEY = b"key"  # of the draws
_FALLBACK = replace(
    decision_record(calibration_record(rows=20), [0.5, 0.5, 0.5]),
    calibration_id=None,
    lambda_hat=math.inf,
    scores=None,
    projection=None,
    chosen_by=ChosenBy.FALLBACK,
    holds=False,
)


class Shown(NamedTuple):
    """What the metrics are told."""

    active: str | None
    bets: int
    days: float
    is_refused: bool


class AnswerWorld:
    """A gateway's calibrator, its store and its sampled requests.

    Args:
        store: The store.
        topic: What its questions are called: those of another topic have other answers.
        more: Sections of the configuration.
    """

    def __init__(self, store: Store, topic: str = "question", **more: Any) -> None:
        self.store = store
        self.shown: list[Shown] = []
        self.made = 0
        self._topic = topic
        candidates = [{"name": name, "base_url": "http://127.0.0.1:1/v1"} for name in NAMES]
        document = {
            "schema_version": 1,
            "candidates": candidates,
            "aggregation": {"equality": "exact"},
            "same_answer": {"alpha": 0.1, "calibrate": "from_traffic"},
            "watching": {"shadow_rate": 1.0, "false_alarm": 0.01},
            **more,
        }
        self.calibrator = AnswerCalibrator(
            Settings.model_validate(document),
            self.store,
            key=KEY,
            setup=SETUP,
            show=self._show,
            typical_usage=TypicalUsage(),
        )

    def _show(self, application: str, *, age_s: float, is_refused: bool, **_: object) -> None:
        record = self.calibrator.calibrations.find(application)
        bets = self.calibrator.alarms.found(record).sampled
        self.shown.append(Shown(record and record.id, bets, age_s // 86_400, is_refused))

    def sample(self, count: int, *, whole: bool = True, rate: float = 1.0) -> int:
        """Further requests, of which some are sampled; returns how many.

        Args:
            count: How many there are.
            whole: All candidates answer them.
            rate: The share that is sampled.
        """
        numbers = range(self.made, self.made + count)
        self.made += count
        decisions = [replace(decision_of(each), shadow_rate=rate, sampling_rate=rate)
                     for each in numbers]  # fmt: skip
        drawn = [
            (number, decision)
            for number, decision in zip(numbers, decisions, strict=True)
            if is_sampled(KEY, decision.decision_id.encode(), rate)
        ]
        DecisionStore(self.store).add([each for _, each in drawn], [False] * len(drawn))
        with self.store.transaction() as session:
            session.add_all(
                sample_of(number, topic=self._topic, whole=whole) for number, _ in drawn
            )
        return len(drawn)

    @property
    def records(self) -> list[AnswerCalibrationSummary]:
        """Newest first."""
        return AnswerCalibrationStore(self.store).summaries(SETUP)

    @property
    def active(self) -> str | None:
        """What decides here."""
        record = self.calibrator.calibrations.find("")
        return record and record.id

    @property
    def report(self) -> dict[str, Any]:
        """What `GET /same-answer` says of it."""
        return asyncio.run(self.calibrator.report())["applications"][""]

    @property
    def stale(self) -> Staleness | None:
        """Why its certificates are void."""
        record = self.calibrator.calibrations.find("")
        assert record is not None
        return self.calibrator.calibrations.stale(record)

    def age(self, days: int, *, with_rows: bool = False) -> None:
        """Let days pass since the calibrations were made, and since the active one's newest row."""
        passed = timedelta(days=days)
        with self.store.transaction() as session:
            for row in session.scalars(select(AnswerCalibrationRow)):
                row.created_at = _earlier(row.created_at, passed)
                if row.activated_at is not None:
                    row.activated_at = _earlier(row.activated_at, passed)
                if with_rows and row.id == self.active:
                    document = json.loads(row.document)
                    document["evidence"]["until"] = _earlier(now(), passed)
                    row.document = json.dumps(document)


def _earlier(time: str, passed: timedelta) -> str:
    return (datetime.fromisoformat(time) - passed).isoformat(timespec="microseconds")


def time_of(number: int) -> str:
    """When a request was made."""
    return (START + timedelta(seconds=number)).isoformat(timespec="microseconds")


def decision_of(number: int) -> DecisionRecord:
    """The decision of a request that was sampled at rate 1."""
    return replace(
        _FALLBACK,
        decision_id=f"chatcmpl-{number:08}",
        created_at=time_of(number),
        pool=NAMES,
        selected=("ada",),
        sampling_rate=1.0,
        shadow_rate=1.0,
        answer_setup=SETUP,
    )


def sample_of(number: int, *, topic: str = "question", whole: bool = True) -> SampleRow:
    """The answers of all candidates to a request, or of some."""
    given = {name: int(answer(name, f"{topic} {number}")) for name in NAMES}
    return SampleRow(
        decision_id=f"chatcmpl-{number:08}",
        application=None,
        later=False,
        conversation=None,
        classes=json.dumps(given),
        digests="{}",
        whole=whole,
        body=None,
        answer_setup=SETUP,
    )
