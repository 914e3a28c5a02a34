"""Calibration rows: labelled rows with their router scores, their checks and their subsets.

Keeps the scores (n, K) and labels (n, K), not only lambda_hat, so that another alpha, another score
or a smaller pool is a look-up or a recomputation, never a new upload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.answer_limit import AnswerLimit
from racer_core.calibration.augmentation import checked_scores
from racer_core.calibration.kept_order import TokenPrices, check_conversations
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.risk_rules import RiskRules
from racer_core.errors import CalibrationError, InputError
from racer_core.types import (
    BoolArray,
    FloatArray,
    IdArray,
    RiskTarget,
    any_column,
    checked_pool,
)


@dataclass(frozen=True, kw_only=True)
class CalibrationRows:
    """Rows scored by the same function that scores queries in serving.

    Attributes:
        pool: The candidates, in the order of the columns.
        fingerprints: Keyed hashes of the rows' queries, so that no prompt is stored; they seed the
            smoothing.
        scores: f, shape (n, K), in [0, 1].
        labels: G, shape (n, K).
        options: The terms of the guarantee.
        neighbours: Pattern ids of each row's nearest training rows, shape (n, J); None for routers
            without neighbours and for rows uploaded with their own scores.
        projections: Each row's embedding on a few components, shape (n, d), for drift detection.
        patterns: The training rows' patterns, for the cover scores; None disables these scores.
        prices: Price per call of each candidate, above 0, for ``cover_cost``.
        groups: The group of each row; None if rows have no groups.
        quality: Quality of each candidate's answer, shape (n, K), in [0, 1]; None: not graded.
        weights: Density of served queries over that of rows, up to a constant, shape (n,); None:
            the rows are drawn as queries are. Equal weights without ``max_weight`` are none.
        answer_limit: The limit on wrong final answers that thresholds keep; smaller pools and
            parts of the rows have none.
        unlabelled: Rows of which it is unknown which candidates are right, shape (n,); None: all
            rows are labelled. They count for every risk, as a miss at every threshold, so that the
            bound holds for whatever reason labels are missing; their ``labels`` are False.
        judged: A judge model's verdicts, shape (n, K): 1 right, 0 wrong, -1 in all columns of a row
            without; None: no row has any. Every labelled row has verdicts. Unlabelled rows with
            verdicts are no misses: thresholds are those of ``judge_correction``.
        conversations: The conversation of each row, shape (n,): the rows are all turns of whole
            conversations, those of one together and in their order; None: the rows are requests.
            The loss of a conversation is the mean loss of those of its turns that count.
        turn_sizes: Characters of the earlier turns, of the query, and of the mean earlier answer of
            each row, shape (n, 3), for conversations.
        token_prices: Price of an input, a cached and an output token of each candidate, by which
            conversations keep their order; None: what is computed counts alone.
    """

    pool: tuple[str, ...]
    fingerprints: tuple[bytes, ...]
    scores: FloatArray
    labels: BoolArray
    options: CalibrationOptions
    neighbours: IdArray | None = None
    projections: FloatArray | None = None
    patterns: PatternModel | None = None
    prices: tuple[float, ...] | None = None
    groups: tuple[str | None, ...] | None = None
    quality: FloatArray | None = None
    weights: FloatArray | None = None
    answer_limit: AnswerLimit | None = None
    unlabelled: BoolArray | None = None
    judged: NDArray[np.int8] | None = None
    conversations: NDArray[np.int64] | None = None
    turn_sizes: FloatArray | None = None
    token_prices: tuple[TokenPrices, ...] | None = None

    def __post_init__(self) -> None:
        """Check shapes and values once, so that no NaN reaches a sort."""
        # Column-major, so that reductions over candidates read memory in sequence.
        object.__setattr__(self, "scores", np.asfortranarray(checked_scores(self.scores)))
        object.__setattr__(self, "labels", np.asfortranarray(self.labels))
        rows, columns = shape = (len(self.fingerprints), len(self.pool))
        if self.scores.shape != shape or self.labels.shape != shape:
            raise CalibrationError(
                f"scores {self.scores.shape} and labels {self.labels.shape} must both be {shape}"
            )
        if self.patterns is not None and self.patterns.patterns.shape[1] != columns:
            raise CalibrationError(f"the training patterns do not have {columns} candidates")
        if self.neighbours is not None and len(self.neighbours) != rows:
            raise CalibrationError(f"{len(self.neighbours)} rows of neighbours for {rows} rows")
        if self.projections is not None and len(self.projections) != rows:
            raise CalibrationError(f"{len(self.projections)} projections for {rows} rows")
        if self.prices is not None and (
            len(self.prices) != columns or not all(0.0 < price < math.inf for price in self.prices)
        ):
            raise CalibrationError(f"prices must be {columns} numbers above 0")
        if self.groups is not None and len(self.groups) != rows:
            raise CalibrationError(f"{len(self.groups)} groups for {rows} rows")
        self._check_quality(shape)
        self._check_unlabelled(rows)
        self._check_judged(shape)
        self._check_conversations(rows)
        if self.weights is not None:
            self._check_weights(self.weights)
        elif self.options.max_weight is not None:
            raise CalibrationError("max_weight needs rows with weights")

    def _check_quality(self, shape: tuple[int, int]) -> None:
        if self.quality is None:
            if self.options.risk_target == RiskTarget.QUALITY:
                raise CalibrationError(
                    "risk_target quality needs a quality of every candidate in every row"
                )
        elif self.quality.shape != shape:
            raise CalibrationError(f"qualities {self.quality.shape} must be {shape}")
        elif not ((self.quality >= 0.0) & (self.quality <= 1.0)).all():  # false for NaN, too
            raise CalibrationError("qualities must be numbers in [0, 1]")

    def _check_unlabelled(self, rows: int) -> None:
        if self.unlabelled is None:
            return
        if len(self.unlabelled) != rows:
            raise CalibrationError(
                f"{len(self.unlabelled)} marks of unlabelled rows for {rows} rows"
            )
        if (both := self.unlabelled & any_column(self.labels)).any():
            raise CalibrationError(f"row {int(both.argmax()) + 1} is unlabelled and has labels")
        if not self.unlabelled.any():
            object.__setattr__(self, "unlabelled", None)

    def _check_judged(self, shape: tuple[int, int]) -> None:
        if self.judged is not None and not (self.judged >= 0).any():
            object.__setattr__(self, "judged", None)
        is_judged = self.judged is not None
        if is_judged != self.options.has_judged_rows:
            options = replace(self.options, has_judged_rows=is_judged)
            object.__setattr__(self, "options", options)
        if self.judged is None:
            return
        if self.judged.shape != shape:
            raise CalibrationError(f"verdicts {self.judged.shape} must be {shape}")
        if self.options.delta is None:
            raise CalibrationError(
                "rows with a judge's verdicts need delta, the probability with which their "
                "threshold may exceed alpha: set delta, for example to 0.05"
            )
        if self.options.risk_target == RiskTarget.QUALITY:
            raise CalibrationError("a judge's verdicts are right or wrong: choose another target")
        if self.options.one_per_cluster:
            raise CalibrationError("a judge's verdicts are corrected for single rows, not clusters")
        if (without := ~self._without_labels & ~self._has_verdicts).any():
            raise CalibrationError(
                f"row {int(without.argmax()) + 1} has a label and no verdicts of the judge: "
                "the judge's errors are known only if it judges every labelled row"
            )

    @property
    def _without_labels(self) -> BoolArray:
        """Rows that people did not label, shape (n,)."""
        return np.zeros(len(self.labels), bool) if self.unlabelled is None else self.unlabelled

    @property
    def _has_verdicts(self) -> BoolArray:
        """Rows with a judge's verdicts, shape (n,)."""
        if self.judged is None:
            return np.zeros(len(self.labels), bool)
        return np.asarray(self.judged[:, 0] >= 0, dtype=bool)

    def _check_conversations(self, rows: int) -> None:
        is_whole = self.conversations is not None
        if is_whole != self.options.has_conversations:
            options = replace(self.options, has_conversations=is_whole)
            object.__setattr__(self, "options", options)
        if self.conversations is None:
            return
        if len(self.conversations) != rows:
            raise CalibrationError(f"{len(self.conversations)} conversations for {rows} rows")
        if self.judged is not None or self.weights is not None or self.options.one_per_cluster:
            raise CalibrationError(
                "whole conversations have neither weights nor a judge's verdicts, and all their "
                "turns count: leave weights, verdicts and one_per_cluster out"
            )
        check_conversations(self.conversations, self.turn_sizes)

    def _check_weights(self, weights: FloatArray) -> None:
        """Refuse invalid weights; equal weights, as of one sampling rate, are no weights."""
        if weights.shape != (len(self.fingerprints),):
            raise CalibrationError(f"{len(weights)} weights for {len(self.fingerprints)} rows")
        if not ((weights > 0.0) & np.isfinite(weights)).all():
            raise CalibrationError("weights must be above 0 and finite")
        if self.options.max_weight is None and (weights == weights[:1]).all():
            object.__setattr__(self, "weights", None)
            return
        if self.judged is not None:
            raise CalibrationError(
                "rows with a judge's verdicts cannot have weights: leave one out"
            )
        if self.options.delta is not None:
            raise CalibrationError("delta needs rows of equal weight: leave it out, or the weights")
        largest, bound = float(weights.max(initial=0.0)), self.options.max_weight
        if bound is None:
            raise CalibrationError(
                "rows with weights need max_weight, the largest weight of any served query: set "
                f"it from how the rows were drawn; {largest:g}, the largest of these rows, may be "
                "too small"
            )
        if largest > bound:
            raise CalibrationError(f"a row has the weight {largest:g}, above max_weight {bound:g}")

    @cached_property
    def effective_n(self) -> float:
        """Rows of equal weight that are worth the rows that count: (sum w)^2 / sum w^2."""
        if self.weights is None or not self.n:
            return float(self.n)
        counted = self.weights[self._counted] / self.weights.max()
        return float(counted.sum() ** 2 / (counted**2).sum())

    @cached_property
    def n(self) -> int:
        """Number of rows that count: all of them, or the answerable ones for ``answerable``.

        Unlabelled rows count, too. Of rows with a judge's verdicts, people's labels are counted. Of
        conversations it is the number of those with a turn that counts.

        0 is possible for a sub-pool that no row covers: no threshold is then finite, and all of its
        candidates are called.
        """
        if self.conversations is not None:
            return len(np.unique(self.conversations[self._counted]))
        return int(self._counted.sum())

    @cached_property
    def queries(self) -> frozenset[bytes]:
        """The distinct fingerprints, to look a query up."""
        return frozenset(self.fingerprints)

    @cached_property
    def group_names(self) -> frozenset[str | None]:
        """The distinct groups of the rows; None stands for rows without one."""
        return frozenset(self.groups or (None,))

    @property
    def unlabelled_rows(self) -> int:
        """Number of rows without a label, and without a judge's verdicts."""
        return int((self._without_labels & ~self._has_verdicts).sum())

    @property
    def counted(self) -> BoolArray:
        """Which rows count for the risk, shape (n,)."""
        return self._counted

    @cached_property
    def _counted(self) -> BoolArray:
        counted = self.rules.counted(self.labels)
        if self.judged is not None:
            return counted & ~self._without_labels
        return counted if self.unlabelled is None else counted | self.unlabelled

    @cached_property
    def rules(self) -> RiskRules:
        """The rows that count, abstention, critical scores and sets, as the options want them."""
        return RiskRules(
            risk_target=self.options.risk_target,
            null_threshold=self.options.null_threshold,
            r=self.options.r,
        )

    def restrict(self, names: Sequence[str]) -> Self:
        """The same rows for a smaller pool: G', scores and every threshold are recomputed.

        Valid when the cause lies outside the query: an outage, a key's allow-list.
        """
        if unknown := [name for name in names if name not in self.pool]:
            raise InputError(f"{unknown[0]!r} is not in the pool", param="candidates")
        columns = [self.pool.index(name) for name in names]
        return replace(
            self,
            pool=checked_pool(names),
            answer_limit=None,
            scores=self.scores[:, columns],
            labels=self.labels[:, columns],
            patterns=None if self.patterns is None else self.patterns.restrict(columns),
            prices=None if self.prices is None else tuple(self.prices[i] for i in columns),
            quality=None if self.quality is None else self.quality[:, columns],
            judged=None if self.judged is None else self.judged[:, columns],
            token_prices=self.token_prices and tuple(self.token_prices[i] for i in columns),
        )

    def group(self, name: str | None) -> Self:
        """The rows of one group, for a threshold of its own: P(miss | group) <= alpha (Mondrian).

        Rows without a group (None) are a group like any other. A group is never joined with others
        because its rows are few: which ones are would depend on the counts drawn, and the joined
        rows would have fewer of a group than the queries that they serve. With too few rows no
        threshold is finite. The group must be known in serving, as a function of the query or of
        the caller.
        """
        groups = self.groups or (None,) * len(self.fingerprints)
        return self.take([i for i, group in enumerate(groups) if group == name])

    def take(self, rows: list[int]) -> Self:
        """A subset of the rows; of conversations all turns, or none."""
        return replace(
            self,
            answer_limit=None,
            fingerprints=tuple(self.fingerprints[i] for i in rows),
            scores=self.scores[rows],
            labels=self.labels[rows],
            neighbours=None if self.neighbours is None else self.neighbours[rows],
            projections=None if self.projections is None else self.projections[rows],
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            quality=None if self.quality is None else self.quality[rows],
            weights=None if self.weights is None else self.weights[rows],
            unlabelled=None if self.unlabelled is None else self.unlabelled[rows],
            judged=None if self.judged is None else self.judged[rows],
            conversations=None if self.conversations is None else self.conversations[rows],
            turn_sizes=None if self.turn_sizes is None else self.turn_sizes[rows],
        )
