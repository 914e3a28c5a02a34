"""Evidence: the verdicts of checkers on single answers, under the promise `same_answer`.

One answer is checked at a time, with its request alone: a check that saw other answers would
say something else in a round than on a sampled request, where all candidates answered. A check
that fails, or is not over in time, gives no verdict, which is a verdict of its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol, Self, cast

from prometheus_client import Counter

from app.answering.rater import Rater
from app.answering.request import InferenceRequest
from app.errors import UpstreamError
from app.monitoring.checker import checker_document
from app.monitoring.checker_calls import PROCESSES, CheckerCall, FunctionChecker, UrlChecker
from app.settings import Evidence, Secrets, Settings
from app.settings.evidence import judge_name
from app.upstream.fleet import Fleet
from app.upstream.reply import Reply
from racer_core.aggregation.vote import Weight
from racer_core.sequential.verdicts import NO_VERDICT, verdict_of

log = logging.getLogger(__name__)

SCHEMA_CHECK: Final = "app.tools.labelling.schema_check:check"


class AnswerCheck(Protocol):
    """Says how likely one answer is right."""

    timeout_s: float

    async def score(self, request: InferenceRequest, reply: Reply) -> float | None:
        """From 0 to 1; None: it cannot say. Raises UpstreamError."""
        ...


class DocumentCheck:
    """Asks a URL or a function, by the documents of `applications.NAME.checker`."""

    def __init__(self, call: CheckerCall, timeout_s: float, schema: object = None) -> None:
        self.timeout_s = timeout_s
        self._call = call
        self._schema = {} if schema is None else {"schema": schema}
        self._places = asyncio.Semaphore(PROCESSES)

    async def score(self, request: InferenceRequest, reply: Reply) -> float | None:
        """See :class:`AnswerCheck`."""
        name = reply.candidate
        answers, calls = {name: reply.answer}, {name: reply.call_record}
        application = None if request.application is None else request.application.name
        data, _ = checker_document("", application, request.fields, answers, calls, **self._schema)
        async with self._places:
            document = await self._call.check(data)
        return _score(document.get("correct"), name)


class JudgeCheck:
    """Asks a model for P(True)."""

    def __init__(self, rater: Rater, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._rater = rater

    async def score(self, request: InferenceRequest, reply: Reply) -> float | None:
        """See :class:`AnswerCheck`."""
        text = reply.answer or ""
        rated = await self._rater.rate(request.query.text, [text], caller=request.caller.name)
        return rated.ratings[text].values[Weight.P_TRUE]


class EvidenceChecks:
    """The checkers of all sections `same_answer`. Open it before use.

    Args:
        settings: The sections.
        secrets: The bearer token of URLs.
        fleet: Calls judges.
        counter: Counts checks by outcome.
    """

    def __init__(
        self, settings: Settings, secrets: Secrets, fleet: Fleet, counter: Counter
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._fleet = fleet
        self._counter = counter
        self._checks: dict[str, AnswerCheck] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open all checkers.

        Raises:
            SettingsError: A function cannot be imported, or a judge cannot do what it must.
            UpstreamError: A judge cannot be reached.
        """
        async with AsyncExitStack() as stack:
            for place, section in self._settings.same_answers.items():
                if section.evidence is not None:
                    self._checks[place] = await self._opened(stack, place, section.evidence)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def verdict(
        self, request: InferenceRequest, reply: Reply, deadline: float = math.inf
    ) -> int:
        """The verdict on an answer; never raises but when it is cancelled.

        Args:
            request: Its request.
            reply: The answer.
            deadline: A ``time.monotonic()``; the checker has its own time limit, too.
        """
        application = None if request.application is None else request.application.name
        check = self._checks.get(self._settings.evidence_at(application) or "")
        if check is None or reply.answer is None:
            return NO_VERDICT
        limit_s = min(check.timeout_s, deadline - time.monotonic())
        try:
            async with asyncio.timeout(limit_s):
                score = await check.score(request, reply)
        except TimeoutError:
            return self._none("timeout")
        except UpstreamError as exc:
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

    async def _opened(self, stack: AsyncExitStack, place: str, evidence: Evidence) -> AnswerCheck:
        settings, limit_s = self._settings, evidence.timeout_s
        if evidence.judge is not None:
            rater = Rater(
                name=judge_name(place),
                spec=evidence.judge,
                kinds=(Weight.P_TRUE,),
                settings=settings,
                fleet=self._fleet,
            )
            await rater.check()
            return JudgeCheck(rater, limit_s)
        name = f"{place}.evidence"
        if evidence.url is not None:
            call: CheckerCall = UrlChecker(name, evidence.url, limit_s, settings, self._secrets)
        else:
            function = evidence.function or SCHEMA_CHECK
            call = FunctionChecker(name, function, timeout_s=limit_s, processes=PROCESSES)
        return DocumentCheck(await stack.enter_async_context(call), limit_s, evidence.json_schema)


def _score(correct: object, name: str) -> float | None:
    """The score in a checker's answer: `{candidate: true, false, a number or null}`."""
    if not isinstance(correct, dict):
        return None
    given = cast("dict[str, Any]", correct).get(name)
    return float(given) if isinstance(given, int | float) else None
