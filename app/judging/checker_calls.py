"""Calls to a checker: HTTP POST to its URL, or its function in a child process.

Both raise :class:`UpstreamError`, as calls to candidates do, and end within the checker's timeout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import urlsplit

from app.errors import CheckerUnavailable, SettingsError, UpstreamError, UpstreamTimeout
from app.settings import Checker, Secrets, Settings
from app.upstream.http_client import UpstreamClient
from app.upstream.replicas import Replicas, Target
from racer_core import strict_json
from racer_core.errors import InputError, RacerError
from racer_core.routers.inputs import code_digest
from racer_core.sandbox import ROOT, Message, SandboxedProcess

START_S: Final = 60.0  # for the import of a function's module
MESSAGE_BYTES: Final = 2**20  # of a function's result
PROCESSES: Final = 4  # of one function; one process does one check at a time
_INVALID: Final = "upstream_invalid_response"


CheckerCode = Mapping[str, str]  # digest of the package of a checker's function, by the function


def checker_code(settings: Settings) -> CheckerCode:
    """The code of all checkers that are functions, as it is now. Blocks.

    Raises:
        ArtifactError, OSError: As :func:`code_digest`.
    """
    labels = [each.checker for each in settings.applications.values()]
    evidence = [each.evidence for each in settings.same_answers.values()]
    functions = {each.function for each in (*labels, *evidence) if each and each.function}
    return {each: _code_of(each) for each in sorted(functions)}


def _code_of(function: str) -> str:
    return code_digest(function.partition(":")[0])


class CheckerCall(Protocol):
    """A checker that can be called while it is open."""

    name: str  # in messages

    async def __aenter__(self) -> Self:
        """Open. Raises SettingsError."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        ...

    async def check(self, data: bytes) -> Mapping[str, Any]:
        """Have a document checked; returns the JSON object that is the answer.

        Raises:
            UpstreamError: No usable answer.
        """
        ...


def open_checker(
    checker: Checker, application: str, settings: Settings, secrets: Secrets, code: CheckerCode
) -> CheckerCall:
    """The checker of an application, still closed."""
    name = f"the checker of {application}"
    if checker.function is not None:
        return FunctionChecker(
            name,
            checker.function,
            code=code[checker.function],
            timeout_s=checker.timeout_s,
            cure=f"correct `applications.{application}.checker.function`",
        )
    assert checker.url is not None
    return UrlChecker(name, checker.url, checker.timeout_s, settings, secrets)


