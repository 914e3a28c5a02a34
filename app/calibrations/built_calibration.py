"""Built calibration: labelled columns, put in the order of the router's pool and calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.calibrations.columns import RowColumns
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.kept_order import TokenPrices
from racer_core.calibration.options import CalibrationOptions
from racer_core.records.near_copies import count_near_copies
from racer_core.trained_router import LabelledColumns, RouterScores, Scorer, TrainedRouter
from racer_core.types import BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCalibration:
    """A calibration, and where its scores come from."""

    calibration: Calibration
    own_scores: bool  # some rows brought router scores of their own
    training_copies: int | None  # near copies of training rows; None where that is unknown


def build(
    trained: TrainedRouter,
    rows: RowColumns,
    options: CalibrationOptions,
    *,
    scorer: Scorer,
    prices: Sequence[float] | None,
    token_prices: Sequence[TokenPrices] | None = None,
    are_conversations: bool = False,
) -> BuiltCalibration:
    """Put the columns in the order of the router's pool, and calibrate. Blocks.

    Does not check whether the rows were training rows.

    Args:
        trained: The router.
        rows: Rows about the router's pool, in any order of candidates.
        options: The guarantee.
        scorer: Scores the rows that brought no scores.
        prices: Price per call of each candidate, in the order of the router's pool.
        token_prices: For each candidate, in the same order, its prices of an input token, of a
            cached input token and of an output token.
        are_conversations: The rows are all turns of conversations, turn by turn.

    Raises:
        CalibrationError: The columns do not fit.
    """
    copies: list[int | None] = []

    def score(queries: Sequence[str]) -> RouterScores:
        scored = scorer(queries)
        if scored.similarity is not None:
            copies.append(count_near_copies(scored.similarity))
        return scored

    order = [rows.pool.index(name) for name in trained.pool]
    turns = rows.turns if are_conversations else None
    columns = LabelledColumns(
        queries=rows.queries,
        fingerprints=rows.fingerprints,
        labels=rows.labels[:, order],
        scores=rows.scores[:, order],
        groups=rows.groups,
        quality=None if rows.quality is None else rows.quality[:, order],
        weights=rows.weights,
        unlabelled=rows.unlabelled,
        judged=None if rows.judged is None else rows.judged[:, order],
        conversations=turns and turns.conversations,
        turn_sizes=turns and turns.sizes,
    )
    return BuiltCalibration(
        calibration=trained.calibrate_columns(
            columns, options, scorer=score, prices=prices, token_prices=token_prices
        ),
        own_scores=bool(np.any(_unverified_scores(rows))),
        training_copies=copies[0] if copies else None,
    )


def _unverified_scores(rows: RowColumns) -> BoolArray:
    """Whether a row brings scores that are not known to be the router's, shape (n,)."""
    has_scores = ~np.isnan(rows.scores[:, 0])
    return has_scores if rows.verified is None else has_scores & ~rows.verified
