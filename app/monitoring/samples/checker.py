"""Checkers: applications' own validators, which label sampled requests in the background.

A checker is a URL or an installed function (``checker_calls``). It gets a whole request with the
answers of all candidates and says which are right. Whatever a checker does, requests are served:
its queue is bounded, and a sample without usable verdicts stays without a label.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from prometheus_client import Counter

from app.concurrency.background_queue import BackgroundQueue
from app.concurrency.memory_budget import MemoryBudget
from app.errors import Overloaded, UpstreamError, UpstreamTimeout
from app.json_output import dump_json
from app.judging.checker_calls import CheckerCall, CheckerCode, FailureWarnings, open_checker
from app.monitoring.samples.record import SampledExchange
from app.settings import Secrets, Settings
from app.settings.secrets import CHECKER_KEY
from racer_core.errors import RacerError
from racer_core.types import CallRecord

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3  # of one check; a timeout and an unreadable answer are not tried again
PAUSE_S: Final = 1.0  # before the second attempt; twice as long before the third
CONCURRENCY: Final = 4  # checks of one application at the same time
MAX_WAITING: Final = 1_000  # samples of one application
MAX_WAITING_BYTES: Final = 64 * 2**20  # of all applications
_LOST: Final = "the sample stays without a label"

Record = Callable[[str, Mapping[str, bool]], Awaitable[None]]


class Checkers:
    """The checkers of all applications. Open it before use; it then labels until it is closed.

    Args:
        settings: The applications, and how servers are called.
        secrets: The bearer token of the URLs.
        code: The code of functions.
        record: Stores the verdicts on a decision's answers. Raises RacerError.
        checks: Counts samples by application and outcome.
        pause_s: Pause before the second attempt.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        secrets: Secrets,
        code: CheckerCode,
        *,
        record: Record,
        checks: Counter,
        pause_s: float = PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._code = code
        self._record = record
        self._checks = checks
        self._pause_s = pause_s
        self._clock = clock
        self._buffered = MemoryBudget(MAX_WAITING_BYTES, Overloaded, "too many samples wait")
        self._queues: dict[str, _CheckQueue] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open all checkers.

        Raises:
            SettingsError: A function cannot be imported or called.
        """
        async with AsyncExitStack() as stack:
            for name, application in self._settings.applications.items():
                if application.checker is None:
                    continue
                call = await stack.enter_async_context(
                    open_checker(
                        application.checker, name, self._settings, self._secrets, self._code
                    )
                )
                queue = _CheckQueue(
                    name,
                    call,
                    record=self._record,
                    checks=self._checks,
                    buffered=self._buffered,
                    pause_s=self._pause_s,
                    clock=self._clock,
                )
                self._queues[name] = queue
                stack.push_async_callback(queue.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End at once: checks that are not finished are lost."""
        await self._stack.aclose()

    async def finish(self, limit_s: float) -> None:
        """Wait until no check is unfinished, at most ``limit_s``."""
        await asyncio.gather(*(each.finish(limit_s) for each in self._queues.values()))

    @property
    def applications(self) -> tuple[str, ...]:
        """The applications with a checker."""
        return tuple(self._queues)

    def has(self, decision_id: str, application: str) -> bool:
        """Whether a sample waits for the checker here, or is being checked."""
        return decision_id in self._queues[application].decisions

    def submit(
        self,
        decision_id: str,
        application: str | None,
        exchange: SampledExchange,
    ) -> bool:
        """Have the answers to a sampled request checked; never waits, never raises.

        Args:
            decision_id: The decision.
            application: The application of the request; nothing is done if it has no checker.
            exchange: The request and the answers. A candidate without an answer is not judged.

        Returns:
            False if the queue has no room for it.
        """
        queue = self._queues.get(application or "")
        if queue is None or not any(text is not None for text in exchange.answers.values()):
            return True
        data, names = checker_document(
            decision_id, application, exchange.request, exchange.answers, exchange.calls
        )
        return queue.add(_Check(decision_id=decision_id, data=data, names=names))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """A sample that waits for its verdicts."""

    decision_id: str
    data: bytes  # the document for the checker
    names: frozenset[str]  # the candidates in it


