"""Activation looks at no figure: laws of what is active over weeks of recalibration.

The service, the store and the active calibration are those of a gateway. Each week brings fresh
rows of which n are answerable. Ties are broken at random, so the risk of one calibration is
Beta(m, n + 1 - m) with m = floor(alpha (n + 1)): its mean is m / (n + 1). Weeks are independent if
and only if what is active is chosen by no figure of theirs.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import settings
from app.calibrations.evidence import evidence, shift
from app.calibrations.service import CalibrationService, refuse_infeasible, setup_digest
from app.calibrations.upload import from_file
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.scoring_inputs import ScoringInputs
from app.settings import Settings
from app.store import Store
from app.store.tables import SeenRowsRow
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.certificate import CoreReason
from racer_core.calibration.options import CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InfeasibleAlphaError
from racer_core.offline.train import train
from racer_core.trained_router import RouterScores, TrainedRouter
from racer_core.types import BoolArray, LabelledRow, LabelledRows, Score
from tests.kit.gateway import ENVIRONMENT, configure
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

POOL = ("first", "second", "third", "fourth", "fifth", "sixth")
# Exactly one candidate is right. A threshold that is too low by chance has small sets, and the mean
# set of the next calibration is then often more than a quarter larger.
RIGHT = (0.7, 0.15, 0.08, 0.04, 0.02, 0.01)
ALPHA, WEEKS = 0.1, 26


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
    names = count()

    async def upload(self, rows: int, **options: Any) -> dict[str, Any]:
        """Calibrate on fresh rows."""
        return await self.upload_rows(labels(self.rng, rows), **options)

    async def upload_rows(self, correct: BoolArray, **options: Any) -> dict[str, Any]:
        """Calibrate on rows with these labels."""
        lines = (
            json.dumps({"query": row.query, "correct": {n: n in row.correct for n in POOL}})
            for row in labelled(correct, f"rows {next(self.names)}").rows
        )
        file = io.BytesIO("\n".join(lines).encode())
        given = {"rows_kind": "traffic", **options}
        job = self.service.start(from_file(file, "rows.jsonl"), given, "operator")
        while not job.ended:
            await job.changed()
        return job.outcome()

    def missed(self, queries: int) -> int:
        """How many fresh answerable queries the active calibration misses."""
        calibration, correct = self.active.record().calibration, labels(self.rng, queries)
        scores = np.full((queries, len(POOL)), 0.5)
        prints = [self.rng.bytes(16) for _ in range(queries)]
        sets = calibration.sets(scores, prints, calibration.lambda_hat(), Score.STATIC)
        return int((~(sets.selected & correct).any(axis=1)).sum())


@dataclass(frozen=True, kw_only=True)
class World:
    """A configuration and its router."""

    settings: Settings
    trained: TrainedRouter

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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Six candidates behind a router that was trained on a hundred rows."""
    folder, rng = tmp_path_factory.mktemp("activation"), np.random.default_rng(0)
    artifact = folder / "artifact"
    rows, validation = (labelled(labels(rng, 100), name) for name in ("training", "validation"))
    train(rows, validation, artifact, encoder=CharNgramEncoder(), kind="knn")
    path = configure(
        folder / "configured",
        artifact,
        "http://127.0.0.1:9",
        candidates=[{"name": name, "base_url": "http://127.0.0.1:9"} for name in POOL],
        routing={"score": "static", "alpha": ALPHA},
    )
    configured, _ = settings.load(path, ENVIRONMENT)
    return World(settings=configured, trained=TrainedRouter.load(artifact))


# What is active is the last upload ------------------------------------------------------------


def test_the_last_upload_is_active_whatever_its_figures(world: World, tmp_path: Path) -> None:
    """In every week of half a year; false alarm 0.

    A rule that leaves the old calibration active where the mean set changes by a quarter refuses
    one upload in four here: it passes with probability below 1e-3.
    """

    async def weekly() -> None:
        async with world.operator(tmp_path, seed=1) as operator:
            sizes: list[float] = []
            for _ in range(WEEKS):
                made = await operator.upload(59)
                assert operator.active.record().id == made["id"]
                assert operator.active.record().void_reasons == ()
                sizes.append(made["evidence"]["mean_size"])
            changes = np.abs(np.diff(sizes)) / sizes[:-1]
            assert changes.max() > 0.25, "or no rule would have refused one"

    asyncio.run(weekly())


