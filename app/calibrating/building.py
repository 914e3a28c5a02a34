"""From the columns of an upload to a calibration: scored, fingerprinted, put in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.calibrating.columns import RowColumns
from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.errors import CalibrationError, OverlapError
from racer_core.racer import Racer, Scored
from racer_core.routers.base import on_grid

Scorer = Callable[[Sequence[str]], Scored]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A calibration, and what is known of its rows beside it."""

    calibration: Calibration
    overlap: int  # rows that were training rows of the router
    own_scores: bool  # some rows brought router scores of their own


def build(
    racer: Racer,
    rows: RowColumns,
    options: CalibrationOptions,
    *,
    allow_overlap: bool,
    scorer: Scorer,
    prices: Sequence[float] | None,
) -> Built:
    """The same calibration as :meth:`Racer.calibrate`, from columns. Blocks.

    Args:
        racer: The router that serves.
        rows: About the router's pool, in any order of it.
        options: What the guarantee says.
        allow_overlap: Accept rows that the router was trained on. The guarantee is then void.
        scorer: Scores the rows that brought no scores.
        prices: Price per call of each candidate, in the order of the router's pool.

    Raises:
        OverlapError: Some rows were training rows.
        CalibrationError: No row counts.
    """
    overlap = _overlap(racer, rows.fingerprints)
    if overlap and not allow_overlap:
        raise OverlapError(
            f"{len(overlap)} of {len(rows)} rows were training rows of the router (first: row "
            f"{overlap[0] + 1}); leave them out, or allow the overlap and lose the guarantee"
        )
    columns = [rows.pool.index(name) for name in racer.pool]
    scored, own_scores = _scored(rows, columns, scorer)
    calibration = Calibration(
        pool=racer.pool,
        fingerprints=rows.fingerprints,
        scores=scored.scores,
        labels=rows.labels[:, columns],
        options=options,
        neighbours=scored.neighbours,
        patterns=racer.artifact.patterns,
        prices=None if prices is None else tuple(prices),
        groups=rows.groups,
    )
    if calibration.n == 0:
        raise CalibrationError("no row that some candidate answers right: nothing to calibrate on")
    return Built(calibration=calibration, overlap=len(overlap), own_scores=own_scores)


def _overlap(racer: Racer, prints: Sequence[bytes]) -> list[int]:
    known = racer.artifact.training_fingerprints | racer.artifact.validation_fingerprints
    return [i for i, each in enumerate(prints) if each in known]


def _scored(rows: RowColumns, columns: list[int], scorer: Scorer) -> tuple[Scored, bool]:
    """What the router says of the rows, or the scores that they brought; and whether any did.

    Brought scores have no neighbours. Where there are any, the cover scores tilt by the scores
    alone, for all rows and when serving.
    """
    asked = np.flatnonzero(np.isnan(rows.scores[:, 0]))
    if len(asked) == len(rows):
        return scorer(rows.queries), False
    scores = rows.scores[:, columns]
    truncated = np.zeros(len(rows), dtype=bool)
    if asked.size:
        scored = scorer([rows.queries[int(i)] for i in asked])
        scores[asked], truncated[asked] = scored.scores, scored.truncated
    return Scored(on_grid(scores), truncated), True
