"""Policies of the miss promise: some candidate that was called is right, if any candidate is.

It needs labels, and calibrates on rows with a right candidate alone. Agreement says little about
misses, for wrong answers agree, too; a checker says more.
"""

from __future__ import annotations

import numpy as np

from racer_core.aggregation.vote import OPTIONS
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.fit import default_borders
from racer_core.sequential.policy import Loss, Policy
from racer_core.sequential.reliability import label_rates
from racer_core.types import BoolArray


def fit_coverage_policy(
    rows: AnswerClasses, *, max_rounds: int | None = 2, options: int = OPTIONS
) -> Policy:
    """A policy whose loss is a miss; its order covers the most rows with the fewest candidates.

    Args:
        rows: Labelled rows that will calibrate nothing.
        max_rounds: As for :func:`racer_core.sequential.fit.fit_policy`.
        options: As there.

    Raises:
        CalibrationError: The rows have no labels, or no candidate is right on any.
    """
    labels = rows.answerable().labels
    assert rows.labels is not None
    assert labels is not None
    options = max(options, len(rows.pool), 2)
    reliabilities, checker = label_rates(rows.classes, rows.labels, rows.verdicts)
    return Policy(
        pool=rows.pool,
        reliabilities=tuple(reliabilities.tolist()),
        order=_covering(rows.pool, labels),
        borders=default_borders(len(rows.pool), max_rounds),
        options=options,
        checker=checker,
        loss=Loss.MISSES,
    )


def _covering(pool: tuple[str, ...], labels: BoolArray) -> tuple[str, ...]:
    """The candidate that is right on most rows, then the one that adds most, and so on.

    Equal ones go by their own accuracy and by name.
    """
    right = dict(zip(pool, labels.T, strict=True))
    covered = np.zeros(len(labels), dtype=bool)
    order: list[str] = []
    while right:
        best = min(
            right, key=lambda name: (-(covered | right[name]).sum(), -right[name].sum(), name)
        )
        order.append(best)
        covered |= right.pop(best)
    return tuple(order)
