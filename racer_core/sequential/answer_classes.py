"""Answer classes: what every candidate answers to each request, up to an equality of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.leaders import UNREADABLE, ClassArray, led_classes
from racer_core.aggregation.rule import AnswerRule
from racer_core.errors import CalibrationError
from racer_core.sequential.verdicts import NO_VERDICT, VERDICTS, VerdictArray
from racer_core.types import BoolArray, LabelledRows, checked_pool


@dataclass(frozen=True, kw_only=True)
class AnswerClasses:
    """Rows with the answers of *all* candidates, each given by itself. Labels are not needed.

    Attributes:
        pool: The candidates, in the order of the columns.
        classes: The number of each answer among the distinct answers of its row, shape (n, K);
            ``UNREADABLE`` for one that cannot be read or was cut off.
        fingerprints: Keyed hashes of the rows' requests; they seed the noise that breaks ties.
        groups: The group of each row; None: rows have no groups.
        verdicts: What a checker says of each answer, shape (n, K); None: there is no checker.
        labels: Whether each candidate is right, shape (n, K), for losses that need it.
        equal: Whether two answers of a row are equal, shape (n, K, K), symmetric; None: those of
            one class are. An equality that is not transitive has classes along an order only:
            :meth:`along`.
    """

    pool: tuple[str, ...]
    classes: ClassArray
    fingerprints: tuple[bytes, ...]
    groups: tuple[str | None, ...] | None = None
    verdicts: VerdictArray | None = None
    labels: BoolArray | None = None
    equal: BoolArray | None = None

    def __post_init__(self) -> None:
        """Refuse wrong shapes."""
        shape = (len(self.fingerprints), len(checked_pool(self.pool)))
        if self.classes.shape != shape:
            raise CalibrationError(f"answer classes {self.classes.shape} must be {shape}")
        for what, given in (("verdicts", self.verdicts), ("labels", self.labels)):
            if given is not None and given.shape != shape:
                raise CalibrationError(f"{what} {given.shape} must be {shape}")
        if self.equal is not None and (
            self.equal.shape != (*shape, shape[1])
            or not np.array_equal(self.equal, self.equal.swapaxes(1, 2))
        ):
            raise CalibrationError("comparisons must be symmetric, of shape (n, K, K)")
        if self.verdicts is not None and self.verdicts.size:
            low, high = int(self.verdicts.min()), int(self.verdicts.max())
            if low < NO_VERDICT or high >= VERDICTS:
                raise CalibrationError(f"verdicts must lie in {NO_VERDICT} .. {VERDICTS - 1}")
        if self.groups is not None and len(self.groups) != shape[0]:
            raise CalibrationError(f"{len(self.groups)} groups for {shape[0]} rows")

    def __len__(self) -> int:
        return len(self.fingerprints)

    @classmethod
    def of(
        cls,
        rows: LabelledRows,
        rule: AnswerRule,
        fingerprints: Sequence[bytes],
    ) -> Self:
        """The recorded answers of rows; a candidate without an answer counts as unreadable."""
        answers = RowAnswers.of(rows, rows.pool, rule)
        return cls(
            pool=rows.pool,
            classes=answers.classes,
            equal=answers.equal,
            fingerprints=tuple(fingerprints),
            groups=tuple(row.group for row in rows),
        )

    @classmethod
    def compared(
        cls,
        pool: tuple[str, ...],
        equal: BoolArray,
        readable: BoolArray,
        fingerprints: Sequence[bytes],
    ) -> Self:
        """Rows whose answers were compared two by two; their classes are those along the pool.

        Args:
            pool: The candidates.
            equal: Whether two answers of a row are equal, shape (n, K, K), symmetric.
            readable: Whether an answer can be read, shape (n, K).
            fingerprints: Keyed hashes of the rows' requests.
        """
        return cls(
            pool=pool,
            classes=led_classes(equal, readable, np.arange(len(pool))),
            fingerprints=tuple(fingerprints),
            equal=equal,
        )

    def along(self, order: Sequence[str]) -> ClassArray:
        """The classes along an order of calls, shape (n, K), whatever follows it."""
        names = dict.fromkeys((*order, *self.pool))
        return self.along_columns(np.array([self.pool.index(name) for name in names]))

    def along_columns(self, order: NDArray[Any]) -> ClassArray:
        """The same along all columns, in one order (K,) or in one for each row, (n, K)."""
        if self.equal is None:
            return self.classes
        return led_classes(self.equal, self.classes != UNREADABLE, order)

    def at(self, rows: NDArray[Any]) -> Self:
        """Some of the rows, by their numbers or by a mask of shape (n,)."""
        numbers: list[int] = np.arange(len(self))[rows].tolist()
        return replace(
            self,
            classes=self.classes[numbers],
            fingerprints=tuple(self.fingerprints[i] for i in numbers),
            groups=self.groups and tuple(self.groups[i] for i in numbers),
            verdicts=None if self.verdicts is None else self.verdicts[numbers],
            labels=None if self.labels is None else self.labels[numbers],
            equal=None if self.equal is None else self.equal[numbers],
        )

    def restrict(self, names: Sequence[str]) -> Self:
        """The same rows of a smaller pool, in the order of ``names``."""
        columns = [self.pool.index(name) for name in names]
        return replace(
            self,
            pool=tuple(names),
            classes=self.classes[:, columns],
            verdicts=None if self.verdicts is None else self.verdicts[:, columns],
            labels=None if self.labels is None else self.labels[:, columns],
            equal=None if self.equal is None else self.equal[:, columns][:, :, columns],
        )

    def answerable(self) -> Self:
        """The rows with a right candidate.

        Raises:
            CalibrationError: The rows have no labels.
        """
        if self.labels is None:
            raise CalibrationError("misses are counted by labels: the rows have none")
        return self.at(np.flatnonzero(self.labels.any(axis=1)))

    @cached_property
    def same(self) -> BoolArray:
        """Whether two candidates gave the same readable answer, shape (n, K, K)."""
        if self.equal is None:
            return same_answers(self.classes)
        readable = self.classes != UNREADABLE
        return self.equal & readable[:, :, None] & readable[:, None, :]


def same_answers(classes: ClassArray) -> BoolArray:
    """Whether two columns hold the same readable answer, (n, K) to (n, K, K)."""
    readable = (classes != UNREADABLE)[:, :, None]
    return np.asarray((classes[:, :, None] == classes[:, None, :]) & readable, dtype=bool)
