"""Facade of the core: load a trained router, calibrate it on labelled rows, choose sets. No HTTP.

    racer = Racer.load("deploy/demo/router")
    calibration = racer.calibrate(read_rows("deploy/demo/data/calibration.jsonl"), alpha=0.1)
    for decision in racer.route_batch(["What is 17 plus 25?"], calibration):
        print(decision.selected, decision.lambda_hat)

A ``Racer`` and a ``Calibration`` are immutable: swapping one is swapping a reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from racer_core import artifacts
from racer_core.calibration.augmentation import checked_scores
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.encoder.base import Encoder, TokenizingEncoder
from racer_core.encoder.components import projected
from racer_core.errors import ArtifactError, CalibrationError, InputError, RowsError
from racer_core.records.units import plain_names, rows_kind
from racer_core.routers.base import Batch, on_grid
from racer_core.trained_router import (
    LabelledColumns,
    RouterScores,
    Scorer,
    TrainedRouter,
    refuse_uncounted,
    with_dependence,
)
from racer_core.types import LabelledRows, RoutingDecision, RowsKind, Score

ONE_PER_CLUSTER_NEEDS_KIND: Final = (
    "one_per_cluster needs the kind of the rows: say traffic or questions. In a list of questions "
    "equal queries belong to one cluster, in traffic they do not"
)


@dataclass(frozen=True, slots=True)
class Racer(TrainedRouter):
    """A loaded artifact with its encoder opened."""

    encoder: Encoder

    @classmethod
    def load(cls, folder: str | Path, pool: Sequence[str] | None = None) -> Self:
        """Open an artifact and its encoder. Raises :class:`ArtifactError` when they do not fit."""
        artifact = artifacts.load(folder, pool)
        racer = cls(artifact, artifacts.open_encoder(artifact.encoder))
        try:
            checked_scores(racer.score(["a first query"]).scores)
        except ValueError as exc:
            raise ArtifactError(f"the router does not fit the encoder's embeddings: {exc}") from exc
        except InputError as exc:
            raise ArtifactError(f"the router gives no chances for a first query: {exc}") from exc
        return racer

    def tokenized(self, queries: Sequence[str]) -> Sequence[str]:
        """Queries for :meth:`score` with their tokens, if the encoder has a tokenizer.

        Another thread may call it during a forward pass. Scores are the same with and without it.
        """
        encoder = self.encoder
        return encoder.tokenized(queries) if isinstance(encoder, TokenizingEncoder) else queries

    def score(self, queries: Sequence[str]) -> RouterScores:
        """F for each query, identical in calibration and serving.

        Rounded to a grid, because the last bits of float32 kernels depend on the batch: a query
        then nearly always has the same set in every batch. bfloat16 moves embeddings by 1e-4, which
        only the votes of KNN absorb.
        """
        batch = Batch(queries, self.encoder)
        output = self.artifact.router.predict(batch)
        scores = np.asarray(output.scores, dtype=np.float64)
        components, projections = self.artifact.components, None
        if components is not None:
            projections = projected(batch.encoded.embeddings, components)
        return RouterScores(
            on_grid(scores),
            batch.encoded.truncated,
            output.neighbours,
            projections,
            output.similarity,
        )

    def calibrate(
        self,
        rows: LabelledRows,
        *,
        alpha: float = 0.1,
        options: CalibrationOptions | None = None,
        allow_overlap: bool = False,
        scorer: Scorer | None = None,
        prices: Sequence[float] | None = None,
    ) -> Calibration:
        """Score labelled rows, and return the calibration from which all thresholds follow.

        Args:
            rows: Labelled for exactly this pool; not used for training or tuning. Only rows whose
                ``kind`` is said to be traffic may repeat queries of training.
            alpha: Risk level, if ``options`` is not given.
            options: The complete terms of the guarantee. With ``one_per_cluster`` one row of each
                cluster is drawn and calibrates.
            allow_overlap: Accept rows that the router was trained on. The guarantee is then void.
            scorer: Scores the rows; None means :meth:`score`. A server passes one that shares the
                device with live traffic.
            prices: Price per call of each candidate, in the order of the pool.

        Raises:
            RowsError: The rows have another pool.
            OverlapError: Some rows were training rows.
            CalibrationError: No row counts for the risk.
        """
        if set(rows.pool) != set(self.pool):
            raise RowsError("rows", [f"their pool {list(rows.pool)} is not {list(self.pool)}"])
        if any(row.earlier for row in rows.rows):
            raise RowsError(
                "rows", ["turns after the first are another population: leave them out"]
            )
        if options is None:
            tau = self.artifact.null_threshold
            options = CalibrationOptions(
                alpha=alpha,
                score=Score.COVER,
                null_threshold=tau,
                smoothing_salt=SMOOTHING_SALT,
            )
        columns = self._columns(rows)
        if not allow_overlap:
            prints = [self.artifact.overlap_print(query) for query in rows.queries]
            self.refuse_overlap(prints, rows.kind)
        kind = rows_kind(rows)
        if options.one_per_cluster and rows.kind is None:
            raise CalibrationError(ONE_PER_CLUSTER_NEEDS_KIND)
        if options.one_per_cluster or kind is RowsKind.QUESTIONS:
            clusters = [row.shared if options.one_per_cluster else None for row in rows.rows]
            chosen = self.one_per_cluster(plain_names(rows), clusters, kind)
            columns = self._columns(rows[chosen])
        counts = Counter(row.shared for row in rows.rows if row.shared is not None)
        shares_clusters = any(count > 1 for count in counts.values())
        calibration = self.calibrate_columns(
            columns,
            with_dependence(options, kind, shares_clusters=shares_clusters),
            scorer=scorer or self.score,
            prices=prices,
        )
        refuse_uncounted(calibration)
        return calibration

    def _columns(self, rows: LabelledRows) -> LabelledColumns:
        order = [rows.pool.index(name) for name in self.pool]
        none = [np.nan] * len(rows.pool)
        scores = np.array([none if row.scores is None else row.scores for row in rows.rows])
        scores = scores.reshape(len(rows), len(rows.pool))
        groups = tuple(row.group for row in rows.rows)
        return LabelledColumns(
            queries=rows.queries,
            # Rows with scores only have no query; each still needs noise of its own.
            fingerprints=[
                self.fingerprint(query or f"\0row {i}") for i, query in enumerate(rows.queries)
            ],
            labels=rows.labels(self.pool),
            scores=scores[:, order],
            groups=groups if any(groups) else None,
            quality=rows.quality(self.pool),
            weights=rows.weights,
            unlabelled=np.array([row.unlabelled for row in rows.rows], bool),
            judged=rows.verdicts(self.pool),
        )

    def route_batch(
        self,
        queries: Sequence[str],
        calibration: Calibration,
        *,
        alpha: float | None = None,
        score: Score | None = None,
        group: str | None = None,
    ) -> list[RoutingDecision]:
        """Choose a set for each query.

        Args:
            queries: The texts.
            calibration: Of this router.
            alpha: Risk level; None takes that of the calibration.
            score: Nonconformity score; None takes that of the calibration.
            group: The group of all these queries, whose rows set the threshold; with too few rows
                the whole pool is called. None takes the threshold of all rows.

        Returns:
            The decisions; ``Calibration.certify`` of the calibration, or of its group, certifies
            each.
        """
        calibration = calibration if group is None else calibration.group(group)
        scored = self.score(queries)
        return [
            calibration.decide(
                self.fingerprint(query),
                scored.scores[i].tolist(),
                neighbours=None if scored.neighbours is None else scored.neighbours[i],
                alpha=alpha,
                score=score,
                truncated=bool(scored.truncated[i]),
            )
            for i, query in enumerate(queries)
        ]
