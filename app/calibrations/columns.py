"""Columns of labelled rows: arrays instead of a million objects.

The garbage collector would visit every row object while queries wait. Columns are a handful of
arrays, and the texts stay in a mapped file until they are scored. Everything else that depends on a
text is computed while the upload is parsed: its fingerprint, and which candidates gave the same
answer.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.batch import ClassArray
from racer_core.prices import MeanUsage
from racer_core.types import BoolArray, FloatArray, RowsKind

_ROUNDING: Final = 1e-9  # of a sum of weights


class Texts(Sequence[str]):
    """Texts one after the other in memory or in a mapped file, decoded on access.

    Args:
        data: UTF-8.
        ends: Where each text ends, shape (n,).
        starts: Where each text begins; None: where the one before ends.
    """

    def __init__(
        self,
        data: bytes | mmap.mmap,
        ends: NDArray[np.int64],
        starts: NDArray[np.int64] | None = None,
    ) -> None:
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1] if starts is None else starts
        if np.any(starts < 0) or np.any(ends < starts) or np.any(ends > len(data)):
            raise ValueError("the boundaries of the texts do not fit their data")
        self._data = data
        self._starts = starts
        self._ends = ends

    def take(self, rows: NDArray[np.intp]) -> Texts:
        """Some of the texts; nothing is copied."""
        return Texts(self._data, self._ends[rows], self._starts[rows])

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One text, or the texts of some rows."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[int(self._starts[index]) : int(self._ends[index])].decode("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowColumns:
    """Checked rows of one upload.

    Attributes:
        pool: The candidates, in the order of the columns.
        queries: The text that the router reads; empty for a row that brings scores instead.
        fingerprints: Keyed hashes of the queries; unique for rows without a query.
        overlap_prints: The same of the texts cut where the longest text of training ends.
        identities: Digests of what the rows ask, equal for copies but for case, space and Unicode
            form: of the whole query or request with the turns before it, also where the router
            reads a part.
        query_hashes: Hashes under the store's key, shape (n,), equal for queries that are equal
            but for case, space and Unicode form, whatever else their requests hold; of a row
            without a query, of its scores and labels.
        other_hashes: The same under the keys of other stores, shape (n, k); None: there are none.
        labels: Whether each candidate is right, shape (n, K).
        scores: The rows' own router scores, shape (n, K), NaN for a row without.
        groups: The group of each row; None if no row has one.
        clusters: The id of each row's cluster, shape (n,); -1 for a row without.
        classes: The class of each recorded answer, equal for the same answer, shape (n, K); -1 for
            an answer that cannot be read. None if answers cannot be compared as text.
        answered: Whether a row has answers, shape (n,).
        later: Whether it is a turn after the first of a conversation, shape (n,).
        conditions: The distinct vectors of digests of what candidates were sent, in the order of
            the pool.
        condition_ids: The place of each row's vector, shape (n,); -1 for a row without, of which
            candidates are sent what the configuration alone sends.
        duplicates: How many rows repeat the query, and the turns before it, of an earlier one.
        near_duplicates: How many more rows of first turns equal an earlier one but for case, space
            or Unicode form.
        assumed: How many rows came without digests, and count as labelled with what the
            configuration sends.
        guessed_kind: The kind of the file, for an upload that does not say it.
        answered_by: The calibration by which each row's request was answered, or the fallback;
            empty where that is unknown, shape (n,). None: no row is sampled.
        quality: Quality of each candidate's answer, shape (n, K), NaN for a row without; None if no
            row has one.
        weights: Weight of each row, shape (n,); None if all are 1.
        judged: A judge's verdicts, shape (n, K): 1 right, 0 wrong, -1 for a row without; None if no
            row has any.
        judge: The name of that judge, with the digest of its prompt; None: no row says it.
        unlabelled: Whether a row has no label, shape (n,).
        sampled: Whether a row is of a gateway's random sample, shape (n,).
        draws: The number of each row that a rate above it draws, shape (n,); NaN for a row that is
            not sampled. None: no row is.
        decision_ids: The sampled decision of each row, empty for a row without, shape (n,); None:
            no row has one.
        sample_prints: Keyed hash of the sampled conversation, else decision, of each row, zeros for
            a row without; None: no row has one.
        usage: What recorded calls used on average, by candidate; empty without any.
        verified: Whether a row's scores are those that the gateway stored, shape (n,); None: none.
    """

    pool: tuple[str, ...]
    queries: Texts
    fingerprints: tuple[bytes, ...]
    overlap_prints: tuple[bytes, ...]
    identities: tuple[bytes, ...]
    query_hashes: NDArray[np.uint64]
    labels: BoolArray
    scores: FloatArray
    groups: tuple[str | None, ...] | None
    clusters: NDArray[np.int64]
    classes: ClassArray | None
    answered: BoolArray
    later: BoolArray
    conditions: tuple[tuple[str, ...], ...]
    condition_ids: NDArray[np.int64]
    duplicates: int
    near_duplicates: int
    assumed: int
    guessed_kind: RowsKind
    unlabelled: BoolArray
    sampled: BoolArray
    draws: FloatArray | None = None
    decision_ids: NDArray[np.bytes_] | None = None
    sample_prints: tuple[bytes, ...] | None = None
    verified: BoolArray | None = None
    answered_by: NDArray[np.str_] | None = None
    quality: FloatArray | None = None
    weights: FloatArray | None = None
    judged: NDArray[np.int8] | None = None
    judge: str | None = None
    other_hashes: NDArray[np.uint64] | None = None
    usage: Mapping[str, MeanUsage] = field(default_factory=dict[str, MeanUsage])

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        shape = (len(self.queries), len(self.pool))
        tables = (self.labels, self.scores, self.quality, self.classes, self.judged)
        if any(table is not None and table.shape != shape for table in tables):
            raise ValueError(f"the columns are not all of shape {shape}")
        grouped = len(self.queries if self.groups is None else self.groups)
        lengths = {
            len(self.fingerprints),
            len(self.overlap_prints),
            len(self.identities),
            len(self.query_hashes),
            grouped,
            len(self.clusters),
            len(self.queries if self.weights is None else self.weights),
            len(self.answered),
            len(self.later),
            len(self.condition_ids),
            len(self.unlabelled),
            len(self.sampled),
        }
        if lengths != {len(self.queries)}:
            raise ValueError(f"the columns are not all of {shape[0]} rows")

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def cluster_count(self) -> int | None:
        """The number of clusters; None if no row has one."""
        named = np.unique(self.clusters[self.clusters >= 0])
        return len(named) or None

    @property
    def shared_clusters(self) -> int:
        """The number of clusters that have several rows."""
        _, counts = np.unique(self.clusters[self.clusters >= 0], return_counts=True)
        return int((counts > 1).sum())

    @property
    def later_turns_answered_by(self) -> dict[str, int]:
        """How many rows of later turns were answered by which calibration, as far as is known.

        Earlier answers of their conversations came from this calibration or from those before it.
        """
        if self.answered_by is None:
            return {}
        names, counts = np.unique(self.answered_by[self.later], return_counts=True)
        found = dict(zip(names.tolist(), counts.tolist(), strict=True))
        found.pop("", None)
        return found

    def are_dependent(self, kind: RowsKind, max_weight: float | None = None) -> bool:
        """Whether some rows of one cluster break the bound, since they are no independent draws.

        Such are rows of a list, and those of a gateway's sample: it has the turns of whole
        conversations, each with the same chance.

        No rows of a sample do if no conversation weighs more than B = ``max_weight``. Rows i of
        n + 1 conversations, with weights w_i = 1 / rate: a random request is any of them with a
        probability of w_i / sum w, by the symmetry of conversations. So it is missed with at most
        alpha by the smallest lambda with sum w_i 1{s_i > lambda} <= alpha sum w_i over all. To know
        n of them and to count B for the other gives no smaller lambda, for (N + b) / (W + b)
        rises with b.

        Args:
            kind: What the rows are.
            max_weight: The largest weight of a query, and of all sampled ones of a conversation.
        """
        if kind is RowsKind.QUESTIONS:
            return self.shared_clusters > 0
        sampled = self.take(np.flatnonzero(self.sampled))
        if max_weight is None or sampled.weights is None:
            return sampled.shared_clusters > 0
        of_cluster = sampled.clusters >= 0
        totals = np.bincount(sampled.clusters[of_cluster], sampled.weights[of_cluster])
        return bool(totals.max(initial=0.0) > max_weight * (1.0 + _ROUNDING))

    def digest(self) -> str:
        """SHA-256 of queries and labels: the same for any order and format of the file."""
        by_name = sorted(range(len(self.pool)), key=self.pool.__getitem__)
        hashes = self.query_hashes.astype("<u8").view(np.uint8).reshape(len(self), -1)
        rows = np.hstack([hashes, np.packbits(self.labels[:, by_name], axis=1)])
        ascending = np.sort(rows.view(f"S{rows.shape[1]}"), axis=0)
        return hashlib.sha256(ascending.tobytes()).hexdigest()

    def take(self, rows: NDArray[np.intp]) -> RowColumns:
        """Some of the rows, in their order; all of them are these columns themselves."""
        if len(rows) == len(self):
            return self
        chosen: list[int] = rows.tolist()
        return replace(
            self,
            queries=self.queries.take(rows),
            fingerprints=tuple(self.fingerprints[i] for i in chosen),
            overlap_prints=tuple(self.overlap_prints[i] for i in chosen),
            identities=tuple(self.identities[i] for i in chosen),
            query_hashes=self.query_hashes[rows],
            other_hashes=None if self.other_hashes is None else self.other_hashes[rows],
            labels=self.labels[rows],
            scores=self.scores[rows],
            quality=None if self.quality is None else self.quality[rows],
            weights=None if self.weights is None else self.weights[rows],
            judged=None if self.judged is None else self.judged[rows],
            groups=None if self.groups is None else tuple(self.groups[i] for i in chosen),
            clusters=self.clusters[rows],
            classes=None if self.classes is None else self.classes[rows],
            answered=self.answered[rows],
            later=self.later[rows],
            condition_ids=self.condition_ids[rows],
            unlabelled=self.unlabelled[rows],
            sampled=self.sampled[rows],
            draws=None if self.draws is None else self.draws[rows],
            decision_ids=None if self.decision_ids is None else self.decision_ids[rows],
            sample_prints=None
            if self.sample_prints is None
            else tuple(self.sample_prints[i] for i in chosen),
            verified=None if self.verified is None else self.verified[rows],
            answered_by=None if self.answered_by is None else self.answered_by[rows],
        )
