"""Activation looks at no figure: laws of what is active over weeks of recalibration.

Each week brings fresh rows, through the service and the store of a gateway. Weeks are independent
if and only if what is active is chosen by no figure of theirs.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.calibrations.evidence import evidence, shift
from app.calibrations.service import refuse_infeasible
from app.store.tables import SeenRowsRow
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.certificate import CoreReason
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import InfeasibleAlphaError
from racer_core.types import Score
from tests.core.laws import rarely_exceeded
from tests.kit.lazy import LazyModule
from tests.kit.operators import ALPHA, POOL, WEEKS, Deployment, Operator, labels

stats = LazyModule("scipy.stats")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Six candidates behind a router that was trained on a hundred rows."""
    return Deployment.in_folder(tmp_path_factory.mktemp("activation"))


# What is active is the last upload ------------------------------------------------------------


def test_the_last_upload_is_active_whatever_its_figures(world: Deployment, tmp_path: Path) -> None:
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
def test_the_risk_of_what_is_active_is_that_of_one_calibration(
    world: Deployment, memory_path: Path
) -> None:
    """Fresh queries are missed with probability m / (n + 1) in independent weeks.

    The count of a week is BetaBinomial(200, m, n + 1 - m). Two statistics of the operators' sums
    over 26 weeks follow, each with a false alarm of 1e-6: their mean is that of their law, and so
    is their spread. A rule that keeps the old calibration where the mean set changes by a quarter
    has a risk of 0.113 and twelve times the spread: 98 of 100 such runs exceed its bound.
    """
    operators, queries, n = 20, 200, 59

    async def run() -> list[int]:
        missed = [0] * operators
        for seed in range(operators):
            async with world.operator(memory_path, seed) as operator:
                for _ in range(WEEKS):
                    await operator.upload(n)
                    missed[seed] += operator.missed(queries)
        return missed

    m = math.floor(ALPHA * (n + 1) + 1e-9)
    law = stats.betabinom(queries, m, n + 1 - m)
    mean, variance = WEEKS * law.mean(), WEEKS * law.var()
    chances = functools.reduce(np.convolve, [law.pmf(np.arange(queries + 1))] * WEEKS)
    squares = np.minimum((np.arange(len(chances)) - mean) ** 2 / variance, 60.0)

    def log_moment(rate: float) -> float:
        return operators * math.log((chances * np.exp(rate * squares)).sum())

    missed = np.array(asyncio.run(run()))
    width = stats.norm.isf(1e-6 / 2) * math.sqrt(operators * variance)
    assert abs(missed.sum() - operators * mean) <= width, missed.mean() / WEEKS / queries
    spread = squares[missed].sum()
    assert spread <= rarely_exceeded(log_moment, 1e-6, np.geomspace(0.01, 0.49, 60).tolist())


# What a person chose --------------------------------------------------------------------------


def test_a_calibration_that_was_activated_by_its_id_is_marked(
    world: Deployment, tmp_path: Path
) -> None:
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
    world: Deployment, tmp_path: Path
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


# What is not activated ------------------------------------------------------------------------


def test_too_few_rows_change_nothing_and_were_not_seen(world: Deployment, tmp_path: Path) -> None:
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
            with pytest.raises(
                InfeasibleAlphaError, match=r"alpha 0.1, which `routing.alpha` serv"
            ):
                await operator.upload_rows(correct, alpha=0.2)
            dry = await operator.upload_rows(correct, alpha=0.2, dry_run=True)
            assert "which `routing.alpha` serves" in dry["refusal"]

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
    world: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
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
