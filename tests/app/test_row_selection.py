"""Row selection: rows of a request's own conditions set its threshold, also in smaller pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.routing.conditions import ConditionReader
from app.routing.query import Query
from app.routing.row_selection import RowSelection, RowSelector, TurnKind
from app.settings import Candidate
from app.store.calibration_record import CalibrationRecord, Population
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.types import Score
from tests.kit.monitored import POOL, calibration_record

ALPHA = 0.1
PART = POOL[:2]
SHARED = {"temperature": 0}  # a seed is then no condition


def candidate(name: str) -> Candidate:
    """A candidate; only the last one's answers depend on a seed."""
    parameters = {} if name == POOL[-1] else SHARED
    return Candidate(name=name, base_url="http://127.0.0.1:9/v1", parameters=parameters)


READER = ConditionReader([candidate(name) for name in POOL])


def rows(count: int, missed: float, start: int = 0) -> Calibration:
    """Rows of which a share is answered by the candidate with the lower score alone.

    So its critical ``gap`` is 0.5, and that of the others 0. Queries are numbered from ``start``.
    """
    scores = np.tile([0.9, 0.4, 0.1], (count, 1))
    labels = np.zeros((count, len(POOL)), dtype=bool)
    labels[:, 0] = np.arange(count) >= missed * count
    labels[:, 1] = ~labels[:, 0]
    return Calibration(
        pool=POOL,
        fingerprints=tuple(bytes([n // 256, n % 256]) * 8 for n in range(start, start + count)),
        scores=scores,
        labels=labels,
        options=CalibrationOptions(alpha=ALPHA, score=Score.GAP),
    )


def population(calibration: Calibration, **fields: Any) -> Population:
    """Rows that were labelled with these fields."""
    return Population(calibration=calibration, conditions=READER.read(fields).of(POOL))


def record(*populations: Population) -> CalibrationRecord:
    """A record of these populations."""
    return replace(calibration_record(), populations=populations)


def select(found: CalibrationRecord, **fields: Any) -> RowSelection:
    """The rows for a request with these fields."""
    query = Query(text="What is 3 plus 4?", conditions=READER.read(fields))
    return RowSelector("last_user").select(found, query)


EASY, HARD = rows(200, 0.0), rows(40, 0.5, start=1000)
FEW = rows(5, 0.0)  # no threshold at 0.1
MIXED = record(population(EASY), population(HARD, seed=5))


def missed(calibration: Calibration, threshold: float) -> float:
    """The share of rows whose set has no right candidate."""
    sets = calibration.sets(calibration.scores, calibration.fingerprints, threshold, Score.GAP)
    return float((~(sets.selected & calibration.labels).any(axis=1)).mean())


def test_rows_of_the_same_conditions_decide() -> None:
    """No rows of another part of the traffic are added."""
    assert select(MIXED) == RowSelection(population=0, turn=TurnKind.FIRST)
    assert select(MIXED, seed=5) == RowSelection(population=1, turn=TurnKind.FIRST)


def test_joined_rows_would_miss_more_than_alpha() -> None:
    """In a smaller pool all rows agree; requests with the seed are harder than the others."""
    hard = HARD.restrict(PART)
    own = MIXED.populations[select(MIXED, seed=5).population].calibration.restrict(PART)
    joined = replace(
        EASY,
        fingerprints=EASY.fingerprints + HARD.fingerprints,
        scores=np.concatenate([EASY.scores, HARD.scores]),
        labels=np.concatenate([EASY.labels, HARD.labels]),
    ).restrict(PART)
    assert missed(hard, own.lambda_hat(ALPHA, Score.GAP)) <= ALPHA
    assert missed(hard, joined.lambda_hat(ALPHA, Score.GAP)) == 0.5


@pytest.mark.parametrize("found", [MIXED, record(population(EASY), population(FEW, seed=9))])
def test_without_enough_rows_of_its_own_a_request_is_unlike_the_rows(
    found: CalibrationRecord,
) -> None:
    """Which rows decide depends on no pool: the field is named in a smaller one, too."""
    assert (select(found, seed=9).population, select(found, seed=9).differing) == (0, ("seed",))


def test_the_selection_reads_no_labels() -> None:
    """Other labels of the same rows that count select the same rows."""
    other = record(population(EASY), population(replace(HARD, labels=~HARD.labels), seed=5))
    for seed in (5, 9):
        assert select(MIXED, seed=seed) == select(other, seed=seed)


def test_rows_of_unknown_conditions_certify_nothing() -> None:
    """A record gets its digests when it is first loaded; without them no request is like it."""
    found = select(record(Population(calibration=EASY)))
    assert (found.differing, found.turn) == (("rows",), TurnKind.FIRST)
