"""Progress reports of long runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from racer_core.encoder.base import Encoder, EncoderOutput, EncoderSpec

_PIECE = 256
Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all


def silent(_stage: str, _done: int, _total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class ReportingEncoder:
    """An encoder that reports progress; its pieces are large enough for efficient batches."""

    encoder: Encoder
    progress: Progress

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's own."""
        return self.encoder.spec

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts, piece by piece."""
        parts: list[EncoderOutput] = []
        for start in range(0, len(texts), _PIECE):
            parts.append(self.encoder.encode(texts[start : start + _PIECE]))
            self.progress("embedding", min(start + _PIECE, len(texts)), len(texts))
        return EncoderOutput(
            np.concatenate([part.embeddings for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class RememberingEncoder:
    """An encoder that remembers embeddings, so that several training steps share them."""

    encoder: Encoder
    _known: dict[tuple[str, ...], EncoderOutput] = field(
        default_factory=dict[tuple[str, ...], EncoderOutput]
    )

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's own."""
        return self.encoder.spec

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts, or return the remembered embeddings."""
        key = tuple(texts)
        if key not in self._known:
            self._known[key] = self.encoder.encode(texts)
        return self._known[key]
