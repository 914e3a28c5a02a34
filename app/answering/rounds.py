"""Calls in rounds under the promise `same_answer`: when to call more, and which answer wins.

The calls of a request are those of a :class:`racer_core.sequential.serving.CallSequence`, which
decides as calibration did. Calling more than it demands keeps the promise. So all remaining
candidates are called at once when a round takes twice the usual time of its candidates, and at
least ``LEAST_S``. One in fifty answers of a candidate takes longer than usual, and few of them
twice as long, so this seldom costs calls. Late answers that arrive teach what is usual; a call that
is cancelled teaches nothing, for a candidate that hangs would soon look usual. While the usual time
is not known, half of the time to the deadline is the limit. Answers of slow candidates that can no
longer change the vote are not awaited. The time of checks makes no round slow. When a verdict is
lost, all remaining candidates are called, because the verdict that a row would have is not known.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from app.answering.fan_out import FanOutResult
from app.answering.vote import Vote
from app.judging.evaluator import Ratings
from app.routing.decision import CertifiedDecision, MadeCalls
from app.routing.premises import failure_reasons
from app.routing.reasons import Reason
from app.routing.rounds_plan import RoundsPlan
from app.upstream.reply import Reply
from racer_core.aggregation.rule import Compared
from racer_core.sequential.serving import StopReason
from racer_core.sequential.verdicts import NO_VERDICT
from racer_core.types import Aggregate

log = logging.getLogger(__name__)

KEPT: Final = 100  # latest answers of each candidate, which say what is usual
HURRY_SHARE: Final = 0.5  # of the time to the deadline
SLOW: Final = 2.0  # times the usual latency
LEAST_S: Final = 0.5  # a round is never slow before: clients would gain little


class Rounds:
    """The calls of one request.

    Args:
        plan: The rules of its calls.
        decision_id: The id of its decision, which breaks ties.
        is_same: Whether two answers are equal that are compared two by two, whose forms are then
            their candidates; None: answers of the same form are equal.
        compared: What such answers are compared by, as they arrive.
    """

    def __init__(
        self,
        plan: RoundsPlan,
        decision_id: str,
        *,
        is_same: Callable[[Compared, Compared], bool] | None = None,
        compared: Mapping[str, Compared] | None = None,
    ) -> None:
        self._plan = plan
        self._compared: Mapping[str, Compared] = {} if compared is None else compared
        equals = None if is_same is None else partial(self._are_equal, is_same)
        self._sequence = plan.sequence(decision_id, equals=equals)
        self.policy = plan.calibration.policy
        self._has_answer = False  # that can be returned
        self.arrived: set[str] = set()  # whose answers are here, if not checked yet
        self.verdicts: dict[str, int] = {}  # of the checker, on the answers that arrived
        self._unchecked: set[str] = set()  # whose verdicts are lost
        self.unread: set[str] = set()  # whose answers could not be read, or not by the deadline
        self.next: tuple[str, ...] = ()
        self._is_hurried = False  # answers that cannot change the vote are not awaited
        self.began_at = 0.0  # the round: a ``time.monotonic()``
        self.alone: str | None = None  # the round that begins: one whose answer is returned
        self._begin()

    def report(self, results: FanOutResult) -> None:
        """Take the results that arrived, and begin the next round where one is complete."""
        self._take(results)
        if not self.is_over and self._needs_no_more:
            self._sequence.settle()
        if self.is_over:
            self._begin()

    def break_off(self, results: FanOutResult) -> None:
        """Take the failure of a stream that was passed through: nothing can follow."""
        self._take(results)
        self._sequence.settle(StopReason.BROKEN_OFF)

    def _take(self, results: FanOutResult) -> None:
        for name in self._sequence.outstanding:
            if name in results.replies and name not in self.unread:
                is_answer = results.replies[name].answer is not None
                self._has_answer |= is_answer
                self._add(name, results.forms.get(name) if is_answer else None)
            elif name in results.failures and results.failures[name].is_of_request:
                self._add(name, None)  # rows record it as an unreadable answer
            elif results.has(name):
                self._sequence.fail(name)

    def call_rest(self, reason: StopReason) -> tuple[str, ...]:
        """Make one round of what is under way and of all that are left, which it returns."""
        self._is_hurried = True
        self.next = self._sequence.call_rest(reason)
        return self.next

    def check(self, name: str, verdict: int | None) -> None:
        """Take the checker's verdict on an answer that arrives; None: it is lost."""
        if verdict is None:
            self._unchecked.add(name)
        else:
            self.verdicts[name] = verdict

    @property
    def awaited(self) -> set[str]:
        """The candidates whose answers are not here; without checks that are under way."""
        return set(self._sequence.outstanding) - self.arrived

    @property
    def is_checked(self) -> bool:
        """Whether verdicts of a checker are evidence."""
        return self.policy.checker is not None

    @property
    def is_over(self) -> bool:
        """Whether no call is under way and none follows."""
        return not self._sequence.outstanding

    @property
    def votes(self) -> dict[str, float]:
        """The weight of every answer that can be read."""
        return self._sequence.votes

    def winner(self, among: Collection[str]) -> str:
        """The candidate whose answer is returned, of those with one."""
        return self._sequence.elected(among)

    def reasons(self, results: FanOutResult) -> tuple[str, ...]:
        """What the answers do to the certificate."""
        failed, sequence = sorted(self._sequence.failed), self._sequence
        if not results.replies:  # nothing is returned
            return failure_reasons(failed, is_outvoted=False)
        if not sequence.has_reference or sequence.winner not in results.replies:
            return (Reason.REFERENCE_UNAVAILABLE, *failure_reasons(failed, is_outvoted=False))
        reasons = failure_reasons(failed, is_outvoted=self.is_settled)
        if sequence.unchecked and not sequence.is_decided:
            return (Reason.EVIDENCE_UNAVAILABLE, *reasons)
        return reasons

    @property
    def is_settled(self) -> bool:
        """Whether candidates that failed could not have changed the answer."""
        if not self._sequence.failed or self.policy.reference is not None:
            return self._sequence.has_reference  # the reference is called, its answer returned
        return self._sequence.is_decided

    @property
    def _needs_no_more(self) -> bool:
        """Whether answers that are outstanding are not awaited."""
        return self._is_hurried and self._sequence.is_all_called and self._sequence.is_decided

    @property
    def made(self) -> MadeCalls:
        """The calls so far."""
        sequence, forms = self._sequence, self._sequence.forms
        called = [name for each in sequence.called for name in each.called]
        readable = [forms[name] for name in called if forms.get(name) is not None]
        numbers = {form: number for number, form in enumerate(dict.fromkeys(readable))}
        return MadeCalls(
            rounds=tuple(sequence.called),
            stopped=sequence.stopped,
            classes={name: numbers.get(forms[name]) for name in called if name in forms},
            failed=tuple(name for name in called if name in sequence.failed),
            verdicts={name: self.verdicts[name] for name in called if name in self.verdicts},
            price_share=self._plan.price_share(called),
        )

    def ended(self, routed: CertifiedDecision) -> CertifiedDecision:
        """The decision with the calls that were made."""
        promised, decision, made = routed.certificate.same_answer, routed.decision, self.made
        assert promised is not None
        scores = dict(zip(decision.selected, decision.scores, strict=True))
        names = made.names
        return replace(
            routed,
            decision=replace(
                decision, selected=names, scores=tuple(scores[name] for name in names)
            ),
            chosen=names,
            certificate=replace(routed.certificate, same_answer=replace(promised, made=made)),
        )

    def _begin(self) -> None:
        """Begin the next round; one of all that are left where nothing can be returned yet."""
        self.next, self.began_at = (), time.monotonic()
        sequence = self._sequence
        if sequence.answers and not self._has_answer and not sequence.failed:
            self.next = sequence.call_rest(StopReason.NO_ANSWER)
        elif sequence.unchecked and not sequence.failed:
            self.next = sequence.call_rest(StopReason.UNCHECKED)
        if not self.next:
            self.next = sequence.next_round()
        reference = self.policy.reference
        self.alone = reference if self.next == (reference,) else None

    def _are_equal(
        self, is_same: Callable[[Compared, Compared], bool], one: str, other: str
    ) -> bool:
        return is_same(self._compared[one], self._compared[other])

    def _add(self, name: str, form: str | None) -> None:
        verdict = None if name in self._unchecked else self.verdicts.get(name, NO_VERDICT)
        self._sequence.add(name, form, verdict)


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class RoundsVote(Vote):
    """The vote of a request that is answered in rounds.

    Attributes:
        rounds: The state of its calls.
        hurries_at: A ``time.monotonic()``; from then on no round waits for another.
        latencies: The usual latencies of candidates.
        application: That of the request.
        plain: The vote of the same request where its calls have no rounds.
        leaves_reference: The calls end before a round of the named reference alone, whose answer
            is returned whatever it is: it is passed through as a stream.
    """

    rounds: Rounds
    hurries_at: float
    latencies: UsualLatencies
    application: str | None
    plain: Vote
    leaves_reference: bool = False

    @classmethod
    def of(
        cls,
        vote: Vote,
        rounds: Rounds,
        *,
        latencies: UsualLatencies,
        application: str | None = None,
    ) -> Self:
        """The vote of a request that would be answered at once."""
        now = time.monotonic()
        return cls(
            rule=vote.rule,
            kind=vote.kind,
            reader=vote.reader,
            stacked=None,
            scores=vote.scores,
            members=vote.members,
            deadline=vote.deadline,
            question=vote.question,
            compared=vote.compared,
            rounds=rounds,
            hurries_at=now + HURRY_SHARE * (vote.deadline - now),
            latencies=latencies,
            application=application,
            plain=vote,
        )

    def at_once(self) -> Vote:
        """The vote of the same request where its calls have no rounds."""
        return self.plain

    async def read(self, reply: Reply) -> str | None:
        """The normal form of a reply; one that is not read by the deadline counts as a failure."""
        form = await Vote.read(self, reply)
        if form is None and time.monotonic() >= self.deadline:
            self.rounds.unread.add(reply.candidate)
        return form

    def lose(self, candidate: str) -> None:
        """It counts as a failure: all that are left are called."""
        self.rounds.unread.add(candidate)

    @property
    def is_rated(self) -> bool:
        """No evaluator weighs the answers: calibration knows none."""
        return False

    @property
    def hurry_s(self) -> float | None:
        """Seconds until what is left is called without waiting for a round."""
        return max(0.0, min(self.hurries_at, self._slow_at) - time.monotonic())

    def hurry(self) -> Sequence[str]:
        """The candidates that join the round that is under way: all that are left."""
        is_late = time.monotonic() >= self.hurries_at
        return self.rounds.call_rest(StopReason.DEADLINE if is_late else StopReason.SLOW)

    @property
    def _slow_at(self) -> float:
        """When the round is slow; infinite where a candidate's latency is not known."""
        if not self.rounds.awaited:
            return math.inf
        names, usual_s = self.rounds.next, self.latencies.usual_s
        usual = [usual_s(self.application, name) or math.inf for name in names]
        return self.rounds.began_at + max(LEAST_S, SLOW * max(usual, default=math.inf))

    def decided(self, results: FanOutResult, out: Sequence[str]) -> bool:
        """Whether the calls are over: the round is complete, and no other one follows."""
        self.rounds.report(results)
        return self.rounds.is_over or (self.leaves_reference and self.rounds.alone is not None)

    def settled(self, results: FanOutResult) -> bool:
        """Whether candidates that failed could not have changed the answer."""
        return self.rounds.is_settled

    def wave(self, results: FanOutResult, left: Sequence[str]) -> Sequence[str]:
        """The candidates of the round that begins."""
        return self.rounds.next

    def elect(
        self,
        results: FanOutResult,
        among: Collection[str],
        ratings: Ratings,
    ) -> Aggregate:
        """The answer that the sequence returns."""
        winner = self.rounds.winner(results.replies)
        return Aggregate(winner=winner, text=results.replies[winner].text, votes=self.rounds.votes)


class UsualLatencies:
    """The durations of the last ``KEPT`` answers of each candidate to each application.

    Has no clock. Applications differ in the length of answers. Three late answers that arrive make
    an overload usual; calls that hang, and are cancelled, count for nothing.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str | None, str], deque[float]] = {}

    def record(self, application: str | None, candidate: str, seconds: float) -> None:
        """Note an answer that arrived."""
        kept = self._seconds.setdefault((application, candidate), deque(maxlen=KEPT))
        kept.append(seconds)

    def usual_s(self, application: str | None, candidate: str) -> float | None:
        """Seconds that all answers but the slowest one in fifty took; None: too few are known."""
        found = self._seconds.get((application, candidate), ())
        return sorted(found)[-1 - KEPT // 50] if len(found) == KEPT else None
