"""From the columns of an upload to a calibration, and what its evidence says of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.calibrations.columns import RowColumns
from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.racer import LabelledColumns, Scorer, Trained


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCalibration:
    """A calibration, and what is known of its rows beside it."""

    calibration: Calibration
    own_scores: bool  # some rows brought router scores of their own


def build(
    trained: Trained,
    rows: RowColumns,
    options: CalibrationOptions,
    *,
    scorer: Scorer,
    prices: Sequence[float] | None,
) -> BuiltCalibration:
    """Put the columns in the order of the router's pool, and calibrate. Blocks.

    Whether they were training rows is looked at before.

    Args:
        trained: The router that serves.
        rows: About the router's pool, in any order of it.
        options: What the guarantee says.
        scorer: Scores the rows that brought no scores.
        prices: Price per call of each candidate, in the order of the router's pool.

    Raises:
        CalibrationError: The columns do not fit.
    """
    order = [rows.pool.index(name) for name in trained.pool]
    columns = LabelledColumns(
        queries=rows.queries,
        fingerprints=rows.fingerprints,
        labels=rows.labels[:, order],
        scores=rows.scores[:, order],
        groups=rows.groups,
    )
    return BuiltCalibration(
        calibration=trained.calibrate_columns(columns, options, scorer=scorer, prices=prices),
        own_scores=not bool(np.isnan(rows.scores[:, 0]).all()),
    )