class _CheckQueue:
    """The background queue of one application's samples."""

    def __init__(
        self,
        application: str,
        call: CheckerCall,
        *,
        record: Record,
        checks: Counter,
        buffered: MemoryBudget,
        pause_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._application = application
        self._call = call
        self._record = record
        self._checks = checks
        self._pause_s = pause_s
        self._queue = BackgroundQueue(
            self._label,
            name=f"checker of {application}",
            tasks=CONCURRENCY,
            limit=MAX_WAITING,
            memory=buffered,
        )
        self.finish = self._queue.finish
        self.decisions = set[str]()  # those that wait or are being checked
        self._warnings = FailureWarnings(
            f"applications.{application}.checker", "samples that stay without a label", clock
        )

    async def close(self) -> None:
        """End at once: checks that are not finished are lost."""
        for _ in await self._queue.close():
            self._lose("stopped", "the gateway stopped before the checker was called")

    def add(self, check: _Check) -> bool:
        """Queue a sample; returns False if the queue is full, and it stays without a label."""
        is_added = self._queue.add(check, len(check.data))
        if is_added:
            self.decisions.add(check.decision_id)
        else:
            self._lose(
                "dropped",
                f"{MAX_WAITING} samples wait for the checker, or {MAX_WAITING_BYTES >> 20} MiB of "
                "samples for all checkers",
            )
        return is_added

    async def _label(self, check: _Check) -> None:
        try:
            document = await self._check(check.data)
            verdicts = read_verdicts(document, check.names, self._call.name)
            await self._record(check.decision_id, verdicts)
        except asyncio.CancelledError:
            self._lose("stopped", "the gateway stopped before the checker answered")
            raise
        except UpstreamError as exc:
            self._lose(exc.kind, f"{exc}{_advice(exc)}")
        except RacerError as exc:
            self._lose("not_recorded", f"the verdicts cannot be stored: {exc}")
        except Exception:
            log.exception("applications.%s.checker: %s", self._application, _LOST)
            self._checks.labels(self._application, "error").inc()
        else:
            self._checks.labels(self._application, "ok").inc()
        finally:
            self.decisions.discard(check.decision_id)

    async def _check(self, data: bytes) -> Mapping[str, Any]:
        """The checker's answer. A failure that may pass is tried again, twice at most."""
        attempt = 1
        while True:
            try:
                return await self._call.check(data)
            except UpstreamError as exc:
                if attempt == ATTEMPTS or exc.lasting or isinstance(exc, UpstreamTimeout):
                    raise
            await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
            attempt += 1

    def _lose(self, outcome: str, reason: str) -> None:
        """Count a sample without a label, and warn of it."""
        self._checks.labels(self._application, outcome).inc()
        self._warnings.add(reason)


def checker_document(
    decision_id: str,
    application: str | None,
    request: Mapping[str, Any],
    answers: Mapping[str, str | None],
    calls: Mapping[str, CallRecord],
    **further: object,
) -> tuple[bytes, frozenset[str]]:
    """The document that a checker is sent, as JSON, and the candidates that answered."""
    messages = {
        name: _message(text, calls.get(name, {}))
        for name, text in answers.items()
        if text is not None
    }
    document = {
        "decision_id": decision_id,
        "application": application,
        "request": request,
        "answers": messages,
        **further,
    }
    return dump_json(document), frozenset(messages)


def read_verdicts(
    document: Mapping[str, Any], names: Collection[str], checker: str
) -> dict[str, bool]:
    """The verdicts in a checker's answer: ``{"correct": {candidate: true or false}}``.

    Raises:
        UpstreamError: It is no such object, or is not about exactly these candidates.
    """
    correct = document.get("correct")
    problem = None
    if not isinstance(correct, dict):
        problem = 'answered no object `{"correct": {candidate: true or false}}`'
    else:
        verdicts = cast("dict[str, object]", correct)
        if unknown := sorted(verdicts.keys() - set(names)):
            problem = f"labelled {unknown[0][:128]!r}, which is none of the sent answers"
        elif missing := sorted(set(names) - verdicts.keys()):
            problem = f"gave no verdict on {missing[0]!r}"
        elif wrong := [name for name, each in verdicts.items() if not isinstance(each, bool)]:
            problem = f"gave a verdict on {wrong[0]!r} that is neither true nor false"
        else:
            return cast("dict[str, bool]", verdicts)
    raise UpstreamError(f"{checker} {problem}", kind="upstream_invalid_response", lasting=True)


def _message(text: str, call: CallRecord) -> dict[str, Any]:
    """An answer of a row as the assistant's message."""
    if "tool_calls" not in call:
        return {"role": "assistant", "content": text}
    calls = [
        {
            "type": "function",
            "function": {"name": each["name"], "arguments": _arguments(each["arguments"])},
        }
        for each in json.loads(text)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _arguments(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _advice(exc: UpstreamError) -> str:
    return f" (set ${CHECKER_KEY})" if exc.kind == "upstream_auth_error" else ""