class UrlChecker:
    """Sends each document to a URL."""

    def __init__(
        self, name: str, url: str, timeout_s: float, settings: Settings, secrets: Secrets
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        path = urlsplit(url).path
        self._path = path.removeprefix("/")
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if secrets.checker_key is not None:
            headers["authorization"] = f"Bearer {secrets.checker_key.get_secret_value()}"
        base_url = url.removesuffix(path)
        self._target = Target(
            name=name,
            replicas=Replicas(name, (base_url,), rules=settings.fleet, concurrency=1),
            headers=headers,
            timeout_s=timeout_s,
        )
        self._client = UpstreamClient(settings.fleet, settings.limits)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    async def check(self, data: bytes) -> Mapping[str, Any]:
        """See :class:`CheckerCall`."""
        answer = await self._client.post(
            self._target,
            self._target.replicas.all[0],
            self._path,
            data,
            limit_s=self._timeout_s,
            may_reconnect=True,
        )
        try:
            body = await answer.read_all()
        finally:
            answer.close()
        try:
            return strict_json.load_object(body)
        except InputError as exc:
            raise _invalid(f"{self.name} answered no JSON object ({exc})") from exc


class FunctionChecker:
    """Calls an installed function in child processes, which are killed when they take too long.

    Args:
        name: In messages.
        function: ``package.module:function``. It gets the document and returns the answer.
        code: The digest of its package that processes must have; None: any. Rows with verdicts of
            one code say nothing of another's.
        timeout_s: Time limit of a check.
        cure: What to do about a function that cannot be loaded, for the message.
        start_s: Time limit for importing the module.
        processes: How many are started when it opens; others, up to ``PROCESSES``, as they are
            needed.
    """

    def __init__(
        self,
        name: str,
        function: str,
        *,
        code: str | None,
        timeout_s: float,
        cure: str,
        start_s: float = START_S,
        processes: int = 1,
    ) -> None:
        self.name = name
        self._function = function
        self._code = code
        self._timeout_s = timeout_s
        self._cure = cure
        self._start_s = start_s
        self._at_first = processes
        self._most = max(PROCESSES, processes)
        self._starting: set[asyncio.Task[SandboxedProcess]] = set()
        self._idle: list[SandboxedProcess] = []
        # Threads of its own: a function that hangs must not hold those of the gateway.
        self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="checker")

    async def __aenter__(self) -> Self:
        try:
            self._idle += await asyncio.gather(*(self._start() for _ in range(self._at_first)))
        except UpstreamError as exc:
            await self.__aexit__()
            raise SettingsError(f"{exc}; {self._cure}") from exc
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for process in self._idle:
            process.close()
        self._threads.shutdown()

    async def check(self, data: bytes) -> Mapping[str, Any]:
        """See :class:`CheckerCall`. Not called at once more often than it has processes.

        Raises:
            CheckerUnavailable: No process is left, and none could be started.
        """
        process = self._idle.pop() if self._idle else await self._another()
        reply = await self._exchange(process, data, self._timeout_s)
        if reply is None:
            raise UpstreamError(f"{self.name} ended its process", kind="upstream_disconnected")
        self._idle.append(process)
        if "error" in reply:
            raise UpstreamError(
                f"{self.name} {reply['error']}", kind="upstream_error", lasting=True
            )
        result: Any = reply["result"]
        if not isinstance(result, dict):
            raise _invalid(f"{self.name} returned no dictionary")
        return cast("dict[str, Any]", result)

    async def _another(self) -> SandboxedProcess:
        """One more process. A check that does not wait for it leaves it to the next one."""
        if len(self._starting) >= self._most:
            raise CheckerUnavailable(f"{self.name} is being started")
        task = asyncio.create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(task)
        except UpstreamError as exc:
            raise CheckerUnavailable(str(exc), kind=exc.kind, lasting=exc.lasting) from exc
        except asyncio.CancelledError:
            task.add_done_callback(self._keep)
            raise

    def _keep(self, task: asyncio.Task[SandboxedProcess]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._idle.append(task.result())

    async def _start(self) -> SandboxedProcess:
        # The function's package may be found by the gateway's own path alone.
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = SandboxedProcess(
            "app.judging.checker_worker",
            [self._function],
            message_bytes=MESSAGE_BYTES,
            environment={"PYTHONPATH": os.pathsep.join(paths)},
        )
        reply = await self._exchange(process, b"{}", self._start_s)
        if reply is None or "error" in reply:
            process.close()
            why = "cannot be started" if reply is None else reply["error"]
            raise UpstreamError(f"{self.name} ({self._function}) {why}", lasting=True)
        # What is on disk after the import: a process that imported it has no other code.
        if not await asyncio.get_running_loop().run_in_executor(self._threads, self._is_as_loaded):
            process.close()
            raise UpstreamError(
                f"{self.name} ({self._function}) has other code than when the gateway started: "
                "restart the gateway",
                lasting=True,
            )
        return process

    def _is_as_loaded(self) -> bool:
        if self._code is None:
            return True
        try:
            return _code_of(self._function) == self._code
        except (OSError, RacerError):  # it is being replaced
            return False

    async def _exchange(
        self, process: SandboxedProcess, data: bytes, limit_s: float
    ) -> Message | None:
        """Send a document and wait for its reply; the process is closed unless one comes."""
        loop = asyncio.get_running_loop()
        exchange = loop.run_in_executor(self._threads, lambda: process.request(json.loads(data)))
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(exchange)
        except (TimeoutError, asyncio.CancelledError) as exc:
            process.kill()  # the thread then gets no reply
            with suppress(asyncio.CancelledError):
                await asyncio.shield(exchange)
            process.close()
            if isinstance(exc, asyncio.CancelledError):
                raise
            raise UpstreamTimeout(f"{self.name} did not answer within {limit_s:g} s") from exc


def _invalid(message: str) -> UpstreamError:
    return UpstreamError(message, kind=_INVALID, lasting=True)


log = logging.getLogger(__name__)

WARN_EVERY_S: Final = 300.0


class FailureWarnings:
    """Warns of a checker's failure at most once in five minutes, and counts those in between.

    Args:
        setting: Where the checker is configured.
        consequence: What each failure leaves behind, in the plural.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self, setting: str, consequence: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._setting = setting
        self._consequence = consequence
        self._clock = clock
        self._failures = 0  # since the last warning
        self._warned_at = -math.inf

    def add(self, reason: str) -> None:
        """Count a failure."""
        self._failures += 1
        now = self._clock()
        if now - self._warned_at < WARN_EVERY_S:
            return
        log.warning(
            "%s: %s; %s since the last warning: %d",
            self._setting,
            reason,
            self._consequence,
            self._failures,
        )
        self._warned_at, self._failures = now, 0
