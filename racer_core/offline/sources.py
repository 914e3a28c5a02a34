"""Base routers of an evaluation: trained in every division, trained before, or a matrix of scores.

A source takes the training rows of a division and returns a router that scores all other rows. The
rest of the evaluation does not know which source it was.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from racer_core import artifacts
from racer_core.artifacts import Artifact
from racer_core.encoder.base import Encoder, EncoderSpec
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline import fit
from racer_core.offline.fit import RouterChoice
from racer_core.offline.protocol import Rows
from racer_core.offline.reporting import Progress, ReportingEncoder
from racer_core.offline.stacking import out_of_fold
from racer_core.offline.train import train
from racer_core.records.conversation import plain_form
from racer_core.records.units import units_of
from racer_core.routers.base import Batch, Router, RouterOutput
from racer_core.routers.registry import CustomRouter
from racer_core.routers.router_dc import RouterDcRouter
from racer_core.types import BoolArray, FloatArray, LabelledRows

# Every tenth unit of training rows maps RouterDC's cosines to chances and fits its stacked vote.
HELD_OUT: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionRouter:
    """The router of one division.

    Attributes:
        predict: Scores queries that did not train it.
        vote_rows: Numbers of the training rows on which the stacked vote is fitted.
        vote_scores: The scores of these rows, shape (m, K), by routers that have not learned them.
    """

    predict: Callable[[Sequence[str]], RouterOutput]
    vote_rows: Rows
    vote_scores: Callable[[], FloatArray]


class RouterSource(Protocol):
    """A base router of an evaluation."""

    @property
    def name(self) -> str:
        """The router's name in reports."""
        ...

    @property
    def spec(self) -> EncoderSpec | None:
        """Its encoder; None for scores that need none."""
        ...

    @property
    def encoder(self) -> Encoder | None:
        """Its encoder, before any fine-tuning; None for scores that need none."""
        ...

    @property
    def artifact(self) -> Artifact | None:
        """The artifact that trained it before; None if it takes the division's training rows."""
        ...

    def fit(
        self, rows: LabelledRows, units: Rows, *, seed: int, progress: Progress
    ) -> DivisionRouter:
        """The router of a division.

        Args:
            rows: Training rows.
            units: The unit of each, shape (n,), numbered by first appearance: rows of one unit are
                never on two sides of a division.
            seed: Of the training.
            progress: Called at each stage.

        Raises:
            InputError: No training rows, unknown options, or a training that diverges.
            ArtifactError: A router of a package fails, or a cached router cannot be read.
        """
        ...


def trained_source(
    choice: RouterChoice,
    encoder: Encoder,
    *,
    folder: Path | None = None,
    cached: Callable[[Encoder], Encoder] = lambda encoder: encoder,
) -> RouterSource:
    """The source of a built-in router, which every division trains.

    Args:
        choice: The router and its options; the seed is that of the division.
        encoder: Embeds the rows; RouterDC fine-tunes a copy of it.
        folder: Keeps fine-tuned routers; None keeps none.
        cached: Puts a cache of embeddings before a fine-tuned encoder.

    Raises:
        InputError: Unknown options.
    """
    fit.checked_settings(choice)
    if choice.kind == RouterDcRouter.kind:
        return FineTunedSource(choice, encoder, folder, cached)
    return EmbeddedSource(choice, encoder)


@dataclass(frozen=True, slots=True)
class EmbeddedSource:
    """KNN or an MLP on embeddings, trained in every division."""

    choice: RouterChoice
    encoder: Encoder

    artifact = None

    @property
    def name(self) -> str:
        """The router's kind."""
        return self.choice.kind

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's."""
        return self.encoder.spec

    def fit(
        self, rows: LabelledRows, units: Rows, *, seed: int, progress: Progress
    ) -> DivisionRouter:
        """Train it; the stacked vote takes all training rows, scored out of fold."""
        choice = replace(self.choice, seed=seed)
        encoder = ReportingEncoder(self.encoder, progress)
        batch, labels = Batch(rows.queries, encoder), rows.labels(rows.pool)

        def trained(batch: Batch, labels: BoolArray) -> Router:
            return fit.fit_embedded(choice, batch.encoded.embeddings, labels, progress=progress)

        router = trained(batch, labels)
        return DivisionRouter(
            predict=lambda texts: router.predict(Batch(texts, encoder)),
            vote_rows=np.arange(len(rows)),
            vote_scores=lambda: out_of_fold(rows.pool, (), batch, labels, trained, units).scores,
        )


