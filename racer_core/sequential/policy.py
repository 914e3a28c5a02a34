"""Policy of sequential calls: order of candidates, borders of rounds, vote, and stopping score.

None of these depends on the threshold lambda, nor on the requests that calibrate it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.batch import ClassArray, winners
from racer_core.aggregation.leaders import UNREADABLE
from racer_core.aggregation.vote import OPTIONS, Method, aggregate
from racer_core.errors import CalibrationError, InputError
from racer_core.sequential.answer_classes import AnswerClasses, same_answers
from racer_core.sequential.reliability import checked, log_odds
from racer_core.sequential.verdicts import NO_VERDICT, VerdictArray, VerdictRates
from racer_core.types import BoolArray, CandidateAnswer, FloatArray, checked_pool

Columns = NDArray[np.intp]
_CLEARLY = 1e-9  # a larger lead than rounding makes, and than a vote counts as a tie
_EXP: Final = np.frompyfunc(math.exp, 1, 1)

NO_VERDICTS: Final[Mapping[str, int]] = MappingProxyType({})


class Loss(StrEnum):
    """What a stop may not bring about too often."""

    DIFFERS = "differs"  # the answer is not the reference's
    REGRETS = "regrets"  # the reference's answer is right and this one is wrong; needs labels
    MISSES = "misses"  # none that was called is right, though some candidate is; needs labels


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a sequence would return after each of its rounds.

    Attributes:
        winner: The column whose answer would be returned, shape (n, R).
        doubt: q, the estimated chance of the loss, shape (n, R).
        differs: Whether the loss occurs (:class:`Loss`), shape (n, R).
    """

    winner: Columns
    doubt: FloatArray
    differs: BoolArray


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The calls of a sequence, and the reference that its answers are compared with.

    Votes count log p (C - 1)/(1 - p), as ``aggregate`` does by the method ``log_odds`` if the
    reliabilities p stand in the place of router scores. Ties go by mean p, best p and name. With a
    checker p is that of the candidate given the verdict on its answer, in votes and doubts alike:
    so the reference is the vote of the whole pool with all its answers checked.

    Attributes:
        pool: The candidates, in the order of the columns.
        reliabilities: p of each candidate of the pool.
        order: The candidates in the order of calls: the whole pool, or with a named reference
            some candidates and then the reference.
        borders: How many candidates are called at the end of each round; the last border is the
            length of the order.
        options: C, at least the number of candidates, so that it is the same for every row.
        reference: The candidate whose answer is the reference; None: the vote of the whole pool.
        checker: How often a checker gives its verdicts; None: there is no checker.
        loss: What a stop may not bring about too often.
    """

    pool: tuple[str, ...]
    reliabilities: tuple[float, ...]
    order: tuple[str, ...]
    borders: tuple[int, ...]
    options: int = OPTIONS
    reference: str | None = None
    checker: VerdictRates | None = None
    loss: Loss = Loss.DIFFERS

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
        if self.reference is not None and self.loss is Loss.MISSES:
            raise InputError("a reference is of no use where misses are the loss")

    def outcomes(self, answers: AnswerClasses) -> Outcomes:
        """What the policy returns after each round, for rows with the answers of all candidates.

        Raises:
            InputError: Answers of another pool.
            CalibrationError: The rows lack verdicts or labels that the policy needs.
        """
        if answers.pool != self.pool:
            raise InputError("the answers are those of another pool: restrict one of them")
        if self.checker is not None and answers.verdicts is None:
            raise CalibrationError("the policy has a checker, and the rows lack its verdicts")
        classes, verdicts = answers.along(self.order), answers.verdicts
        standings = [self.standing(classes, border, verdicts) for border in self.borders]
        winner = np.stack([each for each, _ in standings], axis=1)
        doubt = np.stack([each for _, each in standings], axis=1)
        if self.loss is Loss.MISSES:
            return Outcomes(winner, doubt, self._missed(answers))
        reference = winner[:, -1:]
        rows = np.arange(len(classes))[:, None]
        if self.loss is Loss.REGRETS:
            if answers.labels is None:
                raise CalibrationError("regrets are counted by labels: the rows have none")
            right = answers.labels[rows, winner]
            return Outcomes(winner, doubt, right[:, -1:] & ~right)
        # An unreadable answer equals itself alone.
        equal = answers.same[rows, winner, reference] | (winner == reference)
        return Outcomes(winner, doubt, ~equal)

    def standing(
        self, classes: ClassArray, called: int, verdicts: VerdictArray | None = None
    ) -> tuple[Columns, FloatArray]:
        """The winner (n,) and the doubt (n,) after the first calls of the order.

        :meth:`vote` and :meth:`doubt` are the same for one row, bit by bit.

        Args:
            classes: Answers, shape (n, K); those of further candidates have no effect.
            called: The number of candidates called.
            verdicts: The checker's, shape (n, K); None: there is none on any answer.
        """
        first = self._columns[:called]
        if self.reference is not None and called == len(self.order):
            return np.full(len(classes), first[-1]), np.zeros(len(classes))
        given = classes[:, first]
        verdict = NO_VERDICT if verdicts is None else verdicts[:, first]
        chances = np.broadcast_to(self._chances[first, verdict], given.shape)
        votes = np.broadcast_to(self._votes[first, verdict], given.shape)
        at = self._elected(given, first, chances, votes)
        strength, is_first = _strengths(given, votes)
        heard, unheard = _posterior(strength, is_first, self.options)
        if self.loss is Loss.MISSES:
            missing = (self.options - is_first.sum(axis=1)) * unheard
            return first[at], missing * self._others_right[called]
        decided = _are_decided(given, strength, at, self._reach[called])
        winner = np.take_along_axis(heard, at[:, None], axis=1)[:, 0]
        return first[at], np.where(decided, 0.0, 1.0 - winner)

    def vote(
        self, forms: Mapping[str, str | None], verdicts: Mapping[str, int] = NO_VERDICTS
    ) -> str:
        """The candidate that wins the vote of these answers, at least one.

        Args:
            forms: The normal form of each candidate's answer; None: it cannot be read.
            verdicts: The verdict on each answer; none where a candidate is left out.
        """
        answers = [
            CandidateAnswer(
                candidate=name,
                text="",
                form=form,
                score=self._chances_of[name][verdicts.get(name, NO_VERDICT)],
            )
            for name, form in forms.items()
        ]
        return aggregate(answers, method=Method.LOG_ODDS, options=self.options).winner

    def strengths(
        self, forms: Mapping[str, str | None], verdicts: Mapping[str, int] = NO_VERDICTS
    ) -> dict[str, float]:
        """The sum of the votes of each answer that can be read.

        It is the log of their factor in its posterior; the factor overflows with many candidates.
        """
        strength: dict[str, float] = {}
        for name, form in forms.items():
            if form is not None:
                vote = self._votes_of[name][verdicts.get(name, NO_VERDICT)]
                strength[form] = strength.get(form, 0.0) + vote
        return strength

    def is_decided(
        self,
        forms: Mapping[str, str | None],
        winner: str,
        silent: Collection[str],
        verdicts: Mapping[str, int] = NO_VERDICTS,
    ) -> bool:
        """Whether the vote's winner is the same whatever others answer, and with which verdicts.

        Args:
            forms: As in :meth:`vote`, with the answer of the winner.
            winner: The candidate that wins their vote.
            silent: The others.
            verdicts: As in :meth:`vote`.
        """
        strength = self.strengths(forms, verdicts)
        reach = sum(max(map(abs, self._votes_of[name])) for name in silent)
        return _leads(strength, forms[winner], _CLEARLY + reach)

    def doubt(
        self,
        forms: Mapping[str, str | None],
        winner: str,
        verdicts: Mapping[str, int] = NO_VERDICTS,
    ) -> float:
        """The doubt after the first calls of the order, about the winner's answer or a miss.

        It adds and multiplies in the order of :meth:`standing`.
        """
        strength = self.strengths(forms, verdicts)
        top = max((0.0, *strength.values()))
        unheard = math.exp(-top)
        total = self.options * unheard
        for each in strength.values():
            total += math.exp(each - top) - unheard
        if self.loss is Loss.MISSES:
            missing = (self.options - len(strength)) * (unheard / total)
            return missing * self._others_right[len(forms)]
        form = forms[winner]
        if _leads(strength, form, self._reach[len(forms)]):
            return 0.0
        return 1.0 - (unheard if form is None else math.exp(strength[form] - top)) / total

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
                checker=(given := state.get("checker")) and VerdictRates.from_state(given),
                loss=Loss(state.get("loss", Loss.DIFFERS)),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise InputError("the saved policy does not fit: fit a new one") from exc

    @cached_property
    def _columns(self) -> Columns:
        return np.array([self.pool.index(name) for name in self.order])

    @cached_property
    def _chances(self) -> FloatArray:
        """The reliability of each candidate given each verdict, the last one none."""
        return checked(np.array(self.reliabilities), self.checker)

    @cached_property
    def _votes(self) -> FloatArray:
        return log_odds(self._chances, self.options)

    @cached_property
    def _reach(self) -> tuple[float, ...]:
        """How much the votes that are left can change a lead after 0, 1, .. K calls.

        Without limit with a named reference: no vote elects its answer.
        """
        votes: FloatArray = self._votes[self._columns][::-1]
        if self.reference is not None:
            return (math.inf,) * (len(votes) + 1)
        most: FloatArray = np.abs(votes).max(axis=1)  # whatever the verdicts
        changes = np.append(0.0, np.cumsum(most))
        reach: list[float] = (_CLEARLY + changes[::-1]).tolist()
        return tuple(reach)

    @cached_property
    def _chances_of(self) -> dict[str, list[float]]:
        return dict(zip(self.pool, self._chances.tolist(), strict=True))

    @cached_property
    def _votes_of(self) -> dict[str, list[float]]:
        return dict(zip(self.pool, self._votes.tolist(), strict=True))

    @cached_property
    def _others_right(self) -> list[float]:
        """After 0, 1, .. calls: P(some other candidate is right | none of those called is)."""
        wrong = [1.0]
        for name in reversed(self.order):
            wrong.append(wrong[-1] * (1.0 - self.reliabilities[self.pool.index(name)]))
        return [1.0 - each for each in reversed(wrong)]

    def _missed(self, answers: AnswerClasses) -> BoolArray:
        """Whether none of the candidates called is right, though one is, shape (n, R)."""
        if answers.labels is None:
            raise CalibrationError("misses are counted by labels: the rows have none")
        found = np.maximum.accumulate(answers.labels[:, self._columns], axis=1)
        return found[:, -1:] & ~found[:, np.array(self.borders) - 1]

    def _elected(
        self, given: ClassArray, columns: Columns, chances: FloatArray, votes: FloatArray
    ) -> Columns:
        """The winner among these columns, as a place in them, shape (n,)."""
        numbers: list[int] = columns.tolist()
        names = [self.pool[column] for column in numbers]
        return winners(
            same_answers(given).astype(np.float64),
            np.ones(given.shape, dtype=bool),
            votes,
            chances,
            sorted(range(len(names)), key=names.__getitem__),
        )


def _leads(strength: Mapping[str, float], form: str | None, reach: float) -> bool:
    """Whether an answer stays ahead of all others if its lead shrinks by ``reach``."""
    if form is None:
        return False
    others = (each for other, each in strength.items() if other != form)
    return strength[form] > reach + max((0.0, *others))


def _strengths(given: ClassArray, votes: FloatArray) -> tuple[FloatArray, BoolArray]:
    """The sum of each answer's votes (n, calls), and whether no call before gave it (n, calls).

    ``Policy.strengths`` adds in the same order.
    """
    readable = given != UNREADABLE
    strength = np.zeros(given.shape)
    is_first = np.empty(given.shape, dtype=bool)
    for call in range(given.shape[1]):
        same = (given == given[:, call, None]) & readable[:, call, None]
        strength = np.where(same, strength + votes[:, call, None], strength)
        is_first[:, call] = readable[:, call] & ~same[:, :call].any(axis=1)
    return strength, is_first


def _posterior(
    strength: FloatArray, is_first: BoolArray, options: int
) -> tuple[FloatArray, FloatArray]:
    """P(right) of each answer (n, calls), and of one that was not given (n,): the one-coin model.

    ``Policy.doubt`` does the same operations in the same order.
    """
    top = np.maximum(strength.max(axis=1), 0.0)
    heard, unheard = _exp(strength - top[:, None]), _exp(-top)
    total = options * unheard
    for call in range(strength.shape[1]):
        added = total + (heard[:, call] - unheard)
        total = np.where(is_first[:, call], added, total)
    return heard / total[:, None], unheard / total


def _exp(values: FloatArray) -> FloatArray:
    """As ``math.exp``, whose last bits are others than those of numpy's."""
    return np.asarray(_EXP(values), dtype=np.float64)


def _are_decided(
    given: ClassArray, strength: FloatArray, winner: Columns, reach: float
) -> BoolArray:
    """Whether the votes that are left cannot change the winner's answer, (n,).

    They cannot if it leads any other answer, also one that no candidate gave, by more than
    ``reach``. ``_leads`` is the same for one row.
    """
    elected = winner[:, None]
    lead = np.take_along_axis(strength, elected, axis=1)[:, 0]
    leads = given == np.take_along_axis(given, elected, axis=1)
    rival = np.where(leads, 0.0, strength).max(axis=1)
    return lead > reach + rival
