"""Drift monitoring and samples of live traffic: records, queries, waits for their calls."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.drift.populations import MonitoredCalibration
from app.monitoring.monitor import Monitor
from app.monitoring.samples.record import SampledDecision
from app.monitoring.samples.rows import labelled_rows
from app.monitoring.samples.sampler import SamplerOptions
from app.routing.active_calibration import ActiveCalibration
from app.routing.conditions import ConditionReader
from app.routing.decision import ChosenBy
from app.settings.monitoring import MonitoringSettings
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord, OwnAlpha, Population
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.types import FloatArray
from tests.kit.gateway import ADMIN_KEY, Gateway
from tests.kit.waiting import until

POOL = ("adder", "speller", "poet")
ROWS = {"desk": 600, "search": 200, "bot": 300}  # by application
HARDER = {"desk": 1.0, "search": 0.7, "bot": 0.5}


def draw_scores(rng: np.random.Generator, count: int, *, harder: float = 1.0) -> FloatArray:
    """Router scores of queries, shape (count, 3); ``harder`` below 1 makes them smaller."""
    return np.round(rng.beta(2.0, 2.0, (count, len(POOL))) * harder, 6)


def calibration_record(
    seed: int = 1,
    rows: int = 600,
    *,
    name: str | None = None,
    harder: float = 1.0,
    **options: Any,
) -> CalibrationRecord:
    """A calibration whose router is right: f is the chance that a candidate is."""
    rng = np.random.default_rng(seed)
    scores = draw_scores(rng, rows, harder=harder)
    return CalibrationRecord(
        id=name or f"cal-{secrets.token_hex(8)}",
        created_at=now(),
        artifact="a" * 64,
        populations=(
            Population(
                calibration=Calibration(
                    pool=POOL,
                    fingerprints=tuple(rng.bytes(16) for _ in range(rows)),
                    scores=scores,
                    labels=rng.random(scores.shape) < scores,
                    projections=scores,  # as if the scores were the embedding
                    options=CalibrationOptions(**options),
                ),
                conditions=POOL,
            ),
        ),
        evidence={},
    )


def decision_record(
    record: CalibrationRecord, scores: Sequence[float], **changes: Any
) -> DecisionRecord:
    """The stored decision of a query with these scores, computed with the record."""
    calibration = record.calibration
    fingerprint = secrets.token_bytes(16)
    alpha = changes.get("alpha", calibration.options.alpha)
    decision = calibration.decide(fingerprint, scores, alpha=alpha)
    usual: dict[str, Any] = {
        "decision_id": f"chatcmpl-{secrets.token_hex(16)}",
        "created_at": now(),
        "calibration_id": record.id,
        "key": "data",
        "group": None,
        "alpha": decision.alpha,
        "score": decision.score,
        "lambda_hat": decision.lambda_hat,
        "pool": calibration.pool,
        "selected": tuple(name for name in calibration.pool if name in decision.selected),
        "null_selected": decision.null_selected,
        "fingerprint": fingerprint.hex(),
        "scores": tuple(scores),
        "neighbours": None,
        "projection": tuple(scores),
        "chosen_by": ChosenBy.THRESHOLD,
        "holds": True,
        "group_by": "request",
    }
    return DecisionRecord(**usual | changes)


def decision_records(
    record: CalibrationRecord, scores: FloatArray, **changes: Any
) -> list[DecisionRecord]:
    """One decision record for each row of scores, shape (count, 3)."""
    return [decision_record(record, row, **changes) for row in scores.tolist()]


def application_record(seed: int = 1, *, drawn_alpha: float = 0.2) -> CalibrationRecord:
    """A calibration of three applications whose queries differ in difficulty.

    ``desk`` and ``search`` have rows of one population, ``bot`` drawn ones of another, which is
    smaller, and an alpha of its own.
    """
    plain = {
        name: calibration_record(seed + at, rows, harder=HARDER[name]).calibration
        for at, (name, rows) in enumerate(ROWS.items())
    }
    alike = [plain["desk"], plain["search"]]
    joined = replace(
        plain["desk"],
        fingerprints=tuple(each for rows in alike for each in rows.fingerprints),
        scores=np.concatenate([rows.scores for rows in alike]),
        labels=np.concatenate([rows.labels for rows in alike]),
        projections=np.concatenate([rows.scores for rows in alike]),
        groups=("desk",) * ROWS["desk"] + ("search",) * ROWS["search"],
    )
    bot = replace(plain["bot"], groups=("bot",) * ROWS["bot"])
    return replace(
        calibration_record(seed),
        populations=(
            Population(calibration=joined, conditions=POOL),
            Population(calibration=bot, conditions=POOL, drawn="bot"),
        ),
        grouped_by="application 0123456789abcdef",
        alphas={"bot": OwnAlpha(drawn_alpha, fixed=drawn_alpha)},
    )


def application_queries(
    record: CalibrationRecord, name: str, scores: FloatArray, **changes: Any
) -> list[DecisionRecord]:
    """Decisions on requests of an application of ``application_record``."""
    population = MonitoredCalibration.of(record).by_application[name]
    own = replace(record, populations=(Population(calibration=population.calibration),))
    usual = {"group": name, "group_by": "application", "population": population.place}
    return decision_records(own, scores, **usual | changes)


class MonitoredStore:
    """A store and its active calibration; ``monitor()`` builds a `Monitor` as a gateway does."""

    def __init__(self, store: Store, record: CalibrationRecord) -> None:
        self.store = store
        self.store.add(record, activate=True)
        self.record = record

    async def monitor(self, *, seed: int = 7, **settings: Any) -> Monitor:
        """A `Monitor` of the record, not yet entered: use it with ``async with``."""
        metrics = Metrics()
        self.active = ActiveCalibration(metrics)
        await self.active.swap(self.record)
        self.metrics = metrics
        monitor = Monitor(
            settings=MonitoringSettings(**settings),
            store=self.store,
            active=self.active,
            metrics=metrics,
            sampling=SamplerOptions(
                key=b"a key of the tests",
                conditions=ConditionReader(()),
                group_by="request",
                pool=POOL,
            ),
            rng=np.random.default_rng(seed),
        )
        monitor.sampler.follow(self.record.artifact, {}, "answers")
        return monitor


def verdicts_on_all(labels: Sequence[bool]) -> Mapping[str, bool]:
    """A verdict on every candidate."""
    return dict(zip(POOL, (bool(label) for label in labels), strict=True))


async def exported_rows(monitor: Monitor) -> list[dict[str, Any]]:
    """The rows of the shadow sample."""
    parts, _ = await monitor.sampler.rows()
    return [json.loads(line) for line in b"".join([part async for part in parts]).splitlines()]


KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # of stored requests: the bytes 0 to 31


def samples(gateway: Gateway) -> dict[str, int]:
    """How many sampled decisions came to which end."""
    text = gateway.get("/metrics", ADMIN_KEY).text
    counted = [line.split('outcome="')[1] for line in text.splitlines() if _COUNTER in line]
    return {line.split('"')[0]: int(float(line.split()[-1])) for line in counted}


_COUNTER = "racer_shadow_samples_total{"


def sampled(gateway: Gateway, count: int) -> dict[str, int]:
    """The samples, once this number of them is complete."""
    assert until(lambda: sum(samples(gateway).values()) >= count, 30)
    return samples(gateway)


def shadow_rows(gateway: Gateway, query: str = "") -> list[dict[str, Any]]:
    """The rows of the shadow sample."""
    response = gateway.get(f"/shadow/rows{query}", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return [json.loads(row) for row in response.text.splitlines()]


def add_verdicts(
    gateway: Gateway,
    decision_id: str,
    correct: Mapping[str, bool],
    *,
    key: str = ADMIN_KEY,
    status: int = 200,
) -> dict[str, Any]:
    """POST /feedback, with the status checked."""
    body = {"decision_id": decision_id, "correct": correct}
    response = gateway.post("/feedback", key, json=body)
    assert response.status_code == status, response.text
    return response.json()


def exported(sampled: Sequence[SampledDecision], **options: Any) -> list[dict[str, Any]]:
    """The rows of decisions that calibrations of the loaded artifact made.

    Args:
        sampled: The decisions.
        options: As those of :func:`labelled_rows`, but for the usual values.
    """
    own = {each.decision.calibration_id for each in sampled} - {None}
    usual: dict[str, Any] = {
        "group_by": "request",
        "drawn": (),
        "conditions_of": lambda _: POOL,
        "stores_requests": True,
        "own": own,
        "sent_now": lambda _: {},
    }
    found, _ = labelled_rows(lambda: sampled, POOL, **usual | options)
    return [json.loads(row) for row in found]


def monitored(
    store: Store, story: Callable[[Monitor, MonitoredStore], Awaitable[None]], **settings: Any
) -> MonitoredStore:
    """Run a story with a `Monitor` of a calibration on 600 rows, and close the monitor."""
    world = MonitoredStore(store, settings.pop("record", None) or calibration_record())

    async def run() -> None:
        async with await world.monitor(**settings) as monitor:
            await story(monitor, world)

    asyncio.run(run())
    return world


@asynccontextmanager
async def monitoring(
    store: Store, **settings: Any
) -> AsyncGenerator[tuple[Monitor, MonitoredStore]]:
    """A `Monitor` of a calibration on 600 rows, or of a ``record``, and what it watches."""
    world = MonitoredStore(store, settings.pop("record", None) or calibration_record())
    async with await world.monitor(**settings) as monitor:
        yield monitor, world
