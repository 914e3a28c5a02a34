"""The vote of one request: early stopping, clustering, election. Paper, Sec. 3.3."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from app.answering.answer_forms import AnswerReader
from app.answering.fan_out import FanOutResult
from app.judging.evaluator import Ratings
from app.settings import Aggregation
from app.upstream.reply import Reply
from racer_core.aggregation import early
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Weight, aggregate
from racer_core.types import Aggregate, CandidateAnswer

T = TypeVar("T")


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class Vote:
    """The rule of one request's vote.

    Attributes:
        rule: The configured aggregation.
        kind: The equality of answers to this request.
        reader: Reads the normal forms of answers.
        stacked: The fitted weights, for the method of that name.
        scores: Router score of every candidate that may be called.
        members: The set, about whose answers the certificate is.
        deadline: A ``time.monotonic()``; an answer that is not read by then does not vote.
        waits_for_all: Collect all answers, even after the vote is decided.
    """

    rule: Aggregation
    kind: Equality
    reader: AnswerReader
    stacked: StackedVote | None
    scores: Mapping[str, float]
    members: Collection[str]
    deadline: float
    waits_for_all: bool = False

    @property
    def stops_early(self) -> bool:
        """Whether some of the answers may decide the vote.

        An evaluator weighs after all answers arrived, and clusters need all answers.
        """
        return self.rule.weight is Weight.ROUTER and self.kind is not Equality.SEMANTIC

    async def read(self, reply: Reply) -> str | None:
        """The normal form of a reply; None where it does not vote."""
        if not self.reader.waits(self.kind, reply.choices):
            return self.reader.form_at_once(self.kind, reply.choices)
        return await self._in_time(self.reader.form(self.kind, reply.choices))

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
        return early.decided(votes, self._scores_of(out), **self._parameters())

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
        return [
            CandidateAnswer(
                candidate=name,
                text=reply.text,
                form=results.forms.get(name),
                score=self.scores.get(name, 0.0),
                weight=(weights or {}).get(name),
            )
            for name, reply in results.replies.items()
            if among is None or name in among
        ]

    async def cluster(self, results: FanOutResult, among: Collection[str]) -> frozenset[str]:
        """Set the forms of open texts to their clusters; returns the medoids."""
        if self.kind is not Equality.SEMANTIC:
            return frozenset()
        texts = {
            name: results.replies[name].text
            for name in among
            if results.forms.get(name) is None and _has_text(results.replies[name])
        }
        if not texts:
            return frozenset()
        clusters = await self._in_time(self.reader.semantic(texts, self._scores_of(texts)))
        if clusters is None:
            return frozenset()
        forms, medoids = clusters
        results.forms.update(forms)
        return medoids

    def elect(
        self,
        results: FanOutResult,
        among: Collection[str],
        ratings: Ratings,
        medoids: frozenset[str],
    ) -> Aggregate:
        """The result of the vote among these candidates."""
        answers = self.votes(results, among, ratings.weights)
        return aggregate(answers, weight=self.rule.weight, preferred=medoids, **self._parameters())

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


def _has_text(reply: Reply) -> bool:
    return not reply.best_choice.refused and bool(reply.text.strip())
