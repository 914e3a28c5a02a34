"""Labelled rows about four topics: each of three candidates is good at one, none at the last."""

from __future__ import annotations

import numpy as np

from racer_core.types import LabelledRow, LabelledRows

POOL = ("adder", "traveller", "painter")
TOPICS = (
    ("What is {} plus {}?", (0.95, 0.3, 0.2)),
    ("How far is it from town {} to town {} by train?", (0.2, 0.9, 0.4)),
    ("Which colour do you get when you mix paint {} with paint {}?", (0.1, 0.3, 0.9)),
    ("Who will win race {} in season {} of the next century?", (0.05, 0.1, 0.1)),
)


def synthetic_rows(count: int, seed: int, *, answers: bool = False) -> LabelledRows:
    """Rows of one seed; rows of two seeds below 1,000 share no query.

    With ``answers`` the right text is "right", and wrong candidates disagree with each other.
    """
    rng = np.random.default_rng(seed)
    rows: list[LabelledRow] = []
    for number in range(count):
        question, chances = TOPICS[rng.integers(len(TOPICS))]
        right = rng.random(len(POOL)) < chances
        texts = {m: "right" if r else f"{m}'s guess" for m, r in zip(POOL, right, strict=True)}
        rows.append(
            LabelledRow(
                query=question.format(10_000 * seed + number, rng.integers(1_000)),
                correct=frozenset(m for m, r in zip(POOL, right, strict=True) if r),
                answers=texts if answers else {},
            )
        )
    return LabelledRows(pool=POOL, rows=tuple(rows))
