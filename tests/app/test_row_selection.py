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
from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.types import Score
from tests.support.monitored import POOL, calibration_record

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


def select(found: CalibrationRecord, names: tuple[str, ...], **fields: Any) -> RowSelection:
    """The rows for a request with these fields among these candidates."""
    query = Query(text="What is 3 plus 4?", conditions=READER.read(fields))
    return RowSelector("last_user").select(found, names, query)


EASY, HARD = rows(200, 0.0), rows(40, 0.5, start=1000)
MIXED = record(population(EASY), population(HARD, seed=5))


def missed(calibration: Calibration, threshold: float) -> float:
    """The share of rows whose set has no right candidate."""
    sets = calibration.sets(calibration.scores, calibration.fingerprints, threshold, Score.GAP)
    return float((~(sets.selected & calibration.labels).any(axis=1)).mean())


@pytest.mark.parametrize("names", [POOL, PART])
def test_own_rows_decide_in_a_smaller_pool_too(names: tuple[str, ...]) -> None:
    """An outage of the candidate that differs adds no rows of another part of the traffic."""
    assert select(MIXED, names).populations == (0,)
    assert select(MIXED, names, seed=5).populations == (1,)


def test_joined_rows_would_miss_more_than_alpha() -> None:
    """Requests with the seed are harder than the others: only rows with the seed bound them."""
    found = select(MIXED, PART, seed=5)
    hard = HARD.restrict(PART)
    own = MIXED.rows(found.populations).restrict(PART)
    joined = MIXED.rows((0, 1)).restrict(PART)
    assert missed(hard, own.lambda_hat(ALPHA, Score.GAP)) <= ALPHA
    assert missed(hard, joined.lambda_hat(ALPHA, Score.GAP)) == 0.5


def test_other_conditions_beside_the_pool_join_all_rows_that_agree() -> None:
    """The conditions of a candidate that is not certified are no premise."""
    found = select(MIXED, PART, seed=9)
    assert (found.populations, found.differing) == ((0, 1), ())
    assert select(MIXED, POOL, seed=9).differing == ("seed",)


def test_a_query_counts_once_among_joined_rows() -> None:
    """Repeated queries are no further evidence: the 65 rows have 45 queries."""
    parts = rows(40, 0.25), rows(15, 0.5, start=30), rows(10, 0.0, start=30)
    grouped = replace(parts[2], groups=("a",) * 10)
    found = record(*map(population, (*parts[:2], grouped))).rows((0, 1, 2))
    assert len(found.fingerprints) == len(found.queries) == found.n == 45
    assert found.labels[:40].tolist() == parts[0].labels.tolist()
    assert found.labels[40:].tolist() == parts[1].labels[10:].tolist()
    assert found.groups == (None,) * 45


def test_own_rows_that_are_too_few_are_joined() -> None:
    """Five rows allow no threshold at 0.1, and the others agree on the smaller pool."""
    few = record(population(EASY), population(rows(5, 0.0), seed=5))
    assert select(few, PART, seed=5).populations == (0,)


def test_the_selection_reads_no_answers_of_a_smaller_pool() -> None:
    """Other labels with the same answerable rows select the same rows."""
    flipped = replace(HARD, labels=~HARD.labels)
    other = record(population(EASY), population(flipped, seed=5))
    for seed in (5, 9):
        found = [select(each, PART, seed=seed).populations for each in (MIXED, other)]
        assert found[0] == found[1]


def test_rows_of_unknown_conditions_certify_nothing() -> None:
    """A record gets its digests when it is first loaded; without them no request is like it."""
    found = select(record(Population(calibration=EASY)), POOL)
    assert (found.differing, found.turn) == (("rows",), TurnKind.FIRST)
