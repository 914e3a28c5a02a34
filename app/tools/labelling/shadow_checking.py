"""Checking of live traffic: applications' checkers label stored samples that still wait.

A gateway has each sample checked when it is drawn, and those that stay without a label again later.
Here all of them are checked now. A labelled sample no longer waits, so a run resumes where the last
one ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.errors import GatewayRefused, LabellingIncomplete, SettingsError, UpstreamError
from app.judging.checker_calls import CheckerCall, checker_code, open_checker
from app.monitoring.samples.checker import checker_document, read_verdicts
from app.settings import Secrets, Settings
from app.tools.gateway_client import GatewayClient

PAGE: Final = 50  # samples in one answer of the gateway; each may be large
MOST: Final = 1_000  # the gateway's limit for one answer
MAX_FAILURES_IN_A_ROW: Final = 20
REFUSED: Final = "refused_by_gateway"  # a kind of failure


@dataclass(slots=True)
class CheckingReport:
    """Result of a run."""

    waiting: int = 0  # samples that waited at the start
    labelled: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])  # kind -> samples

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed."""
        return {"waiting": self.waiting, "labelled": self.labelled}


def check_samples(
    gateway: GatewayClient,
    *,
    settings: Settings,
    secrets: Secrets,
    application: str | None,
    concurrency: int,
    progress: Callable[[str, int, int], None],
) -> CheckingReport:
    """Have every waiting sample of an application with a checker checked, and send the verdicts.

    Args:
        gateway: A gateway with stored requests, opened with an admin key.
        settings: The applications.
        secrets: The bearer token of checkers at a URL.
        application: Only its samples; None: those of all applications with a checker.
        concurrency: Samples checked at once.
        progress: Called with a stage, how many samples are labelled, and of how many.

    Raises:
        LabellingIncomplete: A checker gave no usable verdicts on some samples.
        SettingsError: No such application has a checker, or a function cannot be used.
        GatewayRefused: The gateway stores no requests, or the key is no admin's.
    """
    names = [
        name
        for name, each in settings.applications.items()
        if each.checker is not None and application in (None, name)
    ]
    if not names:
        whose = "no application has" if application is None else f"{application!r} has"
        raise SettingsError(
            f"--grade checker: {whose} {'a' if application is None else 'no'} checker: set "
            f"`applications.{application or 'NAME'}.checker`"
        )
    run = _CheckingRun(gateway, settings, secrets, concurrency, progress)
    asyncio.run(run.run(names))
    report = run.report
    if report.failures:
        causes = "; ".join(f"{kind}: {count}" for kind, count in sorted(report.failures.items()))
        raise LabellingIncomplete(
            f"{report.waiting - report.labelled} of {report.waiting} samples are not labelled "
            f"({causes}): run the same command again, which checks only these"
        )
    return report


class _CheckingRun:
    """State of one run."""

    def __init__(
        self,
        gateway: GatewayClient,
        settings: Settings,
        secrets: Secrets,
        concurrency: int,
        show: Callable[[str, int, int], None],
    ) -> None:
        self._gateway = gateway
        self._settings = settings
        self._secrets = secrets
        self._free = asyncio.Semaphore(concurrency)
        self._show = show
        self._failures_in_a_row = 0
        self.report = CheckingReport()

    async def run(self, names: Sequence[str]) -> None:
        """Check the samples of these applications, one application after the other."""
        code = await asyncio.to_thread(checker_code, self._settings)
        for name in names:
            checker = self._settings.applications[name].checker
            assert checker is not None
            async with open_checker(checker, name, self._settings, self._secrets, code) as call:
                await self._check_application(name, call)

    async def _check_application(self, name: str, call: CheckerCall) -> None:
        """Read pages until all samples that still wait were tried."""
        tried = set[str]()
        is_first = True
        while self._failures_in_a_row < MAX_FAILURES_IN_A_ROW:
            page = await asyncio.to_thread(
                self._gateway.waiting_samples,
                judge=None,
                application=name,
                since=None,
                # Samples that were tried in vain come again.
                limit=min(PAGE + len(tried), MOST),
            )
            self.report.waiting += page["waiting"] * is_first
            is_first = False
            new = [each for each in page["data"] if each["decision_id"] not in tried]
            if not new:
                return
            labelled = await asyncio.gather(*(self._label(name, each, call) for each in new))
            tried |= {
                each["decision_id"]
                for each, is_labelled in zip(new, labelled, strict=True)
                if not is_labelled
            }

    async def _label(self, name: str, sample: Mapping[str, Any], call: CheckerCall) -> bool:
        """Whether the gateway has the verdicts now."""
        async with self._free:
            if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                return False
            try:
                await self._check_and_send(name, sample, call)
            except UpstreamError as exc:
                self._fail(exc.kind)
                return False
            except GatewayRefused:  # deleted, or labelled by a person meanwhile
                self._fail(REFUSED)
                return False
        self._failures_in_a_row = 0
        self.report.labelled += 1
        self._show_progress()
        return True

    def _fail(self, kind: str) -> None:
        self.report.failures[kind] += 1
        self._failures_in_a_row += 1
        self._show_progress()

    def _show_progress(self) -> None:
        count = self.report.failures.total()
        failed = f", {count} failed" if count else ""
        self._show(f"checking{failed}", self.report.labelled, self.report.waiting)

    async def _check_and_send(
        self, name: str, sample: Mapping[str, Any], call: CheckerCall
    ) -> None:
        decision_id = sample["decision_id"]
        data, judged = checker_document(
            decision_id, name, sample["request"], sample["answers"], sample["calls"]
        )
        verdicts = read_verdicts(await call.check(data), judged, call.name)
        # Verdicts that count already stay.
        new = {each: right for each, right in verdicts.items() if each not in sample["correct"]}
        if new:
            await asyncio.to_thread(self._gateway.add_feedback, decision_id, new)
