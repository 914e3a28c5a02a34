"""Texts of words of one half of the alphabet: which half decides who is right."""

from __future__ import annotations

import numpy as np

from racer_core.types import LabelledRow, LabelledRows

FIRST, SECOND = "abcd", "efgh"


def words(count, seed):
    """Texts of words of one half of the alphabet; candidate m is right on half m."""
    rng = np.random.default_rng(seed)
    halves = rng.integers(0, 2, count)
    texts = [" ".join(rng.choice(list((FIRST, SECOND)[half]), 5)) for half in halves]
    return texts, np.column_stack([halves == 0, halves == 1])


QUICK = {"steps": 40, "learning_rate": 3e-3, "temperature": 0.2, "clusters": 2}


def rows_of(count, seed):
    """Rows whose first letter decides by its half of the alphabet which candidate is right."""
    texts, labels = words(count, seed)
    unique = [f"{text} h{number}" for number, text in enumerate(texts)]  # h1 is an unknown word
    return LabelledRows(
        pool=("m", "n"),
        rows=tuple(
            LabelledRow(query=text, correct=frozenset(np.array(["m", "n"])[right].tolist()))
            for text, right in zip(unique, labels, strict=True)
        ),
    )
