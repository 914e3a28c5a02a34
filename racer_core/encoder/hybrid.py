"""Meaning and spelling together: an encoder's embedding beside the hashed character n-grams.

A sentence encoder puts what means the same close together; n-grams tell formats, languages and
rare words apart that it never learned. Neighbours found by both make smaller sets than by either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from racer_core.encoder.base import Encoded, Encoder, EncoderSpec
from racer_core.encoder.char_ngrams import CharNgramEncoder


@dataclass(frozen=True)
class HybridEncoder:
    """Both embeddings side by side, so that a cosine is the mean of the two cosines."""

    semantic: Encoder

    @property
    def spec(self) -> EncoderSpec:
        """The semantic encoder's, marked."""
        return replace(self.semantic.spec, lexical=True)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Embed texts; truncated where the semantic encoder cut."""
        semantic = self.semantic.encode(texts)
        lexical = CharNgramEncoder().encode(texts)
        both = np.concatenate([semantic.embeddings, lexical.embeddings], axis=1)
        return Encoded((both * np.float32(0.5**0.5)).astype(np.float32), semantic.truncated)
