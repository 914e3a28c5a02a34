"""Evidence: the verdicts of checkers on single answers, under the promise `same_answer`.

One answer is checked at a time, with its request alone: a check that saw other answers would
say something else in a round than on a sampled request, where all candidates answered. A check
that fails or times out gives the verdict "none", on rows and requests alike: the time of a check
starts when it has a place, and a caller that leaves does not end it. A verdict that the gateway
itself lost is missing: the row is lost, or the request calls all candidates.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol, Self, cast

from prometheus_client import Counter

from app.answering.request import InferenceRequest
from app.errors import CheckerUnavailable, SettingsError, UpstreamError, UpstreamOverloaded
from app.judging.checker_calls import (
    CheckerCall,
    CheckerCode,
    FailureWarnings,
    FunctionChecker,
    UrlChecker,
)
from app.judging.rater import Rater
from app.monitoring.samples.checker import checker_document
from app.settings import EvaluatorModel, Evidence, Secrets, Settings
from app.settings.same_answer import judge_name
from app.upstream.fleet import Fleet
from app.upstream.reply import Reply
from racer_core.aggregation.vote import Weight
from racer_core.errors import install_hint
from racer_core.numbers import number_within
from racer_core.sequential.verdicts import NO_VERDICT, verdict_of

log = logging.getLogger(__name__)

SCHEMA_CHECK: Final = "app.tools.labelling.schema_check:check"
SCHEMA_CURE: Final = install_hint("label")
ROW_PLACES: Final = 2  # checks of sampled answers at once, beside those of requests


class AnswerCheck(Protocol):
    """Says how likely one answer is right; has a time limit of its own."""

    async def score(self, request: InferenceRequest, reply: Reply) -> float | None:
        """From 0 to 1; None: it cannot say. Raises UpstreamError.

        :class:`CheckerUnavailable` and the kind of :class:`UpstreamOverloaded` say that the gateway
        could not call it.
        """
        ...


class DocumentCheck:
    """Asks a URL or a function, by the documents of `applications.NAME.checker`."""

    def __init__(self, call: CheckerCall, schema: object = None) -> None:
        self._call = call
        self._schema = {} if schema is None else {"schema": schema}

    async def score(self, request: InferenceRequest, reply: Reply) -> float | None:
        """See :class:`AnswerCheck`."""
        name = reply.candidate
        answers, calls = {name: reply.answer}, {name: reply.call_record}
        application = None if request.application is None else request.application.name
        data, _ = checker_document("", application, request.fields, answers, calls, **self._schema)
        document = await self._call.check(data)
        return _score(document.get("correct"), name)


class JudgeCheck:
    """Asks a model for P(True). A reply without log-probabilities is a failure, too."""

    def __init__(self, rater: Rater) -> None:
        self._rater = rater

    async def score(self, request: InferenceRequest, reply: Reply) -> float | None:
        """See :class:`AnswerCheck`."""
        text = reply.answer or ""
        rated = await self._rater.rate(request.query.text, [text], caller=request.caller.name)
        rating = rated.ratings[text]
        if rating.failures:
            raise UpstreamError("no confidence", kind=rating.failures[Weight.P_TRUE])
        return rating.values[Weight.P_TRUE]


class _CheckPlaces:
    """A checker, and how many checks it does at once: rows never wait before a request."""

    def __init__(self, place: str, evidence: Evidence, check: AnswerCheck) -> None:
        self.check = check
        self.wait_s = evidence.timeout_s
        self.warnings = FailureWarnings(f"{place}.evidence", "answers without a verdict")
        self.of_requests = asyncio.Semaphore(evidence.concurrency)
        self.of_rows = asyncio.Semaphore(ROW_PLACES)


class EvidenceChecks:
    """The checkers of all sections `same_answer`. Open it before use.

    Args:
        settings: The sections.
        secrets: The bearer token of URLs.
        fleet: Calls judges.
        counter: Counts checks by outcome.
        code: The code of functions.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: Secrets,
        fleet: Fleet,
        counter: Counter,
        code: CheckerCode,
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._fleet = fleet
        self._counter = counter
        self._code = code
        self._checks: dict[str, _CheckPlaces] = {}
        self._running: set[asyncio.Task[int | None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open all checkers.

        Raises:
            SettingsError: A function cannot be imported, or a judge answers, but not as it must.
        """
        async with AsyncExitStack() as stack:
            for place, section in self._settings.same_answers.items():
                if section.evidence is not None:
                    check = await self._opened(stack, place, section.evidence)
                    self._checks[place] = _CheckPlaces(place, section.evidence, check)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._stack.aclose()

    async def of_row(self, request: InferenceRequest, reply: Reply) -> int | None:
        """The verdict on a sampled answer; None: it is lost. Waits as long as it takes."""
        placed = self._placed(request)
        if placed is None:
            return NO_VERDICT
        if reply.answer is None:
            return NO_VERDICT
        await placed.of_rows.acquire()
        return await self._verdict(placed, placed.of_rows, request, reply)

    async def of_request(
        self, request: InferenceRequest, reply: Reply, deadline: float
    ) -> int | None:
        """The verdict on an answer of a round.

        Args:
            request: Its request.
            reply: The answer.
            deadline: A ``time.monotonic()``.

        Returns:
            None if the gateway lost it: the checker had no place or was not called, or the
            deadline came first.
        """
        placed = self._placed(request)
        if placed is None or reply.answer is None:
            return NO_VERDICT
        places, left_s = placed.of_requests, deadline - time.monotonic()
        try:
            async with asyncio.timeout(min(left_s, placed.wait_s)):
                await places.acquire()
        except TimeoutError:
            return self._lost(placed, "all of its places were taken")
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._verdict(placed, places, request, reply)
        except TimeoutError:
            return self._lost(placed, "the deadline of a request came first")

    def _placed(self, request: InferenceRequest) -> _CheckPlaces | None:
        application = None if request.application is None else request.application.name
        return self._checks.get(self._settings.evidence_at(application) or "")

    async def _verdict(
        self,
        placed: _CheckPlaces,
        places: asyncio.Semaphore,
        request: InferenceRequest,
        reply: Reply,
    ) -> int | None:
        """Check on the place that was acquired; the check goes on if its caller leaves."""
        task = asyncio.create_task(self._checked(placed, request, reply))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: places.release())
        return await asyncio.shield(task)

    async def _checked(
        self, placed: _CheckPlaces, request: InferenceRequest, reply: Reply
    ) -> int | None:
        """The verdict of a check that holds a place; never raises but when it is cancelled."""
        try:
            score = await placed.check.score(request, reply)
        except UpstreamError as exc:
            if isinstance(exc, CheckerUnavailable) or exc.kind == UpstreamOverloaded.default_kind:
                return self._lost(placed, str(exc))
            placed.warnings.add(str(exc))
            return self._none("timeout" if exc.kind == "upstream_timeout" else "failed")
        except Exception:  # our own fault, but no reason to fail the answer
            log.exception("an answer of %s could not be checked", reply.candidate)
            return self._none("failed")
        if (verdict := verdict_of(score)) == NO_VERDICT:
            return self._none("no_verdict")
        self._counter.labels("verdict").inc()
        return verdict

    def _none(self, outcome: str) -> int:
        self._counter.labels(outcome).inc()
        return NO_VERDICT

    def _lost(self, placed: _CheckPlaces, reason: str) -> None:
        placed.warnings.add(reason)
        self._counter.labels("lost").inc()

    async def _opened(self, stack: AsyncExitStack, place: str, evidence: Evidence) -> AnswerCheck:
        if evidence.rater is not None:
            return await self._judge(place, evidence.rater)
        name, limit_s = f"{place}.evidence", evidence.timeout_s
        call: CheckerCall
        if evidence.url is not None:
            call = UrlChecker(name, evidence.url, limit_s, self._settings, self._secrets)
        else:
            cure = f"correct `{name}.function`" if evidence.function else SCHEMA_CURE
            call = FunctionChecker(
                name,
                evidence.function or SCHEMA_CHECK,
                code=self._code.get(evidence.function or ""),
                timeout_s=limit_s,
                cure=cure,
                processes=evidence.concurrency + ROW_PLACES,
            )
        return DocumentCheck(await stack.enter_async_context(call), evidence.json_schema)

    async def _judge(self, place: str, spec: EvaluatorModel) -> AnswerCheck:
        """A judge, which need not answer yet; one that answers must be able to rate."""
        rater = Rater(
            name=judge_name(place),
            spec=spec,
            kinds=(Weight.P_TRUE,),
            settings=self._settings,
            fleet=self._fleet,
        )
        try:
            await rater.check(cure="until it answers, its checks fail", other="use another checker")
        except SettingsError as exc:
            raise SettingsError(f"{place}.evidence.judge: {exc}") from exc
        except UpstreamError as exc:
            log.warning("%s.evidence.judge: %s", place, exc)
        return JudgeCheck(rater)


def _score(correct: object, name: str) -> float | None:
    """The score in a checker's answer: `{candidate: true, false, a number or null}`."""
    if not isinstance(correct, dict):
        return None
    given = cast("dict[str, Any]", correct).get(name)
    return float(given) if isinstance(given, bool) else number_within(given, 0.0, 1.0)
