"""Hybrid encoder: a sentence embedding concatenated with hashed character n-grams.

A sentence encoder places texts of equal meaning close together; n-grams separate formats, languages
and rare words that it never learned. Neighbours by both give smaller sets than by either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from racer_core.encoder.base import Encoder, EncoderOutput, EncoderSpec, TokenizingEncoder
from racer_core.encoder.char_ngrams import CharNgramEncoder


@dataclass(frozen=True)
class HybridEncoder:
    """Both embeddings side by side, so that a cosine is the mean of the two cosines."""

    semantic: Encoder

    @property
    def spec(self) -> EncoderSpec:
        """The semantic encoder's, marked."""
        return replace(self.semantic.spec, lexical=True)

    def tokenized(self, texts: Sequence[str]) -> Sequence[str]:
        """The texts with the tokens of the semantic encoder, if it has a tokenizer."""
        semantic = self.semantic
        return semantic.tokenized(texts) if isinstance(semantic, TokenizingEncoder) else texts

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts; truncated where the semantic encoder cut."""
        semantic = self.semantic.encode(texts)
        lexical = CharNgramEncoder().encode(texts)
        both = np.concatenate([semantic.embeddings, lexical.embeddings], axis=1)
        return EncoderOutput((both * np.float32(0.5**0.5)).astype(np.float32), semantic.truncated)
