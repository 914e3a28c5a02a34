"""Shadow calls: background calls that complete the answers to sampled decisions.

A client waits for its own set alone. Afterwards the other candidates of the pool are called here,
a few decisions at a time, and the answers are stored. What cannot be called stays a sampled
decision without a label: the sample never depends on what could be answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from app.answering.answer_forms import AnswerReader
from app.answering.cost_meter import CostMeter, Costs
from app.answering.evidence import EvidenceChecks
from app.answering.request import InferenceRequest
from app.concurrency.background_queue import BackgroundQueue
from app.concurrency.memory_budget import MemoryBudget
from app.errors import NotReady, Overloaded, StoreError, UpstreamError
from app.json_output import dump_json
from app.monitoring.monitor import Monitor
from app.monitoring.samples.record import Sample, SampledExchange
from app.settings import Settings
from app.upstream.fleet import Fleet
from app.upstream.reply import Reply
from app.wire.candidate_payload import candidate_payload
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.rule import Compared
from racer_core.sequential.verdicts import NO_VERDICT

log = logging.getLogger(__name__)

CONCURRENCY: Final = 4  # decisions whose candidates are called at the same time
MAX_WAITING: Final = 1_000  # decisions
MAX_WAITING_BYTES: Final = 64 * 2**20  # of their requests

OnAnswers = Callable[[str, str | None, SampledExchange], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowCall:
    """A sampled decision whose other candidates are to be called.

    Attributes:
        decision_id: The decision.
        request: Its request.
        pool: The candidates that the request could call.
        kind: The equality of answers to it.
        reader: Reads the normal forms of answers.
        conversation: The conversation by which it was drawn; None: by its id.
        replies: The answers that it has.
        failures: The candidates that reject the request itself; they are not called again.
        verdicts: Those of a checker that it has, on its answers.
        costs: The prices of its calls; None: they have none.
    """

    decision_id: str
    request: InferenceRequest
    pool: Sequence[str]
    kind: Equality
    reader: AnswerReader
    conversation: str | None = None
    replies: dict[str, Reply] = field(default_factory=dict[str, Reply])
    failures: dict[str, UpstreamError] = field(default_factory=dict[str, UpstreamError])
    verdicts: dict[str, int] = field(default_factory=dict[str, int])
    costs: Costs | None = None


class ShadowCalls:
    """The background queue of sampled decisions.

    Args:
        settings: The candidates and the deadline.
        fleet: Calls them.
        monitor: Stores the samples; None: no store is open, and nothing is sampled.
        evidence: Checks their answers.
        on_answers: Called with every decision whose candidates have all answered, once it is
            stored: its id, application, request and answers.
    """

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        monitor: Monitor | None,
        *,
        evidence: EvidenceChecks,
        on_answers: OnAnswers | None = None,
    ) -> None:
        self._settings = settings
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}
        self._fleet = fleet
        self._monitor = monitor
        self._evidence = evidence
        self._on_answers = on_answers
        self._queue = BackgroundQueue(
            self._complete,
            name="shadow calls",
            tasks=CONCURRENCY,
            limit=MAX_WAITING,
            memory=MemoryBudget(MAX_WAITING_BYTES, Overloaded, "too many sampled requests wait"),
        )
        self._has_store_fault = False

    def add(self, call: ShadowCall) -> None:
        """Have a decision's other candidates called. Never waits, never raises."""
        if self._monitor is None:
            return
        if not self._queue.add(call, len(dump_json(dict(call.request.fields)))):
            self._monitor.sampler.count("lost")

    async def close(self, limit_s: float) -> None:
        """Finish the calls that wait within a time limit; then store what was answered.

        Args:
            limit_s: The time limit.
        """
        await self._queue.finish(limit_s)
        for call in await self._queue.close():  # a cancelled call has stored what it has
            await self._store(call)

    async def _complete(self, call: ShadowCall) -> None:
        missing = [
            name for name in call.pool if name not in call.replies and name not in call.failures
        ]
        deadline = time.monotonic() + self._settings.limits.deadline_s
        request, costs = call.request, call.costs
        application = None if request.application is None else request.application.name
        meter = None if costs is None else costs.meter(request.fields, application)
        calls = asyncio.gather(*(self._call(call, name, deadline, meter) for name in missing))
        try:
            await calls
            await self._check(call)
        except asyncio.CancelledError:
            await self._store(call)
            raise
        finally:
            if costs is not None and meter is not None:
                costs.book_shadow(meter, application)
        await self._store(call)

    async def _call(
        self, call: ShadowCall, name: str, deadline: float, meter: CostMeter | None
    ) -> None:
        request = call.request
        try:
            reply = await self._fleet.ask(
                name,
                request.api_format,
                candidate_payload(request.fields, self._candidates[name], request.api_format.path),
                deadline=deadline,
                # To circuit breakers it is a call of the client, whose prompt may be why it fails:
                # under another name one prompt would fail for two callers, and so for all.
                caller=request.caller.name,
                session=request.session,
                meter=meter,
            )
            if meter is not None:
                meter.answered(reply)
            reply.check_not_empty()
        except UpstreamError as exc:
            call.failures[name] = exc
        except Exception:  # our own fault, but no reason to fail the other calls
            log.exception("a shadow call to %s failed unexpectedly", name)
            call.failures[name] = UpstreamError(f"{name} could not be called")
        else:
            call.replies[name] = reply

    async def _store(self, call: ShadowCall) -> None:
        """Store the sample, and pass it on if every candidate has answered. Never raises."""
        assert self._monitor is not None
        try:
            sample, wrong = await self._sample(call)
            is_stored = await self._monitor.add_sample(sample, wrong)
            self._has_store_fault = False
        except StoreError as exc:
            self._monitor.sampler.count("lost")
            if not self._has_store_fault:
                log.warning("samples are not stored, and stay without a label: %s", exc)
            self._has_store_fault = True
            return
        except Exception:
            log.exception("a sample is not stored")
            self._monitor.sampler.count("lost")
            return
        is_whole = sample.whole and is_stored
        self._monitor.sampler.count("whole" if is_whole else "incomplete")
        if is_whole and self._on_answers is not None:
            self._on_answers(call.decision_id, sample.application, self._exchange(call))

    async def _sample(self, call: ShadowCall) -> tuple[Sample, list[str]]:
        """The sample, and the candidates that are wrong without a verdict."""
        request, pool = call.request, call.pool
        rejected = {name for name, exc in call.failures.items() if exc.is_of_request}
        is_checked = self._is_checked(call)
        # An answer whose verdict is lost makes no row: rows without it would have another law.
        checked = call.verdicts if is_checked else call.replies
        unanswered = {name for name, reply in call.replies.items() if reply.answer is None}
        compared = await _compared(call)
        numbers: dict[str, int] = {}  # of forms: one label serves a class, so no likeness is enough
        classes = {
            name: numbers.setdefault(each.form, len(numbers)) for name, each in compared.items()
        }
        sample = Sample(
            decision_id=call.decision_id,
            application=None if request.application is None else request.application.name,
            later=request.query.later,
            conversation=call.conversation,
            classes={**dict.fromkeys(pool), **classes},
            verdicts=self._verdicts(call) if is_checked else {},
            equal=_equal_answers(call, compared) if self._is_pairwise else {},
            digests=request.query.conditions.digests,
            whole=all(name in checked or name in rejected for name in pool),
            exchange=self._exchange(call),
        )
        return sample, [name for name in pool if name in rejected or name in unanswered]

    @property
    def _is_pairwise(self) -> bool:
        """Whether answers to some requests are compared two by two: then rows have comparisons."""
        return self._settings.aggregation.equality.is_pairwise

    def _is_checked(self, call: ShadowCall) -> bool:
        application = None if call.request.application is None else call.request.application.name
        return self._settings.evidence_at(application) is not None

    async def _check(self, call: ShadowCall) -> None:
        """Have the answers checked that have no verdict of a round."""
        if not self._is_checked(call):
            return

        async def check(name: str) -> None:
            verdict = await self._evidence.of_row(call.request, call.replies[name])
            if verdict is not None:
                call.verdicts[name] = verdict

        missing = [name for name in call.replies if name not in call.verdicts]
        await asyncio.gather(*map(check, missing))

    @staticmethod
    def _verdicts(call: ShadowCall) -> Mapping[str, int]:
        """The verdict on each answer, and none on what is no answer."""
        return {**dict.fromkeys(call.pool, NO_VERDICT), **call.verdicts}

    @staticmethod
    def _exchange(call: ShadowCall) -> SampledExchange:
        request = call.request
        return SampledExchange(
            request=dict(request.fields),
            path=request.api_format.path,
            answers={
                name: call.replies[name].answer if name in call.replies else None
                for name in call.pool
            },
            calls={name: reply.call_record for name, reply in call.replies.items()},
        )


async def _compared(call: ShadowCall) -> dict[str, Compared]:
    """What each answer is compared by, of those that requests can read, in the order of the pool.

    Meanings without an encoder are none.
    """
    found: dict[str, Compared] = {}
    for name in call.pool:
        reply = call.replies.get(name)
        if reply is None or reply.answer is None:
            continue
        with suppress(NotReady):
            compared = await call.reader.compared(call.kind, reply, call.request.query.text)
            if compared is not None:
                found[name] = compared
    return found


def _equal_answers(
    call: ShadowCall, compared: Mapping[str, Compared]
) -> Mapping[str, Sequence[str]]:
    """The candidates before each one with an equal answer; as requests compare."""
    equal: dict[str, Sequence[str]] = {}
    for name in call.pool:
        before = [each for each in equal if {each, name} <= compared.keys()]
        equal[name] = [
            each for each in before if call.reader.is_same(compared[name], compared[each])
        ]
    return equal
