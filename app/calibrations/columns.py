"""Labelled rows column by column, as they pass from the process that reads them to the gateway.

A million rows as objects would each be visited by the garbage collector while queries wait. As
columns they are a handful of arrays, and the texts stay in a file until they are scored. Whatever
has to be computed from a text is computed before: fingerprints, and who gave the same answer.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, overload

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import ClassArray, answer_classes
from racer_core.artifacts import fingerprint
from racer_core.records.conversation import RoutedText, routed_text
from racer_core.types import BoolArray, FloatArray, LabelledRow

PRINT_BYTES: Final = 16
_PIECE: Final = 1 << 14


class Texts(Sequence[str]):
    """Texts one after the other in memory or in a mapped file, decoded when they are asked for.

    Args:
        data: UTF-8.
        ends: Where each text ends, shape (n,).
        starts: Where each begins; None: where the one before ends.
    """

    def __init__(
        self,
        data: bytes | mmap.mmap,
        ends: NDArray[np.int64],
        starts: NDArray[np.int64] | None = None,
    ) -> None:
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1] if starts is None else starts
        if np.any(starts < 0) or np.any(ends < starts) or np.any(ends > len(data)):
            raise ValueError("the texts do not end where they are said to")
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
        queries: What the router reads; empty where its scores stand in for a query.
        fingerprints: Keyed hashes of the queries; rows without one have one of their own.
        labels: Who was right, shape (n, K).
        scores: Router scores that rows brought, shape (n, K), NaN where they brought none.
        groups: The group of each row; None where no row has one.
        classes: Who gave the same recorded answer, shape (n, K): numbers, -1 where none can be
            read; None where answers cannot be compared as text.
        answered: Whether a row has answers, shape (n,).
        later: Whether it is a turn after the first of a conversation, shape (n,).
        duplicates: Copies that were left out.
        near_duplicates: Rows of first turns that an earlier one equals but for case, space or
            Unicode form: they count as one less than they seem.
    """

    pool: tuple[str, ...]
    queries: Texts
    fingerprints: tuple[bytes, ...]
    labels: BoolArray
    scores: FloatArray
    groups: tuple[str | None, ...] | None
    classes: ClassArray | None
    answered: BoolArray
    later: BoolArray
    duplicates: int
    near_duplicates: int

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        shape = (len(self.queries), len(self.pool))
        tables = [self.labels, self.scores] + ([] if self.classes is None else [self.classes])
        if any(table.shape != shape for table in tables):
            raise ValueError(f"the columns are not all of shape {shape}")
        grouped = len(self.queries if self.groups is None else self.groups)
        lengths = {len(self.fingerprints), grouped, len(self.answered), len(self.later)}
        if lengths != {len(self.queries)}:
            raise ValueError(f"the columns are not all of {shape[0]} rows")

    def __len__(self) -> int:
        return len(self.queries)

    def turns(self, *, later: bool) -> RowColumns:
        """The rows of first turns, or those of later ones."""
        if np.all(self.later == later):
            return self
        rows = np.flatnonzero(self.later == later)
        chosen: list[int] = rows.tolist()
        return replace(
            self,
            queries=self.queries.take(rows),
            fingerprints=tuple(self.fingerprints[i] for i in chosen),
            labels=self.labels[rows],
            scores=self.scores[rows],
            groups=None if self.groups is None else tuple(self.groups[i] for i in chosen),
            classes=None if self.classes is None else self.classes[rows],
            answered=self.answered[rows],
            later=self.later[rows],
        )


