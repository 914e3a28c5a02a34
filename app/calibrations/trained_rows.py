"""Trained rows: sampled rows that trained the router, which calibration leaves out."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from app.calibrations.columns import RowColumns
from racer_core.errors import CalibrationError


def without_trained(rows: RowColumns, trained: Collection[bytes]) -> tuple[RowColumns, int]:
    """The rows of an upload whose decision and conversation are not of training or tuning.

    `racer split` draws the rows of training at random, with their conversations whole and whatever
    their labels. So the other rows are drawn like the traffic, given the router.

    Args:
        rows: The rows.
        trained: Keyed hashes of the sampled conversations and decisions of training and tuning.

    Returns:
        The other rows, and how many were left out.

    Raises:
        CalibrationError: No row is left.
    """
    if rows.sample_prints is None or not trained:
        return rows, 0
    others = np.flatnonzero([each not in trained for each in rows.sample_prints])
    left_out = len(rows) - len(others)
    if not len(others):
        raise CalibrationError(
            f"all {left_out} rows trained the router, and none of them may calibrate it: wait for "
            "newer rows, or train on a part of the sample (racer split)"
        )
    return rows.take(others), left_out
