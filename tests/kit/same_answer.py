"""Candidates that answer by a rule, and calibrations of `same_answer` on their answers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.judging.checker_calls import checker_code
from app.routing.conditions import ConditionReader
from app.same_answer.calibrations import answer_setup
from app.store import Store, now
from app.store.answer_calibrations import AnswerCalibrationRecord, AnswerCalibrationStore
from racer_core.aggregation.answers import Equality
from racer_core.sequential.answer_classes import AnswerClasses
from tests.kit.answers import answer_classes
from tests.kit.gateway import ADMIN_KEY, Gateway
from tests.kit.lazy import LazyModule
from tests.kit.monitored import sampled
from tests.kit.upstream import FakePool

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = LazyModule("scipy.stats")

NAMES = ("ada", "bob", "cyd", "dan", "eve")
RIGHT = {"ada": 0.95, "bob": 0.9, "cyd": 0.85, "dan": 0.6, "eve": 0.5}


def answer(name: str, question: str) -> str:
    """What a candidate says: right with a chance of its own, else one of nine wrong answers."""
    rng = random.Random(f"{name} {question}")
    return "0" if rng.random() < RIGHT[name] else str(rng.randint(1, 9))


def talk(pool: FakePool) -> None:
    """Let every candidate answer as ``answer`` says."""
    pool.answer = lambda body: answer(body["model"], body["messages"][-1]["content"])


def classes(start: int, count: int) -> AnswerClasses:
    """The answers of all candidates to some questions."""
    questions = [f"question {number}" for number in range(start, start + count)]
    given = [[answer(name, question) for name in NAMES] for question in questions]
    return AnswerClasses(
        pool=NAMES,
        classes=answer_classes(given, Equality.EXACT),
        fingerprints=tuple(each.encode() for each in questions),
    )


def configured(pool: FakePool, **changes: Any) -> dict[str, Any]:
    """The configuration of a gateway with nothing but these candidates."""
    candidates = [{"name": name, "base_url": pool.url, "timeout_s": 5} for name in NAMES]
    usual = {"calibrated": False, "artifact": Path("absent"), "same_answer": {"alpha": 0.02}}
    return {**usual, "candidates": candidates, **changes}


def setup_of(gateway: Gateway) -> str:
    """The digest of its configuration."""
    settings = gateway.settings
    added = ConditionReader(settings.candidates, settings.limits.extra_fields).added
    return answer_setup(settings, added, checker_code(settings))


def calibration(
    fitting: AnswerClasses, rows: AnswerClasses, *, salt: bytes = b""
) -> AnswerCalibrationRecord:
    """A record at alpha 0.02, of no gateway yet."""
    return AnswerCalibrationRecord(
        id="answers-0",
        created_at=now(),
        answer_setup="",
        application="",
        fitting=fitting,
        rows=rows,
        lost=0,
        salt=salt,
        alpha=0.02,
        evidence={
            "reference": "vote",
            "max_rounds": 2,
            "ordinal": 0,
            "not_before": "",
            "until": now(),
        },
    )


def activate(
    gateway: Gateway,
    *,
    count: int = 300,
    application: str = "",
    setup: str | None = None,
    salt: bytes = b"",
) -> AnswerCalibrationRecord:
    """Activate a calibration in the gateway's store, and have the gateway look at it."""
    prices = gateway.settings.call_prices({})
    record = replace(
        calibration(classes(10_000, 100), classes(20_000, count), salt=salt),
        id=f"answers-{application or 'all'}-{np.random.default_rng().integers(1 << 60)}",
        answer_setup=setup or setup_of(gateway),
        application=application,
        prices=prices,
    )
    with Store(gateway.settings.store) as store:
        AnswerCalibrationStore(store).add(record, activate=True)
    response = gateway.post(f"/same-answer/{record.id}/activate", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return record


def collect(gateway: Gateway, count: int, start: int = 0) -> None:
    """Requests whose candidates all answer in the background."""
    for number in range(start, start + count):
        gateway.chat(f"question {number}")
    sampled(gateway, start + count)


def calibrate(gateway: Gateway, **body: Any) -> dict[str, Any]:
    """The result of a calibration."""
    response = gateway.post("/same-answer/calibrate", ADMIN_KEY, json=body)
    assert response.status_code == 200, response.text
    return response.json()