class ColumnWriter:
    """Takes rows in, and leaves them in two files.

    Args:
        pool: The candidates, in the order of the columns.
        texts: Takes the queries.
        equality: When two answers are the same; None leaves answers out.
        salt: Of the fingerprints.
        text: What the router reads of a conversation.
    """

    def __init__(
        self,
        pool: tuple[str, ...],
        texts: BinaryIO,
        equality: Equality | None,
        salt: str,
        text: RoutedText,
    ) -> None:
        self._pool = pool
        self._salt = salt
        self._text: RoutedText = text
        self._prints = bytearray()
        self._texts = texts
        self._equality = equality
        self._unscored = [float("nan")] * len(pool)
        self._unanswered = [-1] * len(pool)
        self._ends = array("q")
        self._end = 0
        self._labels = bytearray()
        self._scores = array("d")
        self._group_ids = array("l")
        self._groups: dict[str, int] = {}
        self._classes = array("h")
        self._answered = bytearray()
        self._later = bytearray()

    def add(self, row: LabelledRow) -> None:
        """One more row."""
        query = routed_text(row.earlier, row.query, self._text)
        self._end += self._texts.write(query.encode())
        self._ends.append(self._end)
        # Rows of scores alone have no query; each still needs a noise of its own.
        name = query or f"\0row {len(self._answered)}"
        self._prints += fingerprint(self._salt, name)
        self._labels += bytes(name in row.correct for name in self._pool)
        self._scores.extend(self._unscored if row.scores is None else row.scores)
        known = self._groups
        self._group_ids.append(-1 if row.group is None else known.setdefault(row.group, len(known)))
        if self._equality is not None:
            self._classes.extend(self._same(row.answers, self._equality))
        self._answered.append(bool(row.answers))
        self._later.append(bool(row.earlier))

    def _same(self, answers: Mapping[str, str | None], equality: Equality) -> list[int]:
        """Who gave the same answer."""
        if not answers:
            return self._unanswered
        given = [answers.get(name) for name in self._pool]
        return answer_classes([given], equality)[0].tolist()

    @property
    def near_duplicates(self) -> int:
        """Rows of first turns whose fingerprint is an earlier one's.

        Later turns may end in the same words and be different all the same.
        """
        seen = {
            bytes(self._prints[i * PRINT_BYTES : (i + 1) * PRINT_BYTES])
            for i, later in enumerate(self._later)
            if not later
        }
        return self._later.count(0) - len(seen)

    def save(self, arrays: BinaryIO) -> None:
        """Write everything but the queries."""
        groups = [name.encode() for name in self._groups]
        np.savez(
            arrays,
            allow_pickle=False,
            fingerprints=np.frombuffer(self._prints, np.uint8),
            ends=np.frombuffer(self._ends, np.int64),
            labels=self._table(np.frombuffer(self._labels, np.bool_)),
            scores=self._table(np.frombuffer(self._scores, np.float64)),
            group_ids=np.asarray(self._group_ids, np.int64),
            group_texts=np.frombuffer(b"".join(groups), np.uint8),
            group_ends=np.cumsum([len(each) for each in groups], dtype=np.int64),
            classes=np.frombuffer(self._classes, np.int16),
            answered=np.frombuffer(self._answered, np.bool_),
            later=np.frombuffer(self._later, np.bool_),
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
) -> RowColumns:
    """What a :class:`ColumnWriter` left.

    Raises:
        ValueError: The files do not hold columns that belong together.
    """
    arrays.seek(0)
    with np.load(arrays, allow_pickle=False) as saved:
        names = Texts(saved["group_texts"].tobytes(), saved["group_ends"])
        prints = saved["fingerprints"].tobytes()
        classes = saved["classes"]
        return RowColumns(
            pool=pool,
            queries=Texts(_contents(texts), saved["ends"]),
            fingerprints=tuple(
                prints[i : i + PRINT_BYTES] for i in range(0, len(prints), PRINT_BYTES)
            ),
            labels=saved["labels"],
            scores=saved["scores"],
            groups=_named([*names], saved["group_ids"]) if len(names) else None,
            classes=classes.reshape(-1, len(pool)) if classes.size else None,
            answered=saved["answered"],
            later=saved["later"],
            duplicates=duplicates,
            near_duplicates=near_duplicates,
        )


def _named(names: list[str], ids: NDArray[np.int64]) -> tuple[str | None, ...]:
    """The name of each row's group; -1 is none."""
    all_names: list[str | None] = [*names, None]
    # Piece by piece: one call for a million rows would hold the interpreter.
    found: list[str | None] = []
    for start in range(0, len(ids), _PIECE):
        piece: list[int] = ids[start : start + _PIECE].tolist()
        found += [all_names[each] for each in piece]
    return tuple(found)


def _contents(file: BinaryIO) -> bytes | mmap.mmap:
    """A file on disk is mapped, and so takes no memory of its own."""
    try:
        descriptor = file.fileno()
    except OSError:
        file.seek(0)
        return file.read()
    if os.fstat(descriptor).st_size == 0:
        return b""
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
