"""Early stopping of votes: decides when outstanding answers cannot change the winner. Pure.

An outstanding candidate may give any answer, an existing or a new one, alone or together with
others, or none. The vote is decided when no such outcome changes the winning class of answers.

Only for votes whose counts are known before the call. An evaluator's weights (``Weight.VERBAL``,
``Weight.P_TRUE``) need all answers: such votes never end early, and callers must not use this
module for them. Where answers are compared two by two, those that arrived must have better scores
than all that are outstanding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate, islice
from typing import Final

from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import OPTIONS, Method, Weight, aggregate, counted
from racer_core.types import CandidateAnswer

# A lead of more than this share of all counts does not depend on rounding.
_CLEAR: Final = 1e-9
# Near-ties enumerated: all outcomes of four votes that count nothing. With more such votes the
# vote counts as open, which may cost a call and never changes an answer.
_TRIED: Final = 4**4


class _Place(Enum):
    """Where an outstanding vote may go, as far as one rival and the leader are concerned."""

    RIVAL = auto()
    LEADER = auto()
    APART = auto()  # an answer that no other candidate gives
    SILENT = auto()  # no answer that can be read, or none at all


def decided(
    arrived: Sequence[CandidateAnswer],
    outstanding: Mapping[str, float],
    *,
    method: Method,
    temperature: float = 1.0,
    options: int = OPTIONS,
    stacked: StackedVote | None = None,
) -> bool:
    """Whether the class that wins now wins for all possible outstanding answers.

    Exact, ties included, with one exception: if two classes tie and more than four outstanding
    votes count nothing (less than a billionth), the result may be False for a decided vote. It is
    never True for an open one. The text of the winning class may still change: a candidate with a
    higher router score may join it.

    Args:
        arrived: Answers received so far.
        outstanding: Router score of every candidate that is called or may still be called.
        method: How votes are counted, as for :func:`~racer_core.aggregation.vote.aggregate`.
        temperature: Of ``weighted``, whose weights are router scores.
        options: Of ``log_odds``; new answers count as possible ones as they do there.
        stacked: Of ``stacked``.

    Raises:
        InputError: As ``aggregate``.
    """
    rule = _Rule(method=method, temperature=temperature, options=options, stacked=stacked)
    return _decided(arrived, outstanding, rule)


def first_wave(
    arrived: Sequence[CandidateAnswer],
    waiting: Mapping[str, float],
    *,
    method: Method,
    temperature: float = 1.0,
    options: int = OPTIONS,
    stacked: StackedVote | None = None,
) -> int:
    """The size of the next wave of calls, chosen to make few calls.

    The smallest number of candidates, in their order, that decide the vote if they agree with each
    other and possibly with a received answer. At least one; all if no agreement would decide.

    Args:
        arrived: Answers received so far; none before the first wave.
        waiting: Router score of every candidate not called yet, in the order of calling.
        method: How votes are counted, as for :func:`decided`, as are the other arguments.
        temperature: Of ``weighted``.
        options: Of ``log_odds``.
        stacked: Of ``stacked``.

    Raises:
        InputError: As ``aggregate``.
    """
    rule = _Rule(method=method, temperature=temperature, options=options, stacked=stacked)
    names = list(waiting)
    forms = _forms(arrived)
    for size in range(1, len(names)):
        called, rest = names[:size], {name: waiting[name] for name in names[size:]}
        for form in (_unused(forms), *forms):
            agreeing = [_answer(name, waiting[name], form) for name in called]
            if _decided([*arrived, *agreeing], rest, rule):
                return size
    return len(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    method: Method
    temperature: float
    options: int
    stacked: StackedVote | None

    def elects(self, answers: Sequence[CandidateAnswer]) -> str | None:
        """The form of the winning class; None when nothing can be read."""
        winner = aggregate(
            answers,
            method=self.method,
            temperature=self.temperature,
            options=self.options,
            stacked=self.stacked,
        ).winner
        return next(each.form for each in answers if each.candidate == winner)

    def counts(self, voters: Sequence[CandidateAnswer], possible: int) -> dict[str, float]:
        """What each candidate's vote counts; of ``weighted`` up to a factor for silent ones."""
        counts = counted(
            voters,
            method=self.method,
            weight=Weight.ROUTER,
            temperature=self.temperature,
            possible=possible,
            stacked=self.stacked,
        )
        return {each.candidate: count for each, count in zip(voters, counts, strict=True)}

    def turnouts(self, classes: int, outstanding: int) -> Iterator[tuple[int, int, int]]:
        """C, with the minimum and maximum number of outstanding votes apart to consider for it.

        Args:
            classes: Number of distinct answers, the rival's included.
            outstanding: Number of outstanding votes.
        """
        distinct = max(self.options, classes)
        match self.method:
            case Method.MAJORITY | Method.STACKED:
                yield distinct, 0, 0
            case Method.WEIGHTED:  # votes apart change what the weights are normalised by
                yield distinct, 0, outstanding
            case Method.LOG_ODDS:  # each vote apart beyond the known makes one more possible answer
                yield distinct, 0, 0
                for possible in range(distinct + 1, classes + outstanding + 1):
                    yield possible, possible - classes, possible - classes