@pytest.mark.slow
@pytest.mark.parametrize(("n", "operators"), [(59, 120), (99, 40), (199, 40)])
def test_the_risk_of_what_is_active_is_that_of_one_calibration(
    world: World, tmp_path: Path, n: int, operators: int
) -> None:
    """Fresh queries are missed with probability m / (n + 1) in every week; false alarm 1e-6 each.

    The count of a week is BetaBinomial(40, m, n + 1 - m), and its sum over a thousand independent
    weeks or more is normal to well below the width of the interval, which ends at 0.105 for 59
    rows. A rule that keeps the old calibration where the mean set changes by a quarter has 0.112.
    """
    queries, weeks = 40, WEEKS * operators

    async def run() -> int:
        missed = 0
        for seed in range(operators):
            async with world.operator(tmp_path, seed) as operator:
                for _ in range(WEEKS):
                    await operator.upload(n)
                    missed += operator.missed(queries)
        return missed

    m = math.floor(ALPHA * (n + 1) + 1e-9)
    law = stats.betabinom(queries, m, n + 1 - m)
    width = stats.norm.isf(1e-6 / 2) * math.sqrt(weeks * law.var())
    missed = asyncio.run(run())
    assert abs(missed - weeks * law.mean()) <= width, missed / weeks / queries


# What a person chose --------------------------------------------------------------------------


def test_a_calibration_that_was_activated_by_its_id_is_marked(world: World, tmp_path: Path) -> None:
    """A rollback, a promotion, a canary; until the next upload. The mark outlives a restart."""

    async def run() -> None:
        async with world.operator(tmp_path, seed=2) as operator:
            chosen = (CoreReason.CHOSEN_BY_FIGURES,)
            first = (await operator.upload(59))["id"]
            same = await operator.service.activate(first, None)
            assert same.void_reasons == (), "it was active: nothing was chosen"
            second = (await operator.upload(59))["id"]
            await operator.service.activate(first, second)
            assert operator.active.record().void_reasons == chosen
            assert operator.store.record(first).void_reasons == chosen
            assert [each.chosen for each in operator.store.summaries()] == [False, True]
            third = (await operator.upload(59))["id"]
            assert operator.active.record().void_reasons == ()
            stored = (await operator.upload(59, activate=False))["id"]
            await operator.service.activate(stored, third, share=0.5)
            assert operator.active.canary is not None
            assert operator.active.canary.record.void_reasons == chosen
            await operator.service.activate(third, third)  # ends the canary
            assert operator.active.canary is None
            assert operator.active.record().void_reasons == ()
            await operator.service.activate(stored, third)
            assert operator.active.record().void_reasons == chosen

    asyncio.run(run())


def test_a_mark_is_seen_by_a_gateway_that_missed_what_was_between(
    world: World, tmp_path: Path
) -> None:
    """Another one replaced the active calibration and rolled back, between two looks."""

    async def run() -> None:
        async with world.operator(tmp_path, seed=3) as operator:
            first = (await operator.upload(59))["id"]
            record = operator.store.record(first)
            operator.store.add(replace(record, id="cal-between"), activate=True)
            operator.store.activate(first, "cal-between", operator.setup)
            assert operator.active.record().void_reasons == ()
            await operator.sync.catch_up()
            assert operator.active.record().id == first
            assert operator.active.record().void_reasons == (CoreReason.CHOSEN_BY_FIGURES,)

    asyncio.run(run())


@pytest.mark.slow
def test_an_operator_who_rolls_back_by_figures_breaks_no_certificate(
    world: World, tmp_path: Path
) -> None:
    """P(certificate holds and the set misses) <= alpha; false alarm 1e-6.

    Who rolls back where the mean set grew by a quarter leaves lucky thresholds active: their risk
    is 0.11 on average. A certificate holds in the weeks in which the upload decides, and the
    uploads of all weeks have the mean risk m / (n + 1) = 0.1 together: the missed queries of those
    weeks are at most the missed queries of all uploads, whose count has the law of the test above.
    """
    operators, queries, n = 40, 40, 59

    async def run() -> tuple[int, int]:
        broken, missed = 0, 0
        for seed in range(operators):
            async with world.operator(tmp_path, 1_000 + seed) as operator:
                for _ in range(WEEKS):
                    before = operator.active.record().id if operator.active.ready else None
                    made = await operator.upload(n)
                    found = made["evidence"].get("shift")
                    if found is not None and found["size_change"] > 0.25:
                        await operator.service.activate(before or "", made["id"])
                    lost = operator.missed(queries)
                    missed += lost
                    broken += 0 if operator.active.record().void_reasons else lost
        return broken, missed

    weeks = WEEKS * operators
    law = stats.betabinom(queries, 6, n + 1 - 6)
    width = stats.norm.isf(1e-6) * math.sqrt(weeks * law.var())
    broken, missed = asyncio.run(run())
    assert broken <= weeks * law.mean() + width, broken / weeks / queries
    assert missed > broken


