"""Judging of live traffic: a judge model labels the stored answers of the shadow sample.

The samples and the verdicts on them are the gateway's. A sample with a judge's verdicts no longer
waits for that judge, so a run resumes where the last one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.errors import GatewayRefused, LabellingIncomplete
from app.settings import Secrets, Settings
from app.tools.gateway_client import GatewayClient
from app.tools.labelling.answer import Answer
from app.tools.labelling.grading import GradingOptions, make_grader
from app.tools.labelling.judge import judge_version
from app.tools.labelling.request_grading import RequestGrader
from app.tools.labelling.workers import Workers
from racer_core.records.questions import Question
from racer_core.records.row import row_query

PAGE: Final = 50  # samples in one answer of the gateway; each may be large
REFUSED: Final = "refused_by_gateway"  # a kind of failure
MAX_FAILURES_IN_A_ROW: Final = 20  # samples that the judge left without verdicts; then it is over


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingReport:
    """Result of a run."""

    judge: str  # its name at the gateway
    waiting: int  # samples that waited for this judge at the start
    judged: int  # in this run
    interrupted: bool

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed."""
        return {"judge": self.judge, "waiting": self.waiting, "judged": self.judged}


def judge_samples(
    gateway: GatewayClient,
    grading: GradingOptions,
    *,
    settings: Settings,
    secrets: Secrets,
    application: str | None,
    concurrency: int,
    progress: Callable[[str, int, int], None],
) -> JudgingReport:
    """Send a judge's verdicts on every sample that waits for it.

    Args:
        gateway: A gateway with stored requests, opened with an admin key.
        grading: The judge.
        settings: The candidates, of which one may be the judge.
        secrets: API keys of the candidates.
        application: Only its samples; None: those of all.
        concurrency: Samples judged at once.
        progress: Called with a stage, how many samples are judged, and of how many.

    Raises:
        LabellingIncomplete: The judge gave no readable verdict on some answers.
        SettingsError: The judge is unknown.
        GatewayRefused: The gateway stores no requests, or the key is no admin's.
    """
    grader, judge = make_grader(grading, settings, secrets)
    assert judge is not None, "only a judge grades without references"
    name = judge_version(judge)
    waiting = _Waiting(gateway, name, application)
    run = _JudgingRun(gateway, grader, name, waiting, progress)
    asyncio.run(run.run(concurrency))
    if run.failed and not run.interrupted:
        causes = "; ".join(f"{kind}: {count}" for kind, count in sorted(grader.failures.items()))
        raise LabellingIncomplete(
            f"{waiting.count - run.judged} of {waiting.count} samples are not judged ({causes}): "
            "run the same command again, which judges only these"
        )
    return JudgingReport(
        judge=name, waiting=waiting.count, judged=run.judged, interrupted=run.interrupted
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """A sample that waits for verdicts."""

    decision_id: str
    question: Question
    answers: Mapping[str, Answer | None]  # None: no answer, which is wrong

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> _Sample:
        content = row_query({"request": value["request"]}, "conversation")
        calls = value["calls"]
        return cls(
            decision_id=value["decision_id"],
            question=Question(
                place=value["decision_id"],
                query=content.query,
                earlier=content.earlier,
                request=content.request,
            ),
            answers={
                name: None if text is None else Answer(text=text, call=calls.get(name, {}))
                for name, text in value["answers"].items()
            },
        )


class _Waiting:
    """The samples that wait for a judge, oldest first, each once; read page by page."""

    def __init__(self, gateway: GatewayClient, judge: str, application: str | None) -> None:
        self._gateway = gateway
        self._judge = judge
        self._application = application
        self._lock = asyncio.Lock()
        self._seen = set[str]()
        self.count = 0  # at the start

    async def samples(self) -> AsyncIterator[_Sample]:
        """Iterate over them; the gateway is asked for a page while the one before is worked on."""
        since: str | None = None
        while True:
            page = await asyncio.to_thread(
                self._gateway.waiting_samples,
                judge=self._judge,
                application=self._application,
                since=since,
                limit=PAGE,
            )
            self.count = max(self.count, page["waiting"])
            # Samples at the last page's end come again, unless they were judged meanwhile.
            new = [each for each in page["data"] if each["decision_id"] not in self._seen]
            if not new:
                return
            since = new[-1]["created_at"]
            for each in new:
                self._seen.add(each["decision_id"])
                yield _Sample.of(each)


class _JudgingRun:
    """State of one run."""

    def __init__(
        self,
        gateway: GatewayClient,
        grader: RequestGrader,
        judge: str,
        waiting: _Waiting,
        show: Callable[[str, int, int], None],
    ) -> None:
        self._gateway = gateway
        self._grader = grader
        self._judge = judge
        self._waiting = waiting
        self._show = show
        self._workers = Workers()
        self._failures_in_a_row = 0
        self.judged = 0
        self.failed = 0

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped by Ctrl-C."""
        return self._workers.interrupted

    async def run(self, concurrency: int) -> None:
        """Judge until no sample is left."""
        queue: asyncio.Queue[_Sample | None] = asyncio.Queue(concurrency)

        async def read() -> None:
            async for sample in self._waiting.samples():
                await queue.put(sample)
                if self._is_over:
                    break
            for _ in range(concurrency):
                await queue.put(None)

        async def work() -> None:
            while (sample := await queue.get()) is not None:
                if not self._is_over:
                    await self._label(sample)

        async with self._grader:
            await self._workers.run([read(), *(work() for _ in range(concurrency))])

    @property
    def _is_over(self) -> bool:
        return self.interrupted or self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW

    async def _label(self, sample: _Sample) -> None:
        if await self._judge_and_send(sample):
            self.judged += 1
            self._failures_in_a_row = 0
        else:
            self.failed += 1
            self._failures_in_a_row += 1
        failed = f", {self.failed} failed" if self.failed else ""
        self._show(f"judging{failed}", self.judged, self._waiting.count)

    async def _judge_and_send(self, sample: _Sample) -> bool:
        """Whether the gateway has the verdicts now."""
        correct = await self._verdicts(sample)
        if correct is None:
            return False
        try:
            await asyncio.to_thread(
                self._gateway.add_judgements, sample.decision_id, self._judge, correct
            )
        except GatewayRefused:  # its retention deleted the decision meanwhile
            self._grader.failures[REFUSED] += 1
            return False
        return True

    async def _verdicts(self, sample: _Sample) -> dict[str, bool] | None:
        """A verdict on every candidate; None if one is missing. Equal answers are judged once."""
        distinct = {each.verdict_key: each for each in sample.answers.values() if each is not None}
        verdicts = await asyncio.gather(
            *(self._grader.correct(sample.question, each) for each in distinct.values())
        )
        if None in verdicts:
            return None
        right = dict(zip(distinct, verdicts, strict=True))
        return {
            name: each is not None and bool(right[each.verdict_key])
            for name, each in sample.answers.items()
        }
