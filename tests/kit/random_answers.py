"""Random calibrations, and answers of candidates to their rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.calibrations.columns import RowColumns, Texts
from racer_core.aggregation.answers import Equality
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.types import RiskTarget, RowsKind
from tests.kit.answers import row_answers
from tests.kit.gateway import POOL

PRICES = (4.0, 1.0, 0.5)


def randoms(count: int, *, seed: int = 0, names: Sequence[str] = POOL) -> Calibration:
    """A calibration of random scores that mean something."""
    rng = np.random.default_rng(seed)
    scores = rng.random((count, len(names)))
    return Calibration(
        pool=tuple(names),
        fingerprints=tuple(int(i).to_bytes(16) for i in range(count)),
        scores=scores,
        labels=rng.random(scores.shape) < scores,
        options=CalibrationOptions(alpha=0.2, risk_target=RiskTarget.ANSWERABLE),
        prices=PRICES[: len(names)],
    )


def answering(
    calibration: Calibration, *, spread: int = 3, silent: float = 0.1
) -> tuple[RowColumns, list[dict[str, str | None]]]:
    """Answers to the rows of a calibration: the right one is ``right``, others scatter."""
    rng = np.random.default_rng(7)
    answers: list[dict[str, str | None]] = []
    for labels in calibration.labels:
        texts = {
            name: "Right." if right else f"wrong {rng.integers(spread)}"
            for name, right in zip(calibration.pool, labels, strict=True)
        }
        answers.append({n: None if rng.random() < silent else text for n, text in texts.items()})
    shape = calibration.scores.shape
    columns = [[each.get(name) for name in calibration.pool] for each in answers]
    rows = RowColumns(
        pool=calibration.pool,
        queries=Texts(b"", np.zeros(shape[0], np.int64)),
        fingerprints=calibration.fingerprints,
        overlap_prints=calibration.fingerprints,
        identities=calibration.fingerprints,
        query_hashes=np.arange(shape[0], dtype=np.uint64),
        labels=calibration.labels,
        scores=np.full(shape, np.nan),
        groups=None,
        clusters=np.full(shape[0], -1),
        answers=row_answers(columns, Equality.EXACT),
        answered=np.ones(shape[0], bool),
        later=np.zeros(shape[0], bool),
        conditions=(),
        condition_ids=np.full(shape[0], -1),
        duplicates=0,
        near_duplicates=0,
        assumed=0,
        guessed_kind=RowsKind.QUESTIONS,
        unlabelled=np.zeros(shape[0], bool),
        sampled=np.zeros(shape[0], bool),
    )
    return rows, answers
