"""Value types shared by the parts of the core. Frozen, validated on construction."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import CalibrationError, InputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IdArray = NDArray[np.unsignedinteger[Any]]

# Evaluator -> `verbal` or `p_true` -> candidate -> confidence in [0, 1]; None: the rating failed.
Confidences = Mapping[str, Mapping[str, Mapping[str, float | None]]]

# What is known of a call: `finish_reason`, `prompt_tokens`, `completion_tokens`, `seconds`, and
# `tool_calls`, their number, of an answer that is tool calls.
CallRecord = Mapping[str, str | int | float]


class Score(StrEnum):
    """Nonconformity scores.

    ``gap`` and ``prob`` are the paper's (App. B). ``cover`` measures what a candidate adds to those
    already chosen, ``cover_cost`` what it adds per price. ``static`` is a fixed order that ignores
    the query: a control that every router must beat.
    """

    GAP = "gap"
    PROB = "prob"
    COVER = "cover"
    COVER_COST = "cover_cost"
    STATIC = "static"


class RiskTarget(StrEnum):
    """The risk that alpha bounds.

    ``paper``: P(C misses G'), the null model a column like any other.
    ``answerable``: P(C misses G | some candidate is right); the null model is left out.
    ``quality``: E[best quality in the pool - best quality in C], for rows with graded qualities.
    """

    PAPER = "paper"
    ANSWERABLE = "answerable"
    QUALITY = "quality"


BINARY_TARGETS: Final = (RiskTarget.PAPER, RiskTarget.ANSWERABLE)  # a set misses or it does not


class RowsKind(StrEnum):
    """What a file of labelled rows is.

    ``traffic``: rows drawn at random from traffic. Its repeats belong to the distribution, so rows
    are split one by one, and a row may repeat a training row as the next request may.
    ``questions``: a list that was collected. Copies and clusters stay on one side of every split,
    and no row may be a training row.
    """

    TRAFFIC = "traffic"
    QUESTIONS = "questions"


EnumT = TypeVar("EnumT", bound=StrEnum)


def enum_member(
    kind: type[EnumT],
    value: str,
    name: str,
    error: type[InputError | CalibrationError] = InputError,
) -> EnumT:
    """Return the member of ``kind`` with this value; a member is returned as it is.

    Args:
        kind: The enum.
        value: A member, or its string.
        name: The field, for the message.
        error: The exception to raise.

    Raises:
        InputError: No member has this value. The message lists the choices.
    """
    if isinstance(value, kind):
        return value
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(member.value for member in kind)
        raise error(f"{name} is {value!r}; choose one of {choices}") from None


def checked_alpha(alpha: object, name: str = "alpha") -> float:
    """Return ``alpha`` as a float in (0, 1), a probability and not a percentage.

    Raises:
        InputError: Not a number (``True`` is not one), NaN, or outside the open interval.
    """
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise InputError(f"{name} must be a number between 0 and 1", param=name)
    if not 0.0 < alpha < 1.0:  # also false for NaN
        raise InputError(f"{name} must lie strictly between 0 and 1, for example 0.1", param=name)
    return float(alpha)


def any_column(flags: BoolArray) -> BoolArray:
    """Whether a row of (n, C) has any column set, shape (n,)."""
    return np.asarray(flags.any(axis=1), dtype=bool)


def checked_pool(names: Sequence[str]) -> tuple[str, ...]:
    """Return the candidates' names as a pool: at least one, each once, none blank."""
    pool = tuple(names)
    if not pool or any(not name.strip() for name in pool):
        raise InputError("a pool needs at least one candidate, and every candidate a name")
    if len(set(pool)) != len(pool):
        raise InputError("a pool names a candidate twice")
    return pool


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of a conversation."""

    role: str  # "user" or "assistant"; in a whole request "tool" or any other, too
    text: str


@dataclass(frozen=True, slots=True)
class TurnSizes:
    """The lengths of a turn of a conversation, in characters."""

    earlier: float  # of all turns before it
    query: float
    answer: float  # the mean of the earlier answers; 0 without one


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """One query and the candidates that answered it right: G(x), possibly empty."""

    query: str  # the last user message; empty only where router scores stand in for it
    correct: frozenset[str]
    answers: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    reference: str | None = None
    task: str | None = None
    group: str | None = None  # group whose threshold it calibrates; None: the common one
    cluster: str | None = None  # its document, user or conversation; None: it depends on no other
    conversation: str | None = None  # of which the file has all turns; None: of none
    scores: tuple[float, ...] | None = None  # f in the order of the pool, instead of a query
    earlier: tuple[Turn, ...] = ()  # the turns before the query; none: it is a first turn
    # The whole request of which `query` and `earlier` are parts; None: it is turns of plain text.
    request: Mapping[str, Any] | None = None
    # Candidate -> digest of what it was sent for its answer, but for the query; none: unknown.
    conditions: Mapping[str, str] = field(default_factory=dict[str, str])
    # Evaluators' confidences in the answers, as `racer label --evaluator` records them.
    confidences: Confidences = field(
        default_factory=dict[str, "Mapping[str, Mapping[str, float | None]]"]
    )
    # Candidate -> the call that gave its answer, as `racer label` records it.
    calls: Mapping[str, CallRecord] = field(default_factory=dict[str, CallRecord])
    quality: tuple[float, ...] | None = None  # of each answer, in [0, 1] and the order of the pool
    weight: float = 1.0  # density of served queries over that of rows, up to a constant
    unlabelled: bool = False  # it is unknown which candidates are right; `correct` is empty
    decision_id: str | None = None  # the decision of a gateway whose sample it belongs to
    turn: int | None = None  # number of the turn of `cluster` that drew it; None: `decision_id` did
    judged: frozenset[str] | None = None  # right by a judge model; None: it gave no verdicts
    judge: str | None = None  # the name of that judge; None: not said

    @property
    def shared(self) -> str | None:
        """The rows that it depends on: its cluster, else its conversation."""
        return self.cluster or self.conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows:
    """Rows that share one pool."""

    pool: tuple[str, ...]
    rows: tuple[LabelledRow, ...]
    kind: RowsKind | None = None  # None: not said

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[LabelledRow]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> LabelledRow: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[Any]) -> LabelledRows: ...
    def __getitem__(
        self, index: int | slice | Sequence[int] | NDArray[Any]
    ) -> LabelledRow | LabelledRows:
        """One row by its number; rows by a slice, by numbers, or by a mask of shape (n,)."""
        if isinstance(index, int | np.integer):
            return self.rows[index]
        chosen = np.arange(len(self.rows))[index if isinstance(index, slice) else np.asarray(index)]
        return replace(self, rows=tuple(self.rows[int(i)] for i in chosen))

    def __add__(self, other: LabelledRows) -> LabelledRows:
        """The rows of both. Raises InputError if their pools differ."""
        if self.pool != other.pool:
            raise InputError(f"rows of the pools {list(self.pool)} and {list(other.pool)}")
        kind = self.kind if self.kind == other.kind else None
        return replace(self, rows=self.rows + other.rows, kind=kind)

    @property
    def duplicates(self) -> int:
        """Number of rows that repeat an earlier row's query and turns before it, or its request."""
        queries = [
            (row.query, row.earlier, row.request and json.dumps(row.request, sort_keys=True))
            for row in self.rows
            if row.query
        ]
        return len(queries) - len(set(queries))

    @property
    def queries(self) -> list[str]:
        """The queries' texts, in order."""
        return [row.query for row in self.rows]

    def labels(self, pool: Sequence[str] | None = None) -> BoolArray:
        """Correctness in the order of ``pool``, by default the rows' own, shape (n, K)."""
        names = self.pool if pool is None else pool
        labels = [[name in row.correct for name in names] for row in self.rows]
        return np.array(labels, dtype=bool).reshape(len(labels), len(names))

    def verdicts(self, pool: Sequence[str]) -> NDArray[np.int8] | None:
        """A judge's verdicts in the order of ``pool``, (n, K): 1, 0, or -1 for a row without.

        None: no row has any.
        """
        if all(row.judged is None for row in self.rows):
            return None
        none = [-1] * len(pool)
        verdicts = [
            none if row.judged is None else [name in row.judged for name in pool]
            for row in self.rows
        ]
        return np.array(verdicts, dtype=np.int8)

    def quality(self, pool: Sequence[str]) -> FloatArray | None:
        """Qualities in the order of ``pool``, shape (n, K), NaN for a row without; None: no row."""
        if all(row.quality is None for row in self.rows):
            return None
        none = (math.nan,) * len(self.pool)
        order = [self.pool.index(name) for name in pool]
        return np.array([row.quality or none for row in self.rows], np.float64)[:, order]

    @property
    def weights(self) -> FloatArray | None:
        """The weight of each row, shape (n,); None if all are 1."""
        weights = np.array([row.weight for row in self.rows], dtype=np.float64)
        return None if (weights == 1.0).all() else weights


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDecision:
    """The method's decision for one query, before any candidate is called."""

    selected: tuple[str, ...]  # prediction set without the null model, best score first
    scores: tuple[float, ...]  # r(x, m) for `selected`, same order
    null_selected: bool  # the null model is in the prediction set too
    alpha: float
    score: Score
    lambda_hat: float  # +inf: n was too small for alpha, all candidates are called
    truncated: bool  # the encoder saw only the beginning of the query
    abstain_reason: str | None = None  # null_only, empty or p_null; None when a candidate is called
    order: tuple[str, ...] = ()  # of the pool, in its conversation; empty: it belongs to none
    is_kept: bool = False  # the order of its conversation chose other candidates than its scores

    @property
    def abstained(self) -> bool:
        """Whether no candidate is called."""
        return not self.selected

    @property
    def trivial(self) -> bool:
        """Whether the whole pool is called because no finite threshold is valid."""
        return math.isinf(self.lambda_hat)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAnswer:
    """A candidate's answer text and the router score it was called with."""

    candidate: str
    text: str
    form: str | None  # answers with equal forms agree; None: nothing can be read, so no vote
    score: float
    weight: float | None = None  # what an evaluator gave it, in [0, 1]; None: it gave nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """The merged answer: always one candidate's own text."""

    winner: str
    text: str
    votes: Mapping[str, float]  # normalised answer -> votes or weight; unreadable ones are absent