def _decided(
    arrived: Sequence[CandidateAnswer], outstanding: Mapping[str, float], rule: _Rule
) -> bool:
    leader = rule.elects(arrived) if arrived else None
    if not outstanding or leader is None:
        return not outstanding
    forms = _forms(arrived)
    rivals = (_unused(forms), *(form for form in forms if form != leader))
    return not any(_overtakes(rival, leader, arrived, outstanding, rule) for rival in rivals)


def _overtakes(
    rival: str,
    leader: str,
    arrived: Sequence[CandidateAnswer],
    outstanding: Mapping[str, float],
    rule: _Rule,
) -> bool:
    """Whether the rival may still win against the leader; True also beyond the enumeration limit.

    Other classes do not matter here: each is checked as a rival itself.
    """
    readable = [each for each in arrived if each.form is not None]
    voters = [*readable, *(_answer(name, score, None) for name, score in outstanding.items())]
    forms = {rival, *_forms(arrived)}
    classes, apart = len(forms), _unused(forms)
    for possible, fewest, most in rule.turnouts(classes, len(outstanding)):
        counts = rule.counts(voters, possible)
        lead = math.fsum(
            counts[each.candidate] * ((each.form == rival) - (each.form == leader))
            for each in readable
        )
        clear = _CLEAR * (1.0 + sum(map(abs, counts.values())))
        names = sorted(outstanding, key=lambda name: -abs(counts[name]))
        plans = _plans([counts[name] for name in names], lead + clear, fewest, most)
        for tried, plan in enumerate(islice(plans, _TRIED + 1)):
            answers = _answers(names, plan, outstanding, rival, leader, apart)
            if tried == _TRIED or rule.elects([*arrived, *answers]) != leader:
                return True
    return False


def _plans(
    counts: Sequence[float], lead: float, fewest: int, most: int
) -> Iterator[tuple[_Place, ...]]:
    """Placements of outstanding votes with which the rival is not behind; best for it first.

    Args:
        counts: What each vote counts, the largest in magnitude first.
        lead: The rival's votes less the leader's, before these.
        fewest: How many votes have to be apart.
        most: How many can be.
    """
    reach = [0.0, *accumulate(map(abs, counts))]

    def after(placed: int, lead: float, apart: int) -> Iterator[tuple[_Place, ...]]:
        # Votes that must be apart take no side; placing them last costs the rival least.
        free = len(counts) - max(0, fewest - apart)
        if placed > free or lead + reach[free] - reach[placed] < 0.0:
            return
        if placed == len(counts):
            yield ()
            return
        count = counts[placed]
        gains = {_Place.RIVAL: count, _Place.APART: 0.0, _Place.SILENT: 0.0, _Place.LEADER: -count}
        for place in sorted(gains, key=lambda place: -gains[place]):
            alone = apart + (place is _Place.APART)
            if alone <= most:
                for rest in after(placed + 1, lead + gains[place], alone):
                    yield (place, *rest)

    yield from after(0, lead, 0)


def _answers(
    names: Sequence[str],
    plan: Sequence[_Place],
    scores: Mapping[str, float],
    rival: str,
    leader: str,
    apart: str,
) -> Iterator[CandidateAnswer]:
    for name, place in zip(names, plan, strict=True):
        match place:
            case _Place.RIVAL:
                yield _answer(name, scores[name], rival)
            case _Place.LEADER:
                yield _answer(name, scores[name], leader)
            case _Place.APART:
                yield _answer(name, scores[name], apart + name)
            case _Place.SILENT:
                pass


def _forms(answers: Sequence[CandidateAnswer]) -> list[str]:
    return sorted({each.form for each in answers if each.form is not None})


def _unused(forms: Iterable[str]) -> str:
    """A form after all of these in the alphabet, and so are those that begin with it."""
    return max(forms, default="") + "'"


def _answer(name: str, score: float, form: str | None) -> CandidateAnswer:
    return CandidateAnswer(candidate=name, text="", form=form, score=score)
