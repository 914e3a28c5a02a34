"""The merge, the third stage: one answer from the answers of the set. Paper, Sec. 3.3."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from app.answering.fan_out import FanOutResult
from app.answering.outcome import Outcome
from app.answering.request import RequestState
from app.errors import NoAnswerError, UpstreamError
from app.judging.evaluator import UNRATED, Evaluator
from app.telemetry.tracing import Tracer

REFUSAL: Final = (
    "No model of the pool is likely to answer this correctly, so none answers. "
    "Rephrase the question, or ask for a smaller risk."
)


class Merger:
    """Rates the answers, elects one by vote, and builds the outcome."""

    def __init__(self, evaluator: Evaluator, tracer: Tracer | None) -> None:
        self._evaluator = evaluator
        self._tracer = tracer

    async def merge(self, state: RequestState, results: FanOutResult) -> Outcome:
        """Merge the answers of a request; an empty set is answered with a refusal.

        Raises:
            UpstreamError: No candidate of the set answered.
        """
        if not state.selected:
            refusal = state.request.api_format.refusal(state.decision_id, REFUSAL)
            return Outcome.of(
                state, results, answer=refusal, overhead_ms=_overhead_ms(state, results)
            )
        if not results.replies:
            raise no_answer(results.failures, state.called)
        if self._tracer is None:
            return await self._elected(state, results)
        with self._tracer.aggregate(len(results.replies)):
            return await self._elected(state, results)

    async def _elected(self, state: RequestState, results: FanOutResult) -> Outcome:
        voters = _voters(results)
        ratings = UNRATED
        if state.vote.is_rated and self._evaluator.is_configured:
            ratings = await self._evaluator.rate(
                state.request.query.text,
                {name: results.replies[name].answer or "" for name in voters},
                state.routed.group,
                state.vote.forms(results, voters),
                deadline=state.deadline,
                caller=state.request.caller.name,
                left=state.meter and state.meter.left,
            )
        merged = state.vote.elect(results, voters, ratings)
        return Outcome.of(
            state,
            results,
            answer=results.replies[merged.winner].body,
            ratings=ratings,
            merged=merged,
            overhead_ms=_overhead_ms(state, results, ratings.seconds),
        )


def _overhead_ms(state: RequestState, results: FanOutResult, rating_s: float = 0.0) -> float:
    """The gateway's own time: without the calls to candidates and evaluators."""
    return (time.monotonic() - state.started - results.seconds - rating_s) * 1e3


def _voters(results: FanOutResult) -> list[str]:
    """The candidates with the best kind of answer: a blank is no vote beside a text."""
    kinds = {name: reply.kind for name, reply in results.replies.items()}
    best = max(kinds.values(), default=None)
    return [name for name, kind in kinds.items() if kind is best]


def no_answer(
    failures: Mapping[str, UpstreamError], best_first: Sequence[str] = ()
) -> UpstreamError:
    """The common failure when all failed alike, so that the status says what a retry can do.

    Args:
        failures: By candidate; the words are those of the best one.
        best_first: The candidates in the order of their ranks.
    """
    ranked = [name for name in best_first if name in failures]
    failures = {name: failures[name] for name in ranked} | dict(failures)
    causes = ", ".join(f"{name} ({exc.kind})" for name, exc in failures.items())
    message = f"no selected candidate answered: {causes}"
    lasting = all(exc.lasting for exc in failures.values())
    first = next(iter(failures.values()))
    if {exc.kind for exc in failures.values()} == {first.kind}:
        return first.of_all(message, failures.values())
    return NoAnswerError(message, lasting=lasting)
