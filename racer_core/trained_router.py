"""Trained router without its encoder: calibrates scored rows, and refuses rows that trained it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from racer_core import artifacts
from racer_core.artifacts import Artifact
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.kept_order import TokenPrices
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import CalibrationError, OverlapError
from racer_core.records.conversation import fingerprint
from racer_core.records.overlap import is_fresh_traffic
from racer_core.records.units import cluster_units, one_per_unit
from racer_core.routers.base import on_grid
from racer_core.types import BoolArray, FloatArray, IdArray, RiskTarget, RowsKind


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
        unlabelled: Whether a row has no label, shape (n,); None: all have one.
        judged: A judge's verdicts, shape (n, K): 1 right, 0 wrong, -1 for rows without; None: no
            row has any.
        conversations: The conversation of each row, all of whose turns are rows, shape (n,); None:
            the rows are requests.
        turn_sizes: Lengths of the turns of conversations, shape (n, 3).
    """

    queries: Sequence[str]
    fingerprints: Sequence[bytes]
    labels: BoolArray
    scores: FloatArray
    groups: tuple[str | None, ...] | None = None
    quality: FloatArray | None = None
    weights: FloatArray | None = None
    unlabelled: BoolArray | None = None
    judged: NDArray[np.int8] | None = None
    conversations: NDArray[np.int64] | None = None
    turn_sizes: FloatArray | None = None


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
        token_prices: Sequence[TokenPrices] | None = None,
    ) -> Calibration:
        """As :meth:`Racer.calibrate`, on rows that were checked already. Blocks."""
        quality = _quality(rows, options)
        scored = _row_scores(rows, scorer)
        return Calibration(
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
            unlabelled=rows.unlabelled,
            judged=rows.judged,
            conversations=rows.conversations,
            turn_sizes=rows.turn_sizes,
            token_prices=None if token_prices is None else tuple(token_prices),
        )

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
        self,
        names: Sequence[Hashable | None],
        clusters: Sequence[Hashable | None],
        kind: RowsKind,
    ) -> NDArray[np.intp]:
        """One row of each cluster, drawn at random without a look at labels, in their order.

        Copies in a list of questions are a cluster, too. The draw is the same for the same file.

        Args:
            names: What the rows ask, equal for copies; None: the row is no copy.
            clusters: The cluster of each row; None: none.
            kind: What the rows are.
        """
        units = cluster_units(kind, names, clusters)
        return one_per_unit(units, self.artifact.salt.encode())

    @property
    def _trained_prints(self) -> frozenset[bytes]:
        return self.artifact.training_fingerprints | self.artifact.validation_fingerprints

    def fingerprint(self, query: str) -> bytes:
        """The keyed hash that identifies a query in stored records."""
        return fingerprint(self.artifact.salt, query)


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
            raise CalibrationError(
                "no row has a quality above 0, so there is nothing to calibrate on: check grades"
            )
    elif calibration.judged is not None:
        refuse_uncorrectable(calibration)
    elif calibration.n == 0:
        raise CalibrationError(
            "no row is answered right by any candidate, so there is nothing to calibrate on: check "
            "references and grade, or add a candidate that can answer such questions"
        )
    if calibration.unlabelled_rows == len(calibration.fingerprints):
        raise CalibrationError(
            f"none of the {calibration.n} rows has a label: label some of them first (racer label)"
        )
    fewest = 1.0 / calibration.options.alpha - 1.0
    if calibration.weights is not None and calibration.effective_n < fewest:
        raise CalibrationError(
            f"the weights leave {calibration.effective_n:.1f} effective rows, and alpha "
            f"{calibration.options.alpha:g} needs {fewest:.0f}: add rows or choose a larger alpha"
        )


def refuse_uncorrectable(calibration: Calibration) -> None:
    """Refuse verdicts that labels cannot correct.

    Raises:
        CalibrationError: People labelled no row that counts, or the judge errs more often than one
            that never reads the answers.
    """
    if calibration.n == 0:
        raise CalibrationError(
            "a judge's verdicts are corrected by people's labels, and no judged row has any that "
            'count: let people label a few hundred random rows ("correct" beside "judged")'
        )
    errors = calibration.judge_errors()
    gain = None if errors is None else errors.informedness
    if gain is not None and gain < 0.0:
        raise CalibrationError(
            f'the judge is below chance: its share of "right" is {-gain:.2f} larger for answers '
            "that people call wrong than for right ones. Check that its verdicts belong to these "
            "rows and candidates"
        )


def _quality(rows: LabelledColumns, options: CalibrationOptions) -> FloatArray | None:
    """The qualities if all rows have them; without them no target but ``quality`` is missed.

    Raises:
        CalibrationError: ``quality`` is the target, and a row has none.
    """
    quality = rows.quality
    without = np.ones(len(rows.queries), bool) if quality is None else np.isnan(quality[:, 0])
    if rows.unlabelled is not None and quality is not None:
        quality = np.where(rows.unlabelled[:, None], 0.0, quality)
        without = without & ~rows.unlabelled
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
