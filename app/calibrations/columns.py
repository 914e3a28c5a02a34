"""Columns of labelled rows: arrays instead of a million objects.

The garbage collector would visit every row object while queries wait. Columns are a handful of
arrays, and the texts stay in a mapped file until they are scored. Everything else that depends on a
text is computed while the upload is parsed: its fingerprint, and which candidates gave the same
answer.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from hashlib import blake2b
from typing import Any, BinaryIO, Final, overload

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.rule import AnswerRule
from racer_core.calibration.shadow import sampling_number
from racer_core.prices import MeanUsage
from racer_core.records.conversation import WITHOUT_SYSTEM, RoutedText, fingerprint, turn_sizes
from racer_core.records.left_out import Passage
from racer_core.records.request import row_identity, row_text, row_turns
from racer_core.records.units import sampled_unit, turns_in_order
from racer_core.records.usage import UsageMeans
from racer_core.records.whole_conversations import WholeConversations
from racer_core.types import BoolArray, FloatArray, LabelledRow, RowsKind


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


@dataclass(frozen=True, slots=True, eq=False)
class TurnColumns:
    """Rows as turns of conversations.

    Attributes:
        conversations: The id of each row's conversation, shape (n,); -1 for a row of none.
        numbers: How many turns are before each row's query, shape (n,).
        sizes: Characters of these turns, of the query, and of the mean earlier answer, (n, 3).
    """

    conversations: NDArray[np.int64]
    numbers: NDArray[np.int64]
    sizes: FloatArray

    @property
    def in_order(self) -> NDArray[np.intp]:
        """The rows of conversations, turn by turn."""
        return turns_in_order(self.conversations, self.numbers)

    def take(self, rows: NDArray[np.intp]) -> TurnColumns:
        """Some of the rows, as ordered here."""
        return TurnColumns(self.conversations[rows], self.numbers[rows], self.sizes[rows])

    def share(self, clusters: NDArray[np.int64]) -> bool:
        """Whether conversations share clusters (n,): they are then no independent draws."""
        pairs = np.unique(np.stack([clusters, self.conversations]), axis=1)
        return pairs.shape[1] > len(np.unique(clusters))


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
        clusters: The id of each row's cluster, else conversation, shape (n,); -1 for a row without.
        answers: Which recorded answers are the same; None if they cannot be compared as text.
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
        turn_places: The number of each sampled row's turn among those of its conversation that
            are drawn alike, shape (n,); 0 for a row that its decision drew.
        draws: The number of each row that a rate above it draws, shape (n,); NaN for a row that is
            not sampled. None: no row is.
        decision_ids: The sampled decision of each row, empty for a row without, shape (n,); None:
            no row has one.
        sample_prints: Keyed hash of the sampled conversation, else decision, of each row, zeros for
            a row without; None: no row has one.
        usage: What recorded calls used on average, by candidate; empty without any.
        verified: Whether a row's scores are those that the gateway stored, shape (n,); None: none.
        turns: The conversations of which the file has all turns; None: there are none.
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
    answers: RowAnswers | None
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
    turn_places: NDArray[np.int64] | None = None
    decision_ids: NDArray[np.bytes_] | None = None
    sample_prints: tuple[bytes, ...] | None = None
    verified: BoolArray | None = None
    answered_by: NDArray[np.str_] | None = None
    quality: FloatArray | None = None
    weights: FloatArray | None = None
    judged: NDArray[np.int8] | None = None
    judge: str | None = None
    other_hashes: NDArray[np.uint64] | None = None
    turns: TurnColumns | None = None
    usage: Mapping[str, MeanUsage] = field(default_factory=dict[str, MeanUsage])

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        shape = (len(self.queries), len(self.pool))
        classes = None if self.answers is None else self.answers.classes
        tables = (self.labels, self.scores, self.quality, classes, self.judged)
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

    def are_dependent(self, kind: RowsKind) -> bool:
        """Whether some rows of one cluster break the bound, since they are no independent draws.

        Such are rows of a list. Of a gateway's sample no two rows share a conversation, once it is
        thinned.
        """
        if kind is RowsKind.QUESTIONS:
            return self.shared_clusters > 0
        return self.take(np.flatnonzero(self.sampled)).shared_clusters > 0

    def digest(self) -> str:
        """SHA-256 of queries and labels: the same for any order and format of the file."""
        by_name = sorted(range(len(self.pool)), key=self.pool.__getitem__)
        hashes = self.query_hashes.astype("<u8").view(np.uint8).reshape(len(self), -1)
        rows = np.hstack([hashes, np.packbits(self.labels[:, by_name], axis=1)])
        ascending = np.sort(rows.view(f"S{rows.shape[1]}"), axis=0)
        return hashlib.sha256(ascending.tobytes()).hexdigest()

    def take(self, rows: NDArray[np.intp]) -> RowColumns:
        """Some of the rows, as ordered here; all in their order are these columns themselves."""
        if np.array_equal(rows, np.arange(len(self))):
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
            answers=None if self.answers is None else self.answers.at(rows),
            answered=self.answered[rows],
            later=self.later[rows],
            condition_ids=self.condition_ids[rows],
            unlabelled=self.unlabelled[rows],
            sampled=self.sampled[rows],
            draws=None if self.draws is None else self.draws[rows],
            turn_places=None if self.turn_places is None else self.turn_places[rows],
            decision_ids=None if self.decision_ids is None else self.decision_ids[rows],
            sample_prints=None
            if self.sample_prints is None
            else tuple(self.sample_prints[i] for i in chosen),
            verified=None if self.verified is None else self.verified[rows],
            answered_by=None if self.answered_by is None else self.answered_by[rows],
            turns=None if self.turns is None else self.turns.take(rows),
        )


# Column files: labelled rows written column by column by one process and read by another.
#
# One file holds the queries' texts, the other one all arrays.

PRINT_BYTES: Final = 16
_HASH_BYTES: Final = 8
_CHUNK: Final = 1 << 14


class ColumnWriter:
    """Takes rows one by one, and writes their columns.

    Args:
        pool: The candidates, in the order of the columns.
        texts: Where to write the queries.
        rule: When two answers are the same; None leaves answers out.
        salt: Salt of the fingerprints.
        store_keys: Keys of the queries' hashes, the store's own first.
        text: What the router reads of a conversation.
        own_texts: What it reads in applications that have a text of their own.
        leave_out: What it does not read in applications that say so.
        query_chars: How many characters of a text the router reads.
        training_chars: Characters of the longest text of training; None: unknown.
    """

    def __init__(
        self,
        *,
        pool: tuple[str, ...],
        texts: BinaryIO,
        rule: AnswerRule | None,
        salt: str,
        store_keys: Sequence[str],
        samples_key: bytes,
        text: RoutedText,
        own_texts: Mapping[str, RoutedText],
        leave_out: Mapping[str, Sequence[Passage]],
        query_chars: int,
        training_chars: int | None,
    ) -> None:
        self._pool = pool
        self._query_chars = query_chars
        self._training_chars = training_chars
        self._salt = salt
        self._store_keys = [each.encode() for each in store_keys]
        self._samples_key = samples_key
        self._text: RoutedText = text
        self._own_texts = own_texts
        self._leave_out = leave_out
        self._prints = bytearray()
        self._overlap_prints = bytearray()
        self._identities = bytearray()
        self._query_hashes = bytearray()
        self._texts = texts
        self._rule = rule
        self._unknown = [float("nan")] * len(pool)
        self._unanswered = [-1] * len(pool)
        self._ends = array("q")
        self._end = 0
        self._labels = bytearray()
        self._scores = array("d")
        self._quality = array("d")
        self._is_graded = False
        self._weights = array("d")
        self._group_ids = array("l")
        self._groups: dict[str, int] = {}
        self._cluster_ids = array("l")
        self._clusters: dict[str, int] = {}
        self._conversation_ids = array("l")
        self._conversations: dict[str, int] = {}
        self._turn_numbers = array("l")
        self._turn_sizes = array("d")
        self._whole = WholeConversations(query_chars)
        self._classes = array("h")
        self._equal = bytearray()  # of answers that are compared two by two
        self._answered = bytearray()
        self._later = bytearray()
        self._unlabelled = bytearray()
        self._draws = array("d")
        self._turn_places = array("l")
        self._decision_ids: list[bytes] = []
        self._sample_prints = bytearray()
        self._judged = array("b")
        self._is_judged = False
        self._unjudged: int | None = None
        self._judge: str | None = None
        self.other_judge: tuple[int, str, str] | None = None
        self._condition_ids = array("l")
        self._conditions: dict[tuple[str, ...], int] = {}
        self._usage = UsageMeans()

    def add(self, row: LabelledRow) -> None:
        """Add a row."""
        self._usage.add(row)
        read = self._own_texts.get(row.group or "", self._text)
        left_out = self._leave_out.get(row.group or "", ())
        text = row_text(row, read, left_out)
        query = text[: self._query_chars]
        self._end += self._texts.write(query.encode())
        self._ends.append(self._end)
        # A row that brings scores has no query, but needs a fingerprint for its smoothing noise.
        name = query or f"\0row {len(self._answered)}"
        found = fingerprint(self._salt, name)
        self._prints += found
        cut = name
        if (trained := WITHOUT_SYSTEM[read]) != read:  # training reads no system prompts
            cut = row_text(row, trained, left_out)
            cut = cut[: self._training_chars or self._query_chars] or name
        elif self._training_chars is not None:
            cut = text[: self._training_chars] or name
        self._overlap_prints += found if cut == name else fingerprint(self._salt, cut)
        identity = row_identity(row.query, row.earlier, row.request, plain=True) or name
        self._identities += blake2b(identity.encode(), digest_size=PRINT_BYTES).digest()
        asked = row_identity(row.query, row.earlier, None, plain=True)
        asked = asked or f"{row.scores} {sorted(row.correct)}"
        for key in self._store_keys:
            hashed = blake2b(asked.encode(), key=key, digest_size=_HASH_BYTES)
            self._query_hashes += hashed.digest()
        self._labels += bytes(name in row.correct for name in self._pool)
        self._scores.extend(self._unknown if row.scores is None else row.scores)
        self._quality.extend(self._unknown if row.quality is None else row.quality)
        self._is_graded = self._is_graded or row.quality is not None
        self._weights.append(row.weight)
        ids, group = self._groups, row.group
        self._group_ids.append(-1 if group is None else ids.setdefault(group, len(ids)))
        ids, cluster = self._clusters, row.shared
        self._cluster_ids.append(-1 if cluster is None else ids.setdefault(cluster, len(ids)))
        ids, talk = self._conversations, row.conversation
        self._conversation_ids.append(-1 if talk is None else ids.setdefault(talk, len(ids)))
        if talk is not None:
            self._whole.add(talk, row_turns(row))
        self._turn_numbers.append(len(row.earlier))
        self._turn_sizes.extend(astuple(turn_sizes(row.earlier, row.query)))
        if self._rule is not None:
            self._add_answers(row, self._rule)
        self._answered.append(bool(row.answers))
        self._later.append(bool(row.earlier))
        self._unlabelled.append(row.unlabelled)
        draw = draw_of(row, self._samples_key)
        self._draws.append(math.nan if draw is None else draw)
        self._turn_places.append(row.turn or 0)
        self._decision_ids.append((row.decision_id or "").encode())
        unit = sampled_unit(row)
        self._sample_prints += bytes(PRINT_BYTES) if unit is None else fingerprint(self._salt, unit)
        self._add_verdicts(row)
        vectors = self._conditions
        vector = tuple(row.conditions[name] for name in self._pool) if row.conditions else ()
        self._condition_ids.append(vectors.setdefault(vector, len(vectors)) if vector else -1)

    def _add_verdicts(self, row: LabelledRow) -> None:
        if row.judged is None:
            self._judged.extend(self._unanswered)
            if not row.unlabelled and self._unjudged is None:
                self._unjudged = len(self._answered)
        else:
            self._judged.extend(name in row.judged for name in self._pool)
            self._is_judged = True
            self._judge = self._judge or row.judge
            if row.judge not in (None, self._judge) and self.other_judge is None:
                assert row.judge is not None
                assert self._judge is not None
                self.other_judge = len(self._answered), self._judge, row.judge

    @property
    def labelled_without_verdicts(self) -> int | None:
        """The number of the first row with a label and no verdicts of a judge that gave others."""
        return self._unjudged if self._is_judged else None

    @property
    def problem_of_conversations(self) -> str | None:
        """What is wrong with the first conversation that is not whole; None: all are whole."""
        return self._whole.problem

    def _add_answers(self, row: LabelledRow, rule: AnswerRule) -> None:
        found = RowAnswers.of([row], self._pool, rule)
        self._classes.extend(found.classes[0].tolist())
        if found.equal is not None:
            self._equal += found.equal.tobytes()

    @property
    def repeated_first_turns(self) -> int:
        """Rows of first turns with the identity of an earlier one."""
        distinct = {
            bytes(self._identities[i * PRINT_BYTES : (i + 1) * PRINT_BYTES])
            for i, later in enumerate(self._later)
            if not later
        }
        return self._later.count(0) - len(distinct)

    def save(self, arrays: BinaryIO) -> None:
        """Write everything but the queries."""
        groups = [name.encode() for name in self._groups]
        np.savez(
            arrays,
            allow_pickle=False,
            fingerprints=np.frombuffer(self._prints, np.uint8),
            overlap_prints=np.frombuffer(self._overlap_prints, np.uint8)[
                : 0 if self._overlap_prints == self._prints else None
            ],
            identities=np.frombuffer(self._identities, np.uint8),
            query_hashes=np.frombuffer(self._query_hashes, "<u8").reshape(
                -1, len(self._store_keys)
            ),
            ends=np.frombuffer(self._ends, np.int64),
            labels=self._table(np.frombuffer(self._labels, np.bool_)),
            scores=self._table(np.frombuffer(self._scores, np.float64)),
            quality=self._table(np.frombuffer(self._quality, np.float64))[
                : None if self._is_graded else 0
            ],
            weights=np.frombuffer(self._weights, np.float64),
            group_ids=np.asarray(self._group_ids, np.int64),
            group_texts=np.frombuffer(b"".join(groups), np.uint8),
            group_ends=np.cumsum([len(each) for each in groups], dtype=np.int64),
            clusters=np.asarray(self._cluster_ids, np.int64),
            conversations=np.asarray(self._conversation_ids, np.int64),
            turn_numbers=np.asarray(self._turn_numbers, np.int64),
            turn_sizes=np.frombuffer(self._turn_sizes, np.float64).reshape(-1, 3),
            classes=np.frombuffer(self._classes, np.int16),
            equal=np.frombuffer(self._equal, np.bool_),
            answered=np.frombuffer(self._answered, np.bool_),
            later=np.frombuffer(self._later, np.bool_),
            unlabelled=np.frombuffer(self._unlabelled, np.bool_),
            draws=np.frombuffer(self._draws, np.float64),
            turn_places=np.asarray(self._turn_places, np.int64),
            decision_ids=np.array(
                self._decision_ids if any(self._decision_ids) else [], dtype=np.bytes_
            ),
            sample_prints=np.frombuffer(self._sample_prints, np.uint8)[
                : None if any(self._decision_ids) else 0
            ],
            judged=self._table(np.frombuffer(self._judged, np.int8))[
                : None if self._is_judged else 0
            ],
            judge=np.array([self._judge or ""], dtype=np.str_),
            conditions=np.array([*self._conditions], dtype=np.str_),
            condition_ids=np.asarray(self._condition_ids, np.int64),
            usage=_usage_table(self._pool, self._usage.means),
        )

    def _table(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        return values.reshape(-1, len(self._pool))


def load(
    pool: tuple[str, ...],
    texts: BinaryIO,
    arrays: BinaryIO,
    *,
    duplicates: int,
    near_duplicates: int,
    assumed: int,
    guessed_kind: RowsKind,
) -> RowColumns:
    """The rows that a :class:`ColumnWriter` wrote.

    Raises:
        ValueError: The files do not hold columns that belong together.
    """
    arrays.seek(0)
    with np.load(arrays, allow_pickle=False) as saved:
        group_names = Texts(saved["group_texts"].tobytes(), saved["group_ends"])
        quality, weights = saved["quality"], saved["weights"]
        judged, hashes = saved["judged"], saved["query_hashes"]
        fingerprints = _digests(saved["fingerprints"])
        return RowColumns(
            pool=pool,
            queries=Texts(_contents(texts), saved["ends"]),
            fingerprints=fingerprints,
            overlap_prints=_digests(saved["overlap_prints"]) or fingerprints,
            identities=_digests(saved["identities"]),
            query_hashes=np.ascontiguousarray(hashes[:, 0]),
            other_hashes=hashes[:, 1:] if hashes.shape[1] > 1 else None,
            labels=saved["labels"],
            scores=saved["scores"],
            quality=quality if quality.size else None,
            weights=None if (weights == 1.0).all() else weights,
            groups=_groups([*group_names], saved["group_ids"]) if len(group_names) else None,
            clusters=saved["clusters"],
            answers=_answers(saved["classes"], saved["equal"], len(pool)),
            answered=saved["answered"],
            later=saved["later"],
            unlabelled=saved["unlabelled"],
            sampled=~np.isnan(saved["draws"]),
            draws=saved["draws"],
            turn_places=saved["turn_places"],
            decision_ids=saved["decision_ids"] if len(saved["decision_ids"]) else None,
            sample_prints=_digests(saved["sample_prints"]) or None,
            judged=judged if judged.size else None,
            judge=str(saved["judge"][0]) or None,
            conditions=tuple(tuple(map(str, vector)) for vector in saved["conditions"]),
            condition_ids=saved["condition_ids"],
            turns=_turns(saved),
            duplicates=duplicates,
            near_duplicates=near_duplicates,
            assumed=assumed,
            guessed_kind=guessed_kind,
            usage=_usage_from(pool, saved["usage"]),
        )


def _answers(
    classes: NDArray[np.int16], equal: NDArray[np.bool_], columns: int
) -> RowAnswers | None:
    """Which recorded answers are the same; None where they were left out."""
    if not classes.size:
        return None
    return RowAnswers(
        classes=classes.reshape(-1, columns),
        equal=equal.reshape(-1, columns, columns) if equal.size else None,
    )


def _turns(saved: Mapping[str, NDArray[Any]]) -> TurnColumns | None:
    """The turns of conversations; None where no row is of one."""
    if not (saved["conversations"] >= 0).any():
        return None
    return TurnColumns(saved["conversations"], saved["turn_numbers"], saved["turn_sizes"])


def _usage_table(pool: Sequence[str], usage: Mapping[str, MeanUsage]) -> FloatArray:
    """Mean usage as an array, shape (K, 3); NaN where it is not known."""
    rows = [astuple(usage.get(name, MeanUsage())) for name in pool]
    return np.array(rows, dtype=np.float64)


def _usage_from(pool: Sequence[str], table: FloatArray) -> dict[str, MeanUsage]:
    """What :func:`_usage_table` was made of."""
    rows = [[None if math.isnan(each) else each for each in row] for row in table.tolist()]
    found = {
        name: MeanUsage(input_tokens=given[0], output_tokens=given[1], seconds=given[2])
        for name, given in zip(pool, rows, strict=True)
    }
    return {name: each for name, each in found.items() if each != MeanUsage()}


def _digests(joined: NDArray[np.uint8]) -> tuple[bytes, ...]:
    data = joined.tobytes()
    return tuple(data[i : i + PRINT_BYTES] for i in range(0, len(data), PRINT_BYTES))


def _groups(names: list[str], ids: NDArray[np.int64]) -> tuple[str | None, ...]:
    """The name of each row's group; id -1 is none."""
    all_names: list[str | None] = [*names, None]
    # In chunks: one call for a million rows would hold the interpreter.
    groups: list[str | None] = []
    for start in range(0, len(ids), _CHUNK):
        chunk: list[int] = ids[start : start + _CHUNK].tolist()
        groups += [all_names[each] for each in chunk]
    return tuple(groups)


def _contents(file: BinaryIO) -> bytes | mmap.mmap:
    """The contents of a file; a file on disk is mapped, so it takes no memory of the process."""
    try:
        descriptor = file.fileno()
    except OSError:
        file.seek(0)
        return file.read()
    if os.fstat(descriptor).st_size == 0:
        return b""
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def draw_of(row: LabelledRow, key: bytes) -> float | None:
    """The number u that decided whether a row was sampled; None for a row of no sample.

    Every rate above u draws it.

    Args:
        row: A row of an upload.
        key: Secret of the draws.
    """
    if row.decision_id is None:
        return None
    drawn_by = row.decision_id if row.turn is None else row.cluster or ""
    return sampling_number(key, drawn_by.encode(), row.turn or 0)