# What is not activated ------------------------------------------------------------------------


def test_too_few_rows_change_nothing_and_were_not_seen(world: World, tmp_path: Path) -> None:
    """Refused by their number alone, which is known before a figure is: by id, too."""

    async def run() -> None:
        async with world.operator(tmp_path, seed=4) as operator:
            first = (await operator.upload(59))["id"]
            with operator.store.transaction() as session:
                seen = session.query(SeenRowsRow).count()
            correct = labels(operator.rng, 8)
            with pytest.raises(InfeasibleAlphaError) as refused:
                await operator.upload_rows(correct)
            assert str(refused.value) == (
                "no finite threshold keeps alpha 0.1: 8 rows count, it needs 9; "
                "add rows or choose a larger alpha"
            )
            with operator.store.transaction() as session:
                assert session.query(SeenRowsRow).count() == seen
            assert [each.id for each in operator.store.summaries()] == [first]
            dry = await operator.upload_rows(correct, dry_run=True)
            assert dry["refusal"] == str(refused.value)
            stored = (await operator.upload_rows(correct, activate=False))["id"]
            with pytest.raises(InfeasibleAlphaError):
                await operator.service.activate(stored, first)
            assert operator.active.record().id == first
            assert (await operator.upload_rows(correct, alpha=0.2))["active"]

    asyncio.run(run())


SCORES = np.random.default_rng(0).random((30, 2))
ROWS = Calibration(
    pool=("a", "b"),
    fingerprints=tuple(b"%d" % i for i in range(30)),
    scores=SCORES,
    labels=SCORES > 0.2,
    options=CalibrationOptions(alpha=0.1, score=Score.GAP),
)


def test_weighted_rows_are_not_counted_like_others() -> None:
    """The message says what they are worth, and no number of rows that they need."""
    weights = np.r_[np.full(29, 1.0), 20.0]
    weighted = replace(ROWS, weights=weights, options=replace(ROWS.options, max_weight=20.0))
    with pytest.raises(InfeasibleAlphaError, match=f"worth {weighted.effective_n:.1f} of equal"):
        refuse_infeasible(evidence(weighted))


# Large shifts ---------------------------------------------------------------------------------


def test_a_large_shift_says_both_figures_and_how_to_go_back(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the evidence, the log and the metric; it is active all the same."""

    async def run() -> None:
        async with world.operator(tmp_path, seed=5) as operator:
            right = np.arange(len(POOL)) == np.tile(np.arange(len(POOL)), 20)[:, None]
            first = await operator.upload_rows(np.tile(right[:1], (59, 1)))
            with caplog.at_level(logging.WARNING):
                second = await operator.upload_rows(right)
            found = second["evidence"]["shift"]
            assert found["alert"] == (
                f"the mean set changes from 1 to {second['evidence']['mean_size']:.3g} candidates "
                f"and lambda_hat from 0 to {second['evidence']['lambda_hat']:.4g}; look at the "
                f"rows. `racer calibrations rollback` activates {first['id']} again, whose "
                "certificates are void until the next calibration"
            )
            assert found["alert"] in caplog.text
            assert operator.active.record().id == second["id"]
            assert shown(operator) == found["size_change"] > 0.25
            await operator.upload_rows(right)
            assert shown(operator) == 0.0

    def shown(operator: Operator) -> float:
        return operator.metrics.registry.get_sample_value("racer_calibration_shift") or 0.0

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"alpha": 0.2},
        {"sample": {"kind": "traffic", "unit": "cluster"}},
        {"weights": {"max_weight": 2.0, "effective_n": 20.0}},
        {"answer_limit": {"answer_risk_max": 0.2, "tested": 9}},
    ],
)
def test_a_shift_is_large_at_the_same_promise_alone(change: dict[str, Any]) -> None:
    """Unit, weights and the limit on wrong answers are part of the promise."""
    sample = {"kind": "traffic", "unit": "request"}
    before = evidence(ROWS) | {"feasible": True, "mean_size": 1.0, "sample": sample}
    found = shift("cal-1", before, before | {"mean_size": 1.5} | change)
    assert (found["alert"] is None) == bool(change)
    # Other counts of the same kind of rows are the same promise.
    other = {"mean_size": 1.5, "sample": sample | {"clusters": 7}}
    assert shift("cal-1", before, before | other)["alert"] is not None
    assert shift("cal-1", before, before | {"mean_size": 1.25})["alert"] is None
    assert shift("cal-1", before | {"feasible": False}, before | other)["alert"] is None
