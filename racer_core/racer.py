"""Facade of the core: load a trained router, calibrate it on labelled rows, choose sets. No HTTP.

    racer = Racer.load("deploy/demo/router")
    calibration = racer.calibrate(read_rows("deploy/demo/data/calibration.jsonl"), alpha=0.1)
    for decision in racer.route_batch(["What is 17 plus 25?"], calibration):
        print(decision.selected, decision.lambda_hat)

A ``Racer`` and a ``Calibration`` are immutable: swapping one is swapping a reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core import artifacts
from racer_core.artifacts import Artifact
from racer_core.calibration.augmentation import checked_scores
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.encoder.base import Encoder
from racer_core.encoder.components import projected
from racer_core.errors import (
    ArtifactError,
    CalibrationError,
    InputError,
    OverlapError,
    RowsError,
)
from racer_core.records.overlap import is_fresh_traffic
from racer_core.records.units import cluster_units, kind_of, one_per_unit
from racer_core.renamed import renamed
from racer_core.routers.base import Batch, on_grid
from racer_core.types import (
    BoolArray,
    FloatArray,
    IdArray,
    LabelledRows,
    RiskTarget,
    RoutingDecision,
    RowsKind,
    Score,
)

ONE_PER_CLUSTER_NEEDS_KIND: Final = (
    "one_per_cluster needs the kind of the rows: say traffic or questions. In a list of questions "
    "equal queries belong to one cluster, in traffic they do not"
)


@dataclass(frozen=True, slots=True)
class RouterScores:
    """Scores of a batch.

    Attributes:
        scores: Router scores f, shape (B, K).
        truncated: Truncation flags, shape (B,).
        neighbours: Pattern ids of the nearest training rows, shape (B, J).
        projections: Embeddings on the artifact's components, shape (B, d).
        similarity: The cosine with the nearest training row, shape (B,).
    """

    scores: FloatArray
    truncated: BoolArray
    neighbours: IdArray | None = None
    projections: FloatArray | None = None
    similarity: FloatArray | None = None


Scorer = Callable[[Sequence[str]], RouterScores]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledColumns:
    """Labelled rows of a router's pool, column by column.

    Attributes:
        queries: Empty for rows that have router scores instead of a query.
        fingerprints: Keyed hashes of the queries; rows without a query have a unique one.
        labels: Correctness, shape (n, K).
        scores: Router scores given with the rows, shape (n, K), NaN for rows without.
        groups: The group of each row; None if no row has one.
        quality: Quality of each candidate's answer, shape (n, K), NaN for rows without; None if no
            row has one.
        weights: Weight of each row, shape (n,); None if all are 1.
    """

    queries: Sequence[str]
    fingerprints: Sequence[bytes]
    labels: BoolArray
    scores: FloatArray
    groups: tuple[str | None, ...] | None = None
    quality: FloatArray | None = None
    weights: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class TrainedRouter:
    """A loaded artifact without its encoder: everything except scoring a query."""

    artifact: Artifact

    @classmethod
    def load(cls, folder: str | Path, pool: Sequence[str] | None = None) -> Self:
        """Read an artifact. Raises :class:`ArtifactError` if it is for another pool."""
        return cls(artifacts.load(folder, pool))

    @property
    def pool(self) -> tuple[str, ...]:
        """The candidates, in the order of the columns of every score."""
        return self.artifact.pool

    def calibrate_columns(
        self,
        rows: LabelledColumns,
        options: CalibrationOptions,
        *,
        scorer: Scorer,
        prices: Sequence[float] | None,
    ) -> Calibration:
        """As :meth:`Racer.calibrate`, on rows that were checked already. Blocks."""
        quality = _quality(rows, options)
        scored = _row_scores(rows, scorer)
        calibration = Calibration(
            pool=self.pool,
            fingerprints=tuple(rows.fingerprints),
            scores=scored.scores,
            labels=rows.labels,
            options=options,
            neighbours=scored.neighbours,
            projections=scored.projections,
            patterns=self.artifact.patterns,
            prices=None if prices is None else tuple(prices),
            groups=rows.groups,
            quality=quality,
            weights=rows.weights,
        )
        return calibration

    def overlap(self, fingerprints: Sequence[bytes]) -> list[int]:
        """The rows whose query the router was trained or tuned on."""
        trained = self._trained_prints
        return [i for i, each in enumerate(fingerprints) if each in trained]

    def is_fresh_traffic(self, fingerprints: Sequence[bytes], kind: RowsKind | None) -> bool:
        """Whether rows of this kind may repeat queries of training, and do not repeat them all."""
        return is_fresh_traffic(fingerprints, self._trained_prints, kind)

    def refuse_overlap(self, fingerprints: Sequence[bytes], kind: RowsKind | None = None) -> None:
        """Refuse rows of training or tuning; a fresh sample of traffic may repeat their queries.

        Args:
            fingerprints: Of the rows' queries.
            kind: What the operator said of the rows; None: nothing.

        Raises:
            OverlapError: A row has a query of training or tuning and the rows are not said to be
                traffic; or they are, and too few of their queries are new.
        """
        overlap = self.overlap(fingerprints)
        if not overlap or self.is_fresh_traffic(fingerprints, kind):
            return
        found = (
            f"{len(overlap)} of {len(fingerprints)} rows were training rows of the router "
            f"(first: row {overlap[0] + 1}); "
        )
        if kind is RowsKind.TRAFFIC:
            raise OverlapError(
                f"{found}that is more than repeats in traffic explain: the rows hold training rows "
                "and are no fresh sample of traffic. Send rows that were drawn beside the training "
                "rows, or allow the overlap and lose the guarantee"
            )
        raise OverlapError(
            found + "leave them out, or say that the rows are a random sample of traffic (traffic "
            "repeats itself), or allow the overlap and lose the guarantee"
        )

    def one_per_cluster(
        self, fingerprints: Sequence[bytes], clusters: Sequence[Hashable | None], kind: RowsKind
    ) -> NDArray[np.intp]:
        """One row of each cluster, drawn at random without a look at labels, in their order.

        Copies in a list of questions are a cluster, too. The draw is the same for the same file.

        Args:
            fingerprints: Of the rows' queries; unique for rows without a query.
            clusters: The cluster of each row; None: none.
            kind: What the rows are.
        """
        units = cluster_units(kind, fingerprints, clusters)
        return one_per_unit(units, self.artifact.salt.encode())

    @property
    def _trained_prints(self) -> frozenset[bytes]:
        return self.artifact.training_fingerprints | self.artifact.validation_fingerprints

    def fingerprint(self, query: str) -> bytes:
        """The keyed hash that identifies a query in stored records."""
        return artifacts.fingerprint(self.artifact.salt, query)


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
            options = CalibrationOptions(alpha=alpha, score=Score.COVER, null_threshold=tau)
        columns = self._columns(rows)
        if not allow_overlap:
            self.refuse_overlap(columns.fingerprints, rows.kind)
        kind = kind_of(rows)
        if options.one_per_cluster and rows.kind is None:
            raise CalibrationError(ONE_PER_CLUSTER_NEEDS_KIND)
        if options.one_per_cluster or kind is RowsKind.QUESTIONS:
            clusters = [row.cluster if options.one_per_cluster else None for row in rows.rows]
            chosen = self.one_per_cluster(columns.fingerprints, clusters, kind)
            columns = self._columns(rows[chosen])
        counts = Counter(row.cluster for row in rows.rows if row.cluster is not None)
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
            # Rows with scores only have no query; each still needs its own smoothing noise.
            fingerprints=[
                self.fingerprint(query or f"\0row {i}") for i, query in enumerate(rows.queries)
            ],
            labels=rows.labels(self.pool),
            scores=scores[:, order],
            groups=groups if any(groups) else None,
            quality=rows.quality(self.pool),
            weights=rows.weights,
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


def with_dependence(
    options: CalibrationOptions, kind: RowsKind, *, shares_clusters: bool
) -> CalibrationOptions:
    """The options, with whether rows of this kind are dependent: of a list, and no draw of one."""
    is_list = kind is RowsKind.QUESTIONS and not options.one_per_cluster
    return replace(options, has_dependent_rows=is_list and shares_clusters)


def refuse_uncounted(calibration: Calibration) -> None:
    """Refuse rows that promise nothing.

    Raises:
        CalibrationError: No row counts for the risk, or weights leave too few effective rows.
    """
    if calibration.options.risk_target == RiskTarget.QUALITY:
        if not calibration.loss_curve(calibration.options.score).scores.size:
            raise CalibrationError("no row has a quality above 0: nothing to calibrate on")
    elif calibration.n == 0:
        raise CalibrationError("no row that some candidate answers right: nothing to calibrate on")
    fewest = 1.0 / calibration.options.alpha - 1.0
    if calibration.weights is not None and calibration.effective_n < fewest:
        raise CalibrationError(
            f"the weights leave {calibration.effective_n:.1f} effective rows, and alpha "
            f"{calibration.options.alpha:g} needs {fewest:.0f}: add rows or choose a larger alpha"
        )


def _quality(rows: LabelledColumns, options: CalibrationOptions) -> FloatArray | None:
    """The qualities if all rows have them; without them no target but ``quality`` is missed.

    Raises:
        CalibrationError: ``quality`` is the target, and a row has none.
    """
    quality = rows.quality
    without = np.ones(len(rows.queries), bool) if quality is None else np.isnan(quality[:, 0])
    if not without.any():
        return quality
    if options.risk_target == RiskTarget.QUALITY:
        raise CalibrationError(
            f"{int(without.sum())} of {without.size} rows have no quality (first: row "
            f"{int(without.argmax()) + 1}), which risk_target quality needs in every row"
        )
    return None


def _row_scores(rows: LabelledColumns, scorer: Scorer) -> RouterScores:
    """The router's scores of the rows, or the scores given with them.

    Given scores have no neighbours. If any row has given scores, ``cover`` tilts by the scores
    alone, for all rows and in serving.
    """
    unscored = np.flatnonzero(np.isnan(rows.scores[:, 0]))
    if len(unscored) == len(rows.queries):
        return scorer(rows.queries)
    scores, truncated = rows.scores.copy(), np.zeros(len(rows.queries), dtype=bool)
    if unscored.size:
        scored = scorer([rows.queries[int(i)] for i in unscored])
        scores[unscored], truncated[unscored] = scored.scores, scored.truncated
    return RouterScores(on_grid(scores), truncated)


__getattr__ = renamed(__name__, {"Scored": "RouterScores", "Trained": "TrainedRouter"})