@dataclass(frozen=True, slots=True)
class FineTunedSource:
    """RouterDC, whose encoder is fine-tuned in every division.

    Attributes:
        choice: The router and its options; ``seed`` is that of the division.
        encoder: The encoder to start from.
        folder: Keeps trained routers under a digest of all that determines them, so that no
            division is trained twice; None keeps none.
        cached: Puts a cache of embeddings before a fine-tuned encoder.
    """

    choice: RouterChoice
    encoder: Encoder
    folder: Path | None
    cached: Callable[[Encoder], Encoder]

    artifact = None

    @property
    def name(self) -> str:
        """The router's kind."""
        return self.choice.kind

    @property
    def spec(self) -> EncoderSpec:
        """That of the encoder before fine-tuning."""
        return self.encoder.spec

    def fit(
        self, rows: LabelledRows, units: Rows, *, seed: int, progress: Progress
    ) -> DivisionRouter:
        """Train it on nine tenths of the units, or open what an earlier evaluation trained."""
        # Rows of traffic may repeat a query, which is learned or held out as a whole.
        whole = units_of([plain_form(query) for query in rows.queries], list(map(str, units)))
        is_held_out = whole % HELD_OUT == 0
        held_out, learned = np.flatnonzero(is_held_out), np.flatnonzero(~is_held_out)
        parts = _unanswered(rows, learned), _unanswered(rows, held_out)
        choice = replace(self.choice, seed=seed, resume=True)
        cache = None if self.folder is None else self.folder / self._key(choice, *parts)
        with tempfile.TemporaryDirectory() if cache is None else nullcontext(cache) as folder:
            trained = self._trained(choice, *parts, Path(folder), progress)
            encoder = artifacts.open_encoder(trained.encoder)
        encoder = ReportingEncoder(self.cached(encoder), progress)
        router = trained.router

        def predict(texts: Sequence[str]) -> RouterOutput:
            return router.predict(Batch(texts, encoder))

        return DivisionRouter(
            predict=predict,
            vote_rows=held_out,
            vote_scores=lambda: predict(parts[1].queries).scores,
        )

    def _trained(
        self,
        choice: RouterChoice,
        learned: LabelledRows,
        held_out: LabelledRows,
        folder: Path,
        progress: Progress,
    ) -> Artifact:
        if (folder / "manifest.json").is_file():
            return artifacts.load(folder, learned.pool)
        return train(
            learned,
            held_out,
            folder,
            encoder=self.encoder,
            kind=choice.kind,
            options=choice.options,
            resume=True,
            seed=choice.seed,
            progress=progress,
        )

    def _key(self, choice: RouterChoice, learned: LabelledRows, held_out: LabelledRows) -> str:
        own, other = (fit.Rows.of(part, part.pool) for part in (learned, held_out))
        identity = fit.identity(choice, own, learned.pool, self.encoder.spec)
        identity |= {"validation": fit.digest(other), "schema": artifacts.SCHEMA_VERSION}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FixedSource:
    """A router that no row of the evaluation trains.

    A router of an installed package, the router of an artifact, or a matrix of scores. Without an
    artifact the training rows serve the patterns of ``cover`` and the stacked vote.
    """

    name: str
    router: CustomRouter
    encoder: Encoder | None = None
    artifact: Artifact | None = None

    @property
    def spec(self) -> EncoderSpec | None:
        """The encoder's."""
        return None if self.encoder is None else self.encoder.spec

    def fit(
        self, rows: LabelledRows, units: Rows, *, seed: int, progress: Progress
    ) -> DivisionRouter:
        """The router as it is."""
        del units, seed
        # Stored scores embed nothing; a batch still has an encoder.
        encoder = ReportingEncoder(self.encoder or CharNgramEncoder(), progress)

        def predict(texts: Sequence[str]) -> RouterOutput:
            return self.router.predict(Batch(texts, encoder))

        return DivisionRouter(
            predict=predict,
            vote_rows=np.arange(len(rows)),
            vote_scores=lambda: predict(rows.queries).scores,
        )


def _unanswered(rows: LabelledRows, numbers: Rows) -> LabelledRows:
    """Some rows without answers, on which the training of a router does not depend."""
    chosen = (replace(rows.rows[int(i)], answers={}) for i in numbers)
    return LabelledRows(pool=rows.pool, rows=tuple(chosen))
