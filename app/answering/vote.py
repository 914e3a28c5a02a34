"""The vote of one request: early stopping and election. Paper, Sec. 3.3.

Answers that are compared two by two have classes along the router scores: an answer joins that of
the first better-scored one that it equals. So the classes of the best-scored answers do not depend
on those that are outstanding, and such a vote ends early once no better-scored answer is, or once
most candidates have given one text.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from app.answering.answer_forms import AnswerReader
from app.answering.fan_out import FanOutResult
from app.errors import NotReady
from app.judging.evaluator import Ratings
from app.settings import Aggregation
from app.upstream.reply import Reply
from racer_core.aggregation import early
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.leaders import led_forms
from racer_core.aggregation.rule import Compared
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, Weight, aggregate
from racer_core.types import Aggregate, CandidateAnswer

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class Vote:
    """The rule of one request's vote.

    Attributes:
        rule: The configured aggregation.
        kind: The equality of answers to this request.
        reader: Reads what answers are compared by.
        question: The text of the request.
        stacked: The fitted weights, for the method of that name.
        scores: Router score of every candidate that may be called.
        members: The set, about whose answers the certificate is.
        deadline: A ``time.monotonic()``; an answer that is not read by then does not vote.
        waits_for_all: Collect all answers, even after the vote is decided.
        compared: What the answers that arrived are compared by, where that is not a form.
    """

    rule: Aggregation
    kind: Equality
    reader: AnswerReader
    stacked: StackedVote | None
    scores: Mapping[str, float]
    members: Collection[str]
    deadline: float
    question: str = ""
    waits_for_all: bool = False
    compared: dict[str, Compared] = field(default_factory=dict[str, Compared])

    @property
    def stops_early(self) -> bool:
        """Whether some of the answers may decide the vote: an evaluator weighs all answers."""
        return self.rule.weight is Weight.ROUTER

    async def read(self, reply: Reply) -> str | None:
        """The normal form of a reply; None where it does not vote.

        Where answers are compared two by two, it is the candidate, by which its answer is found.
        """
        if self.kind.is_pairwise:
            return await self._compared(reply)
        if not self.reader.waits(self.kind, reply.choices):
            return self.reader.form_at_once(self.kind, reply.choices)
        return await self._in_time(self.reader.form(self.kind, reply.choices))

    async def _compared(self, reply: Reply) -> str | None:
        """The candidate, by which its answer is found; with a fault it does not vote."""
        name = reply.candidate
        try:
            found = await self._in_time(self.reader.compared(self.kind, reply, self.question))
        except NotReady:
            self.lose(name)
            return None
        except Exception as exc:  # noqa: BLE001 - is no client's error: the others vote
            log.warning("the answer of %s cannot be compared: %s", name, exc)
            self.lose(name)
            return None
        if found is None:
            return None
        self.compared[name] = found
        return name

    def lose(self, candidate: str) -> None:
        """Take note of an answer that cannot be compared for a fault of ours."""

    def decided(self, results: FanOutResult, out: Sequence[str]) -> bool:
        """Whether no outstanding answer is needed.

        Failed members of the set count as outstanding: together with the others they might have
        changed the result, and then the remaining answers are worth waiting for.
        """
        failed = [name for name in results.failures if name in self.members]
        return (
            not self.waits_for_all
            and bool(out)
            and self._decided(self.votes(results), [*out, *failed])
        )

    def settled(self, results: FanOutResult) -> bool:
        """Whether the set's answers decide its vote, whatever failed members would answer."""
        silent = [name for name in self.members if name not in results.replies]
        return not silent or self._decided(self.votes(results, self.members), silent)

    def _decided(self, votes: Sequence[CandidateAnswer], out: Collection[str]) -> bool:
        if not self.stops_early:
            return False
        if self.kind.is_pairwise and self._can_lead(out, votes):
            return self._has_majority(votes, len(out))
        return early.decided(votes, self._scores_of(out), **self._parameters())

    def _can_lead(self, out: Collection[str], votes: Sequence[CandidateAnswer]) -> bool:
        """Whether an outstanding answer may come before one that arrived, and change its class."""
        readable = (vote.candidate for vote in votes if vote.form is not None)
        last = max(map(self._place, readable), default=None)
        return last is not None and min(map(self._place, out), default=last) < last

    def _has_majority(self, votes: Sequence[CandidateAnswer], out: int) -> bool:
        """Whether more than half of all have given one text, which no other answer can divide."""
        if self.rule.method is not Method.MAJORITY:
            return False
        forms = Counter(self.compared[each.candidate].form for each in votes if each.form)
        return 2 * max(forms.values(), default=0) > forms.total() + out

    def _place(self, name: str) -> tuple[float, str]:
        """Where a candidate stands in the order along which classes form."""
        return -self.scores.get(name, 0.0), name

    def wave(self, results: FanOutResult, left: Sequence[str]) -> Sequence[str]:
        """The candidates of ``left`` to call now."""
        if self.waits_for_all or not self.stops_early or self.rule.waves == "all":
            return left
        votes, scores = self.votes(results), self._scores_of(left)
        return left[: early.first_wave(votes, scores, **self._parameters())]

    @property
    def hurry_s(self) -> float | None:
        """Seconds until :meth:`hurry`; None: never."""
        return None

    def hurry(self) -> Sequence[str]:
        """Further candidates to call, beside those that are under way."""
        return ()

    def at_once(self) -> Vote:
        """The vote of the same request where its calls have no rounds."""
        return self

    @property
    def is_rated(self) -> bool:
        """Whether evaluators weigh the answers, where some are configured."""
        return True

    def votes(
        self,
        results: FanOutResult,
        among: Collection[str] | None = None,
        weights: Mapping[str, float | None] | None = None,
    ) -> list[CandidateAnswer]:
        """The answers that arrived, or those of some candidates, as votes."""
        names = [name for name in results.replies if among is None or name in among]
        forms = self.forms(results, names)
        return [
            CandidateAnswer(
                candidate=name,
                text=results.replies[name].text,
                form=forms.get(name),
                score=self.scores.get(name, 0.0),
                weight=(weights or {}).get(name),
            )
            for name in names
        ]

    def forms(self, results: FanOutResult, among: Collection[str]) -> dict[str, str | None]:
        """The form of each answer of some candidates, the same for answers that count as one."""
        forms = {name: results.forms.get(name) for name in sorted(among, key=self._place)}
        if not self.kind.is_pairwise:
            return forms
        return led_forms(forms, self._are_equal)

    def _are_equal(self, one: str, other: str) -> bool:
        return self.reader.is_same(self.compared[one], self.compared[other])

    def elect(
        self,
        results: FanOutResult,
        among: Collection[str],
        ratings: Ratings,
    ) -> Aggregate:
        """The result of the vote among these candidates."""
        answers = self.votes(results, among, ratings.weights)
        return aggregate(answers, weight=self.rule.weight, **self._parameters())

    async def _in_time(self, reading: Awaitable[T]) -> T | None:
        """The result of ``reading``; None if it is not ready by the deadline."""
        try:
            async with asyncio.timeout(self.deadline - time.monotonic()):
                return await reading
        except TimeoutError:
            return None

    def _scores_of(self, names: Collection[str]) -> dict[str, float]:
        return {name: self.scores.get(name, 0.0) for name in names}

    def _parameters(self) -> dict[str, Any]:
        return {
            "method": self.rule.method,
            "temperature": self.rule.temperature,
            "options": self.rule.options,
            "stacked": self.stacked,
        }
