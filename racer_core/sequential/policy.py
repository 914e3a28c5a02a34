"""Policy of sequential calls: order of candidates, borders of rounds, vote, and stopping score.

None of these depends on the threshold lambda, nor on the requests that calibrate it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.batch import ClassArray, winners
from racer_core.aggregation.vote import OPTIONS, Method, aggregate
from racer_core.errors import InputError
from racer_core.sequential.answer_classes import UNREADABLE, AnswerClasses, same_answers
from racer_core.sequential.reliability import vote_odds
from racer_core.types import BoolArray, CandidateAnswer, FloatArray, checked_pool

Columns = NDArray[np.intp]
_CLEARLY = 1.0 + 1e-9  # a larger lead than rounding makes, and than a vote counts as a tie


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a sequence would return after each of its rounds.

    Attributes:
        winner: The column whose answer would be returned, shape (n, R).
        doubt: q, the estimated chance that it differs from the reference, shape (n, R).
        differs: Whether it differs from the reference's answer, shape (n, R).
    """

    winner: Columns
    doubt: FloatArray
    differs: BoolArray


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The calls of a sequence, and the reference that its answers are compared with.

    Votes count log p (C - 1)/(1 - p), as ``aggregate`` does by the method ``log_odds`` if the
    reliabilities p stand in the place of router scores. Ties go by mean p, best p and name.

    Attributes:
        pool: The candidates, in the order of the columns.
        reliabilities: p of each candidate of the pool.
        order: The candidates in the order of calls: the whole pool, or with a named reference
            some candidates and then the reference.
        borders: How many candidates are called at the end of each round; the last border is the
            length of the order.
        options: C, at least the number of candidates, so that it is the same for every row.
        reference: The candidate whose answer is the reference; None: the vote of the whole pool.
    """

    pool: tuple[str, ...]
    reliabilities: tuple[float, ...]
    order: tuple[str, ...]
    borders: tuple[int, ...]
    options: int = OPTIONS
    reference: str | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        pool = checked_pool(self.pool)
        if len(self.reliabilities) != len(pool):
            raise InputError(f"{len(self.reliabilities)} reliabilities for {len(pool)} candidates")
        if not all(0.0 < each < 1.0 for each in self.reliabilities):
            raise InputError("reliabilities must lie between 0 and 1")
        is_whole = set(self.order) == set(pool)
        if len(set(self.order)) != len(self.order) or not set(self.order) <= set(pool):
            raise InputError("the order must name candidates of the pool, each once")
        if self.reference is None and not is_whole:
            raise InputError("the vote of the whole pool needs an order of the whole pool")
        if self.reference is not None and self.order[-1] != self.reference:
            raise InputError(f"the order must end with the reference {self.reference!r}")
        ascending = tuple(sorted({*self.borders}))
        if not ascending or ascending[0] < 1 or (*ascending[:-1], len(self.order)) != self.borders:
            raise InputError(f"the borders of rounds must ascend to {len(self.order)}")
        if self.options < max(len(pool), 2):
            raise InputError(f"options must be at least {max(len(pool), 2)}", param="options")

    def outcomes(self, answers: AnswerClasses) -> Outcomes:
        """What the policy returns after each round, for rows with the answers of all candidates."""
        if answers.pool != self.pool:
            raise InputError("the answers are those of another pool: restrict one of them")
        classes = answers.classes
        standings = [self.standing(classes, border) for border in self.borders]
        winner = np.stack([each for each, _ in standings], axis=1)
        doubt = np.stack([each for _, each in standings], axis=1)
        reference = winner[:, -1:]
        rows = np.arange(len(classes))[:, None]
        # An unreadable answer equals itself alone.
        equal = answers.same[rows, winner, reference] | (winner == reference)
        return Outcomes(winner, doubt, ~equal)

    def standing(self, classes: ClassArray, called: int) -> tuple[Columns, FloatArray]:
        """The winner (n,) and the doubt (n,) after the first calls of the order.

        :meth:`vote` and :meth:`doubt` are the same for one row, bit by bit.

        Args:
            classes: Answers, shape (n, K); those of further candidates have no effect.
            called: The number of candidates called.
        """
        first = self._columns[:called]
        if self.reference is not None and called == len(self.order):
            return np.full(len(classes), first[-1]), np.zeros(len(classes))
        given = classes[:, first]
        at = self._elected(given, first)
        doubt = _doubt(given, self._odds[first], at, self.options, self._reach[called])
        return first[at], doubt

    def vote(self, forms: Mapping[str, str | None]) -> str:
        """The candidate that wins the vote of these answers, at least one.

        Args:
            forms: The normal form of each candidate's answer; None: it cannot be read.
        """
        answers = [
            CandidateAnswer(candidate=name, text="", form=form, score=self._reliability[name])
            for name, form in forms.items()
        ]
        return aggregate(answers, method=Method.LOG_ODDS, options=self.options).winner

    def doubt(self, forms: Mapping[str, str | None], winner: str) -> float:
        """The doubt about the winner's answer after these calls, the first of the order.

        It adds and multiplies in the order of :meth:`standing`.
        """
        strength: dict[str, float] = {}
        for name, form in forms.items():
            if form is not None:
                strength[form] = strength.get(form, 1.0) * self._odds_of[name]
        total = float(self.options)
        for each in strength.values():
            total += each - 1.0
        form = forms[winner]
        lead = 1.0 if form is None else strength.pop(form)
        is_decided = lead > self._reach[len(forms)] * max((1.0, *strength.values()))
        return 0.0 if is_decided else 1.0 - lead / total

    def restrict(self, names: Sequence[str]) -> Self:
        """The policy of a smaller pool, whose reference is its own full vote.

        Raises:
            InputError: The reference is not in the smaller pool.
        """
        if self.reference is not None and self.reference not in names:
            raise InputError(f"the reference {self.reference!r} is not among {list(names)}")
        order = tuple(name for name in self.order if name in names)
        borders = sorted({min(border, len(order)) for border in self.borders})
        return replace(
            self,
            pool=tuple(names),
            reliabilities=tuple(self.reliabilities[self.pool.index(name)] for name in names),
            order=order,
            borders=tuple(borders),
        )

    def to_state(self) -> dict[str, Any]:
        """The policy as JSON."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The policy of :meth:`to_state`.

        Raises:
            InputError: The state is damaged, or from another version.
        """
        try:
            return cls(
                pool=tuple(state["pool"]),
                reliabilities=tuple(state["reliabilities"]),
                order=tuple(state["order"]),
                borders=tuple(state["borders"]),
                options=state["options"],
                reference=state["reference"],
            )
        except (KeyError, TypeError) as exc:
            raise InputError("the saved policy does not fit: fit a new one") from exc

    @cached_property
    def _columns(self) -> Columns:
        return np.array([self.pool.index(name) for name in self.order])

    @cached_property
    def _reliability(self) -> dict[str, float]:
        return dict(zip(self.pool, self.reliabilities, strict=True))

    @cached_property
    def _odds_of(self) -> dict[str, float]:
        odds: list[float] = self._odds.tolist()
        return dict(zip(self.pool, odds, strict=True))

    @cached_property
    def _odds(self) -> FloatArray:
        return vote_odds(np.array(self.reliabilities), self.options)

    @cached_property
    def _reach(self) -> tuple[float, ...]:
        """By how many times the votes that are left can change a lead after 0, 1, .. K calls.

        Infinitely with a named reference: no vote elects its answer.
        """
        odds = self._odds[self._columns][::-1]
        if self.reference is not None:
            return (math.inf,) * (len(odds) + 1)
        changes = np.append(1.0, np.cumprod(np.maximum(odds, 1.0 / odds)))
        reach: list[float] = (_CLEARLY * changes[::-1]).tolist()
        return tuple(reach)

    def _elected(self, given: ClassArray, columns: Columns) -> Columns:
        """The winner among these columns, as a place in them, shape (n,)."""
        scores = np.array(self.reliabilities)[columns]
        numbers: list[int] = columns.tolist()
        names = [self.pool[column] for column in numbers]
        shape = given.shape
        return winners(
            same_answers(given).astype(np.float64),
            np.ones(shape, dtype=bool),
            np.broadcast_to(np.log(self._odds[columns]), shape),
            np.broadcast_to(scores, shape),
            sorted(range(len(names)), key=names.__getitem__),
        )


def _doubt(
    given: ClassArray, odds: FloatArray, winner: Columns, options: int, reach: float
) -> FloatArray:
    """1 - posterior of the winner's answer in the one-coin model, or 0 if it is decided, (n,).

    It is decided if its posterior odds to any other answer, also to one that no candidate gave,
    are larger than the votes that are left can change (``reach``). ``Policy.doubt`` does the same
    operations in the same order.
    """
    rows, calls = given.shape
    readable = given != UNREADABLE
    strength, total = np.ones((rows, calls)), np.full(rows, float(options))
    is_first = np.empty((rows, calls), dtype=bool)
    for call in range(calls):
        same = (given == given[:, call, None]) & readable[:, call, None]
        strength = np.where(same, strength * odds[call], strength)
        is_first[:, call] = readable[:, call] & ~same[:, :call].any(axis=1)
    for call in range(calls):
        total = np.where(is_first[:, call], total + (strength[:, call] - 1.0), total)
    elected = winner[:, None]
    lead = np.take_along_axis(strength, elected, axis=1)[:, 0]
    leads = given == np.take_along_axis(given, elected, axis=1)
    rival = np.where(leads, 1.0, strength).max(axis=1)
    return np.where(lead > reach * rival, 0.0, 1.0 - lead / total)
