"""How many calibrations of the promise `same_answer` a store keeps, and in which form."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from app.errors import NotFound
from app.store import Store
from app.store.answer_calibrations import KEPT, AnswerCalibrationStore
from app.store.tables import AnswerCalibrationRow, DecisionRow
from tests.kit.same_answer import calibration, classes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty one."""
    with Store(f"sqlite:///{tmp_path / 'racer.db'}") as opened:
        yield opened


def add(store: Store, number: int, *, setup: str = "one", activate: bool = False) -> int:
    """Keep the calibration of a day; its number among those of the application."""
    made = replace(
        calibration(classes(0, 20), classes(20, 30)),
        id=f"answers-{number}",
        answer_setup=setup,
        created_at=f"2026-01-01T{number:06}",
    )
    return AnswerCalibrationStore(store).add(made, activate=activate).evidence["ordinal"]


def test_old_calibrations_that_nothing_needs_are_deleted(store: Store) -> None:
    """Red when what decides, or explains a decision, is deleted, or a level is spent twice."""
    add(store, 0, setup="another")
    add(store, 1, activate=True)
    add(store, 2)
    with store.transaction() as session:
        session.add(
            DecisionRow(
                id="chatcmpl-1", created_at="2026", calibration_id="answers-2", key="",
                selected="[]", null_selected=False, ordinary=True, shadow=False, judged=False,
                document="{}",
            )
        )  # fmt: skip
    ordinals = [add(store, number) for number in range(3, KEPT + 10)]
    assert ordinals == list(range(3, KEPT + 10))  # another setup's count, too
    kept = AnswerCalibrationStore(store)
    numbers = [*range(KEPT + 9, 9, -1), 2, 1, 0]
    assert [each.id for each in kept.summaries("one")] == [f"answers-{each}" for each in numbers]
    assert kept.active("one")[""][0] == "answers-1"
    with pytest.raises(NotFound, match="answers-3"):
        kept.record("answers-3")


def test_ids_of_rows_are_beside_the_rows_wherever_they_were_before(store: Store) -> None:
    """Lists of records read no ids; a record of before has them in its document."""
    add(store, 1)
    kept = AnswerCalibrationStore(store)
    before = kept.record("answers-1")
    assert before.rows.fingerprints == classes(20, 30).fingerprints
    with store.transaction() as session:
        row = session.scalars(select(AnswerCalibrationRow)).one()
        document = json.loads(row.document)
        assert "ids" not in document
        with np.load(io.BytesIO(row.arrays)) as arrays:
            rest = {name: arrays[name] for name in arrays if not name.startswith("ids of")}
        parts = before.fitting, before.rows
        document["ids"] = [[each.decode() for each in part.fingerprints] for part in parts]
        row.document = json.dumps(document)
        np.savez_compressed(older := io.BytesIO(), **rest)
        row.arrays = older.getvalue()
    assert kept.record("answers-1").fitting.fingerprints == before.fitting.fingerprints
    assert kept.record("answers-1").rows.fingerprints == before.rows.fingerprints


def test_rows_keep_verdicts_labels_and_comparisons(store: Store) -> None:
    """Each of them is optional."""
    add(store, 1)
    plain = AnswerCalibrationStore(store).record("answers-1").rows
    assert (plain.verdicts, plain.labels, plain.equal) == (None, None, None)
    part = classes(0, 20)
    given = {
        "verdicts": (part.classes % 6).astype(np.int8),
        "labels": part.classes == 0,
        "equal": part.same,
    }
    made = replace(calibration(replace(part, **given), replace(part, **given)), id="answers-2")
    AnswerCalibrationStore(store).add(made, activate=False)
    kept = AnswerCalibrationStore(store).record("answers-2")
    for found in (kept.fitting, kept.rows):
        np.testing.assert_array_equal(found.verdicts, given["verdicts"])
        np.testing.assert_array_equal(found.labels, given["labels"])
        np.testing.assert_array_equal(found.equal, given["equal"])
