"""Texts that are points of the plane, for routers."""

from __future__ import annotations

import numpy as np

from racer_core.encoder.base import EncoderOutput, unit_rows
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.routers.base import Batch


class Coordinates:
    """An encoder for texts that are vectors already: "1 0.5" stands at (1, 0.5)."""

    spec = CharNgramEncoder().spec

    def encode(self, texts):
        """Unit vectors."""
        rows = np.array([[float(part) for part in text.split()] for text in texts])
        return EncoderOutput(unit_rows(rows.astype(np.float32)), np.zeros(len(texts), bool))


def scores_at(router, *points):
    """Scores of a router at points of the plane."""
    return router.predict(Batch([f"{x} {y}" for x, y in points], Coordinates())).scores.tolist()
