"""Hashed character n-grams: an encoder without model weights.

It represents spelling, not meaning; figures based on it say so. numpy only.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from racer_core.encoder.base import EncoderOutput, EncoderSpec, unit_rows

_WIDTH: Final = 4096
_SIZES: Final = (2, 3, 4)
_MAX_CHARS: Final = 2_048


SPEC: Final = EncoderSpec(
    kind="char-ngrams",
    name="char-ngrams",
    digest=f"v2-{_WIDTH}",
    pooling="mean",
    max_tokens=_MAX_CHARS,
    backend="numpy",
    dtype="float32",
    forward=None,
)


class CharNgramEncoder:
    """Counts of 2- to 4-grams within case-folded words, hashed into 4,096 signed buckets."""

    @property
    def spec(self) -> EncoderSpec:
        """The same for every instance."""
        return SPEC

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts: embeddings (B, 4096) of length 1, and whether each text was cut."""
        vectors = np.zeros((len(texts), _WIDTH), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            hashes = np.array(_gram_hashes(text[:_MAX_CHARS]), dtype=np.int64)
            # Signs make collisions cancel on average; the logarithm damps repetition.
            np.add.at(row, hashes % _WIDTH, np.where(hashes & (1 << 31), -1.0, 1.0))
        damped = np.sign(vectors) * np.log1p(np.abs(vectors))
        return EncoderOutput(
            embeddings=unit_rows(damped),
            truncated=np.array([len(text) > _MAX_CHARS for text in texts], dtype=bool),
        )


def _gram_hashes(text: str) -> list[int]:
    return [
        zlib.crc32(word[start : start + size].encode())
        for word in (f" {each} " for each in text.casefold().split())
        for size in _SIZES
        for start in range(max(len(word) - size + 1, 1))
    ]
