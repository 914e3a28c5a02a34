"""Operators of a gateway in process: they upload fresh rows, and follow what the gateway says.

The service, the store and the active calibration are those of a gateway. Exactly one candidate is
right on each query, and ties are broken at random, so the risk of one calibration on n rows is
Beta(m, n + 1 - m) with m = floor(alpha (n + 1)): its mean is m / (n + 1).
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from app import settings
from app.calibrations.service import CalibrationService, setup_digest
from app.calibrations.upload import from_file
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.scoring_inputs import ScoringInputs
from app.settings import Settings
from app.store import Store
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.trained_router import RouterScores, TrainedRouter
from racer_core.types import BoolArray, LabelledRow, LabelledRows, Score, any_column
from tests.kit.gateway import ENVIRONMENT, configure

POOL = ("first", "second", "third", "fourth", "fifth", "sixth")
# A threshold that is too low by chance has small sets, and the mean set of the next calibration is
# then often more than a quarter larger.
RIGHT = (0.7, 0.15, 0.08, 0.04, 0.02, 0.01)
ALPHA, WEEKS = 0.1, 26
_NAMES = count()


def labels(rng: np.random.Generator, rows: int) -> BoolArray:
    """The right candidate of each row."""
    return np.arange(len(POOL)) == rng.choice(len(POOL), rows, p=RIGHT)[:, None]


def labelled(correct: BoolArray, name: str) -> LabelledRows:
    """Rows with these labels, whose queries no other name has."""
    rows = (
        LabelledRow(query=f"{name} {i}", correct=frozenset(np.array(POOL)[right].tolist()))
        for i, right in enumerate(correct)
    )
    return LabelledRows(pool=POOL, rows=tuple(rows))


class EqualScores:
    """The scores of a router that knows nothing: `static` reads none."""

    def score_rows(self, texts: Sequence[str], progress: object = None) -> RouterScores:
        """The same chance for every candidate."""
        return RouterScores(np.full((len(texts), len(POOL)), 0.5), np.zeros(len(texts), bool))


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator who uploads rows, and what decides on the gateway."""

    service: CalibrationService
    store: Store
    active: ActiveCalibration
    sync: CalibrationSync
    metrics: Metrics
    rng: np.random.Generator
    setup: str

    async def upload(self, rows: int, **options: Any) -> dict[str, Any]:
        """Calibrate on fresh rows."""
        return await self.upload_rows(labels(self.rng, rows), **options)

    async def upload_rows(self, correct: BoolArray, **options: Any) -> dict[str, Any]:
        """Calibrate on rows with these labels."""
        lines = (
            json.dumps({"query": row.query, "correct": {n: n in row.correct for n in POOL}})
            for row in labelled(correct, f"rows {next(_NAMES)}").rows
        )
        file = io.BytesIO("\n".join(lines).encode())
        given = {"rows_kind": "traffic", **options}
        job = self.service.start(from_file(file, "rows.jsonl"), given, "operator")
        while not job.ended:
            await job.changed()
        return job.outcome()

    def missed(self, queries: int) -> int:
        """How many fresh answerable queries the active calibration misses."""
        return int(self.misses(self.active.record(), queries).sum())

    def misses(self, record: CalibrationRecord, queries: int) -> BoolArray:
        """Which of some fresh answerable queries a calibration misses."""
        calibration, correct = record.calibration, labels(self.rng, queries)
        scores = np.full((queries, len(POOL)), 0.5)
        prints = [self.rng.bytes(16) for _ in range(queries)]
        sets = calibration.sets(scores, prints, calibration.lambda_hat(), Score.STATIC)
        return np.logical_not(any_column(sets.selected & correct))


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A configuration and its router."""

    settings: Settings
    trained: TrainedRouter

    @classmethod
    def in_folder(cls, folder: Path, **sections: Any) -> Deployment:
        """Six candidates behind a router that was trained on a hundred rows."""
        rng, artifact = np.random.default_rng(0), folder / "artifact"
        rows, validation = (labelled(labels(rng, 100), name) for name in ("training", "validation"))
        train(rows, validation, artifact, encoder=CharNgramEncoder(), kind="knn")
        path = configure(
            folder / "configured",
            artifact,
            "http://127.0.0.1:9",
            candidates=[{"name": name, "base_url": "http://127.0.0.1:9"} for name in POOL],
            routing={"score": "static", "alpha": ALPHA},
            **sections,
        )
        configured, _ = settings.load(path, ENVIRONMENT)
        return cls(settings=configured, trained=TrainedRouter.load(artifact))

    @asynccontextmanager
    async def operator(self, folder: Path, seed: int) -> AsyncGenerator[Operator]:
        """An operator of a gateway with a store of its own."""
        metrics, configured = Metrics(), self.settings
        active = ActiveCalibration(metrics)
        setup = setup_digest(self.trained.artifact.digest, configured.candidates)
        with Store(f"sqlite:///{folder}/{seed}.db") as store:
            sync = CalibrationSync(
                store,
                active,
                text=configured.routing.text,
                grouping=configured.grouping,
                metrics=metrics,
            )
            await sync.follow(setup)
            async with CalibrationService(
                settings=configured,
                trained=self.trained,
                scorer=EqualScores(),  # pyright: ignore[reportArgumentType]
                inputs=ScoringInputs(self.trained.artifact),
                store=store,
                active=active,
                calibration_sync=sync,
                setup=setup,
                grouping=Grouping.open(configured.group_by, configured.applications),
                conditions=ConditionReader(configured.candidates),
                sampled_scores=lambda decision_ids, setup: {},
                sampling_rates=lambda since: [],
            ) as service:
                yield Operator(
                    service=service,
                    store=store,
                    active=active,
                    sync=sync,
                    metrics=metrics,
                    rng=np.random.default_rng(seed),
                    setup=setup,
                )
