"""Sequence of calls of one request: which candidates to call next, and when to stop. Pure, no I/O.

Decides exactly as calibration does: ``Policy.vote`` and ``Policy.doubt`` are ``Policy.standing`` of
one row, in plain Python, which takes a seventh of numpy's time for one row. Calling more than the
threshold demands keeps the promise if whole rounds are called, so a failure or a deadline leads to
one last round with all candidates that are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from racer_core.aggregation.leaders import led_forms
from racer_core.errors import InputError
from racer_core.sequential.policy import Loss, Policy
from racer_core.sequential.verdicts import NO_VERDICT


class StopReason(StrEnum):
    """Why a sequence stopped."""

    CERTIFIED = "certified"  # the stopping score passed the threshold
    ALL_CALLED = "all_called"  # the order ended; its answer is the reference's
    FAILURE = "failure"  # a candidate failed: all others were called
    SLOW = "slow"  # a round took longer than usual: all others were called at once
    DEADLINE = "deadline"  # half of the time was over: all others were called at once
    NO_ANSWER = "no_answer"  # no answer so far could be returned: all others were called
    UNCHECKED = "unchecked"  # a checker's verdict was lost: all others were called
    BROKEN_OFF = "broken_off"  # the reference's stream did, within its answer: no other can follow


@dataclass(frozen=True, slots=True)
class CalledRound:
    """One round of a sequence.

    Attributes:
        called: The candidates, in the order of calls.
        doubt: q after the round; None for a last round out of turn, which needs none, and for one
            that is under way.
    """

    called: tuple[str, ...]
    doubt: float | None = None


class CallSequence:
    """The calls of one request, in rounds.

    Ask ``next_round`` for candidates, report each of them by ``add`` or ``fail``, and repeat until
    ``next_round`` is empty. Not for several threads at a time.

    Args:
        policy: For a candidate that is known to be down, that of the smaller pool.
        threshold: lambda_hat of the calibration of that policy.
        noise: Of this request, as :func:`racer_core.sequential.critical.tie_noise` draws it.
        equals: Whether two forms are equal, as in the rows; None: if they are the same.
    """

    def __init__(
        self,
        policy: Policy,
        threshold: float,
        noise: float = 0.0,
        *,
        equals: Callable[[str, str], bool] | None = None,
    ) -> None:
        self.policy = policy
        self.stopped: StopReason | None = None
        self.called: list[CalledRound] = []
        self._last: StopReason | None = None  # why the last round is called
        self._threshold = threshold
        self._noise = noise
        self._equals = equals
        self._highest = -math.inf  # the running maximum of -q
        self.outstanding: tuple[str, ...] = ()  # called, without a report
        self.answers: dict[str, str | None] = {}  # the normal form of each
        self.verdicts: dict[str, int] = {}
        self.failed: set[str] = set()
        self.unchecked: set[str] = set()  # whose verdicts are lost
        self._elected: str | None = None

    def add(self, candidate: str, form: str | None, verdict: int | None = NO_VERDICT) -> None:
        """Report an answer.

        Args:
            candidate: Called and not reported yet.
            form: Its normal form; None: it cannot be read, was cut off, or the request itself
                caused the failure (a filter, its length). Rows must record these cases alike.
            verdict: The checker's verdict on it; None: it is lost, and any may have been given.
        """
        self._report(candidate)
        self.answers[candidate] = form
        self.verdicts[candidate] = NO_VERDICT if verdict is None else verdict
        if verdict is None:
            self.unchecked.add(candidate)

    def fail(self, candidate: str) -> None:
        """Report a failure whose cause lies outside the request; the last round follows."""
        self._report(candidate)
        self.failed.add(candidate)

    def next_round(self) -> tuple[str, ...]:
        """The candidates to call now; empty when the sequence has stopped.

        Raises:
            InputError: A called candidate has not been reported.
        """
        if self.outstanding:
            raise InputError(f"report the answers of {list(self.outstanding)} first")
        if self.stopped is not None:
            return ()
        if self.failed and self._last is None:
            self._last = StopReason.FAILURE
        if self._last is not None:
            return self._call(self._left()) if self._left() else self._stop(self._last)
        if self.rounds and (reason := self._judge()):
            return self._stop(reason)
        called = self.policy.borders[self.rounds - 1] if self.rounds else 0
        return self._call(self.policy.order[called : self.policy.borders[self.rounds]])

    def call_rest(self, reason: StopReason = StopReason.DEADLINE) -> tuple[str, ...]:
        """Further candidates to call at once; where there are any, no other round follows.

        Answers that are outstanding are still awaited.

        Args:
            reason: Why no round is awaited.
        """
        if self.stopped is not None or not (left := self._left()):
            return ()
        self._last = reason
        return self._call(left)

    def settle(self, reason: StopReason | None = None) -> None:
        """Stop without the answers that are outstanding, where no round can follow.

        Only if none of them can change the answer that is returned, or none is returned.

        Args:
            reason: Why; None: the last round was called.
        """
        self.stopped = reason or self._last or StopReason.ALL_CALLED
        self.outstanding = ()

    @property
    def rounds(self) -> int:
        """The number of rounds that were begun."""
        return len(self.called)

    @property
    def winner(self) -> str | None:
        """The candidate whose answer is returned; None while no candidate has answered."""
        if self._elected is None and self.answers:
            if self.policy.reference in self.answers:
                return self.policy.reference
            return self.policy.vote(self.forms, self.verdicts)
        return self._elected

    def elected(self, among: Collection[str]) -> str:
        """The candidate whose answer is returned, of those with one, at least one."""
        winner = self.winner
        if winner is None or winner not in among:
            return self.policy.vote(self._led_forms(among), self.verdicts)
        return winner

    @property
    def is_all_called(self) -> bool:
        """Whether no round can follow: the reference, or everyone, was called."""
        return not self._left()

    @property
    def forms(self) -> dict[str, str | None]:
        """The form of each answer, in the order of calls; the same where answers count as one."""
        return self._led_forms(self.answers)

    @property
    def votes(self) -> dict[str, float]:
        """The sum of the votes of every answer that can be read."""
        return self.policy.strengths(self.forms, self.verdicts)

    @property
    def is_decided(self) -> bool:
        """Whether what failed, is outstanding or lost its verdict cannot change the outcome.

        That is the answer or, where misses are the loss, that every candidate has answered.
        """
        if self.policy.loss is Loss.MISSES:
            return not (self.failed or self.outstanding)
        if self.has_reference and self.policy.reference is not None:
            return self.policy.reference in self.answers
        if self.winner is None or self._equals is not None:  # further answers may join classes
            return False
        silent = {*self.failed, *self.outstanding, *self.unchecked}
        forms = {name: form for name, form in self.answers.items() if name not in silent}
        alike = [name for name, form in forms.items() if form == self.answers[self.winner]]
        if not alike:
            return False
        return self.policy.is_decided(forms, alike[0], silent, self.verdicts)

    @property
    def has_reference(self) -> bool:
        """False if the named reference failed: the full vote of the others certifies nothing."""
        return self.policy.reference not in self.failed

    def _judge(self) -> StopReason | None:
        """Whether to stop after a completed round."""
        is_last = self.rounds == len(self.policy.borders)
        if is_last and self.policy.reference is not None:
            winner, doubt = self.policy.reference, 0.0
        else:
            called = self.policy.order[: self.policy.borders[self.rounds - 1]]
            forms = self._led_forms(called)
            winner = self.policy.vote(forms, self.verdicts)
            doubt = self.policy.doubt(forms, winner, self.verdicts)
        self.called[-1] = replace(self.called[-1], doubt=doubt)
        self._highest = max(self._highest, -doubt)
        is_certain = self._highest + self._noise > self._threshold
        if not (is_last or is_certain):
            return None
        self._elected = winner
        return StopReason.ALL_CALLED if is_last else StopReason.CERTIFIED

    def _led_forms(self, candidates: Collection[str]) -> dict[str, str | None]:
        """The forms of their answers in the order of calls, equal where answers count as one."""
        names = dict.fromkeys((*self.policy.order, *self.policy.pool))
        forms = {name: self.answers.get(name) for name in names if name in candidates}
        return forms if self._equals is None else led_forms(forms, self._equals)

    def _left(self) -> tuple[str, ...]:
        """What a last round calls: the reference, else all that have not been called."""
        reference = self.policy.reference
        if reference is not None and reference not in self.failed:
            left: tuple[str, ...] = (reference,)
        else:
            left = (*self.policy.order, *self.policy.pool)
        called = {*self.answers, *self.failed, *self.outstanding}
        return tuple(name for name in dict.fromkeys(left) if name not in called)

    def _call(self, candidates: tuple[str, ...]) -> tuple[str, ...]:
        if candidates:
            self.called.append(CalledRound(candidates))
            self.outstanding += candidates
        return candidates

    def _stop(self, reason: StopReason) -> tuple[str, ...]:
        self.stopped = reason
        return ()

    def _report(self, candidate: str) -> None:
        if candidate not in self.outstanding:
            raise InputError(f"{candidate[:80]!r} is not called, or was reported already")
        self.outstanding = tuple(name for name in self.outstanding if name != candidate)
