"""Train a router on labelled rows and bind it into an artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from racer_core import artifacts
from racer_core.artifacts import Artifact, CandidateSpec
from racer_core.calibration.calibration import choose_null_threshold
from racer_core.encoder.base import Encoded, Encoder, EncoderSpec, Pooling
from racer_core.encoder.char_ngrams import SPEC as CHAR_NGRAMS
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.errors import RowsError
from racer_core.routers.base import Batch, Router, on_grid
from racer_core.routers.knn import KnnRouter
from racer_core.routers.mlp import MlpRouter
from racer_core.types import BoolArray, LabelledRows

RouterKind = Literal["knn", "mlp"]
_PIECE = 256
Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderChoice:
    """Which encoder to open; None lets the machine decide (GPU, native bfloat16)."""

    name: str
    pooling: Pooling = "mean"
    max_tokens: int = 512
    backend: str | None = None
    dtype: str | None = None

    def open(self) -> Encoder:
        """Open the encoder; the name ``char-ngrams`` is the one without weights."""
        if self.name == CHAR_NGRAMS.name:
            return CharNgramEncoder()
        return HuggingFaceEncoder(
            self.name,
            pooling=self.pooling,
            max_tokens=self.max_tokens,
            backend=self.backend,
            dtype=self.dtype,
        )


@dataclass(frozen=True, slots=True)
class ReportingEncoder:
    """An encoder that tells how far it is; embeds in pieces long enough to batch well."""

    encoder: Encoder
    progress: Progress

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's own."""
        return self.encoder.spec

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Embed texts, piece by piece."""
        parts: list[Encoded] = []
        for start in range(0, len(texts), _PIECE):
            parts.append(self.encoder.encode(texts[start : start + _PIECE]))
            self.progress("embedding", min(start + _PIECE, len(texts)), len(texts))
        return Encoded(
            np.concatenate([part.embeddings for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )


def silent(_stage: str, _done: int, _total: int) -> None:
    """Report nothing."""


def fit_router(
    kind: RouterKind, batch: Batch, labels: BoolArray, *, seed: int, progress: Progress = silent
) -> Router:
    """Train a router on the rows' embeddings; ``progress`` hears of each epoch of an MLP."""
    embeddings = batch.encoded.embeddings
    if kind == "knn":
        return KnnRouter.fit(embeddings, labels)
    epochs = 100
    return MlpRouter.fit(
        embeddings,
        labels,
        seed=seed,
        epochs=epochs,
        progress=lambda epoch, loss: progress(f"MLP, loss {loss:.3f}", epoch, epochs),
    )


def check_queries(rows: LabelledRows, source: str) -> None:
    """Refuse rows of router scores alone: a router learns from texts. Raises RowsError."""
    if any(not query for query in rows.queries):
        raise RowsError(source, ["rows of router scores alone have no text to embed"])


def train(
    rows: LabelledRows,
    validation: LabelledRows,
    folder: Path,
    *,
    encoder: Encoder,
    kind: RouterKind,
    seed: int = 0,
    candidates: Sequence[CandidateSpec] | None = None,
    false_abstain_budget: float = 0.01,
    progress: Progress = silent,
) -> Artifact:
    """Train, choose tau on the validation rows, and save the artifact.

    Args:
        rows: Training rows; their queries may not be used for calibration.
        validation: Rows of their own for tau, the p_null from which the gateway abstains.
        folder: Where the artifact goes.
        encoder: Opened encoder; its backend and dtype are bound into the artifact.
        kind: ``knn`` or ``mlp``.
        seed: Of the MLP's weights and order of rows.
        candidates: Models and decoding parameters; None takes the rows' pool as it is.
        false_abstain_budget: Largest share of answerable validation rows that tau may refuse.
        progress: Hears of each stage.

    Raises:
        RowsError: Rows without a query, or two files about different pools.
    """
    specs = tuple(candidates or (CandidateSpec(name=name) for name in rows.pool))
    pool = tuple(spec.name for spec in specs)
    for source, given in (("training rows", rows), ("validation rows", validation)):
        if set(given.pool) != set(pool):
            raise RowsError(source, [f"their pool {list(given.pool)} is not {list(pool)}"])
        check_queries(given, source)
    encoder = ReportingEncoder(encoder, progress)
    batch = Batch(rows.queries, encoder)
    router = fit_router(kind, batch, rows.labels(pool), seed=seed, progress=progress)
    scores = on_grid(router.predict(Batch(validation.queries, encoder)).scores)
    salt = artifacts.new_salt()
    artifact = Artifact(
        candidates=specs,
        encoder=encoder.spec,
        router=router,
        null_threshold=choose_null_threshold(scores, validation.labels(pool), false_abstain_budget),
        salt=salt,
        training_fingerprints=frozenset(
            artifacts.fingerprint(salt, query) for query in rows.queries + validation.queries
        ),
    )
    return artifacts.save(artifact, folder)
