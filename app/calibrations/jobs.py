"""Job queue of calibrations: one runs, a few wait, and each can be watched and cancelled.

Jobs live in this process. What a job stored is in the store. The job itself is forgotten when the
process ends, or after many later jobs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, NamedTuple

from app.errors import Conflict, JobCancelled, NotFound, Overloaded
from app.wire import error_envelope
from racer_core.errors import RacerError

log = logging.getLogger(__name__)

SMALL_UPLOAD_BYTES: Final = 4 * 2**20
SMALL_ROWS: Final = 2_000
MAX_WAITING: Final = 8  # calibrations that wait while one runs
MAX_LARGE: Final = 8  # larger uploads that are being received
_MAX_JOBS: Final = 64  # that are remembered
_POLL_S: Final = 0.2

Status = Literal["waiting", "running", "done", "failed", "cancelled"]
Work = Callable[["Progress"], Awaitable[dict[str, Any]]]


class Job:
    """One calibration under way. Belongs to the event loop; only its progress is set elsewhere."""

    def __init__(self, created_at: str, upload_bytes: int, small_rows: int) -> None:
        self.id = f"job-{secrets.token_hex(8)}"
        self.created_at = created_at
        self._upload_bytes = upload_bytes
        self._small_rows = small_rows
        self.status: Status = "waiting"
        self.result: dict[str, Any] | None = None
        self.error: Exception | None = None
        loop = asyncio.get_running_loop()
        self.progress = Progress(lambda: loop.call_soon_threadsafe(self._notify))
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Nothing will change any more."""
        return self.status in ("done", "failed", "cancelled")

    @property
    def large(self) -> bool:
        """Too large to wait for, as far as known; the number of rows is known late."""
        phase, _, total = self.progress.stage
        many = phase == "scoring" and total > self._small_rows
        return many or self._upload_bytes > SMALL_UPLOAD_BYTES

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def end(self, status: Status, error: Exception | None = None) -> None:
        """Set the final status."""
        self.status = status
        self.error = error
        self._notify()

    def outcome(self) -> dict[str, Any]:
        """The result of a job that ended. Raises the error of a job that failed."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        phase, done, total = self.progress.stage
        return {
            "id": self.id,
            "status": self.status,
            "created_at": self.created_at,
            "phase": phase,
            "done": done,
            "total": total,
            "result": self.result,
            "error": None if self.error is None else _error_as_json(self.error),
        }

    def _notify(self) -> None:
        """Wake each task that waits for a change, once."""
        self._changed.set()
        self._changed = asyncio.Event()


class JobQueue:
    """Close it before what the jobs use.

    Args:
        small_rows: Rows of the largest calibration that its client waits for.
    """

    def __init__(self, *, small_rows: int = SMALL_ROWS) -> None:
        self._small_rows = small_rows
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._run_lock = asyncio.Lock()  # held by the job that runs
        self._large = 0  # uploads that are being received

    @contextmanager
    def receiving(self) -> Generator[Callable[[int], None]]:
        """Receive an upload: a context whose value takes the number of bytes that have arrived.

        An upload takes a place in the queue once it has arrived, and one among the large uploads
        while it is received and is larger than ``SMALL_UPLOAD_BYTES``. So one that is never
        finished keeps none from those that are.

        Raises:
            Overloaded: The queue is full, or too many large uploads are being received.
        """
        self._check_room()
        is_large = False

        def count(size: int) -> None:
            nonlocal is_large
            if is_large or size <= SMALL_UPLOAD_BYTES:
                return
            if self._large >= MAX_LARGE:
                raise Overloaded(f"{MAX_LARGE} large uploads are being received; try again soon")
            self._large += 1
            is_large = True

        try:
            yield count
        finally:
            self._large -= is_large

    def _check_room(self) -> None:
        if len(self._tasks) > MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} calibrations already wait; try again soon")

    def submit(self, work: Work, created_at: str, upload_bytes: int) -> Job:
        """Queue work. A job that is cancelled while it waits still starts, to clean up.

        Raises:
            Overloaded: The queue is full.
        """
        self._check_room()
        job = Job(created_at, upload_bytes, self._small_rows)
        self._jobs[job.id] = job
        self._forget()
        task = asyncio.create_task(self._run(job, work), name=job.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def get(self, job_id: str) -> Job:
        """A job by its id. Raises :class:`NotFound`."""
        if job_id not in self._jobs:
            raise NotFound(
                f"no job {job_id[:64]!r}: jobs end with the gateway's process; GET /calibrations "
                "lists the calibrations that were stored",
                code="job_not_found",
            )
        return self._jobs[job_id]

    def all(self) -> list[Job]:
        """Every job that is remembered, newest first."""
        return list(reversed(self._jobs.values()))

    async def finishes_soon(self, job: Job) -> bool:
        """Wait for a small job to end; false as soon as it will take longer."""
        while not job.ended:
            if job.large or self._is_behind_large(job):
                return False
            with suppress(TimeoutError):  # an earlier job may turn out to be large meanwhile
                async with asyncio.timeout(_POLL_S):
                    await job.changed()
        return True

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job and wait for its end; it changes nothing then.

        Raises:
            NotFound: No such job.
            Conflict: It is done, or so far that it will be.
        """
        job = self.get(job_id)
        if job.status != "cancelled" and (job.ended or not job.progress.cancel()):
            raise Conflict(f"job {job.id} is too far to be cancelled; nothing was undone")
        while not job.ended:
            await job.changed()
        return job

    async def close(self) -> None:
        """Cancel all jobs and wait for their end."""
        for job in self._jobs.values():
            job.progress.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, work: Work) -> None:
        locked = await self._wait_to_run(job)
        try:
            job.status = "running"
            job.result = await work(job.progress)
        except JobCancelled as exc:
            job.end("cancelled", exc)
        except RacerError as exc:
            job.end("failed", exc)
        except Exception as exc:
            log.exception("a calibration failed unexpectedly")
            job.end("failed", exc)
        else:
            job.end("done")
        finally:
            if locked:
                self._run_lock.release()

    async def _wait_to_run(self, job: Job) -> bool:
        """Acquire the lock; false, and at once, if the job is cancelled and only cleans up."""
        acquiring = asyncio.create_task(self._run_lock.acquire())
        try:
            with job.progress.cancelling(acquiring.cancel):
                await asyncio.wait({acquiring})
        except JobCancelled:  # before it began to wait
            acquiring.cancel()
            await asyncio.wait({acquiring})
        return not acquiring.cancelled()

    def _is_behind_large(self, job: Job) -> bool:
        before = itertools.takewhile(lambda each: each is not job, self._jobs.values())
        return any(each.large and not each.ended for each in before)

    def _forget(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.ended]
        for name in ended[: max(0, len(self._jobs) - _MAX_JOBS)]:
            del self._jobs[name]


def _error_as_json(exc: Exception) -> dict[str, Any]:
    """An error as in the error envelope, with its HTTP status."""
    if not isinstance(exc, RacerError):
        exc = RacerError("internal error; see the gateway's log")
    status, body = error_envelope.envelope(exc)
    return {**body["error"], "status": status}


# Progress and cancellation of a calibration job, shared by its thread and the event loop.

_NOTIFY_EVERY_S: Final = 0.1
Phase = Literal["waiting", "reading", "scoring", "thresholds", "storing"]


class Stage(NamedTuple):
    """Where a job stands."""

    phase: Phase
    done: int = 0
    total: int = 0  # bytes while reading, rows while scoring; 0 if nothing is counted


class Progress:
    """Takes a job's reports, and raises in the middle of them once the job is cancelled.

    Args:
        on_change: Called, on any thread, when the phase changes and at most ten times a second when
            only the counts change.
    """

    def __init__(self, on_change: Callable[[], object]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._cancelled = False
        self._committed = False
        self._on_cancel: Callable[[], object] | None = None
        self._notified_at = 0.0
        self.stage = Stage("waiting")

    def __call__(self, phase: Phase, done: int = 0, total: int = 0) -> None:
        """Report progress. Raises :class:`JobCancelled`."""
        self.raise_if_cancelled()
        before, self.stage = self.stage.phase, Stage(phase, done, total)
        at = time.monotonic()
        if phase != before or at - self._notified_at >= _NOTIFY_EVERY_S:
            self._notified_at = at
            self._on_change()

    def raise_if_cancelled(self) -> None:
        """Raises :class:`JobCancelled`."""
        if self._cancelled:
            raise JobCancelled("the calibration was cancelled; nothing was changed")

    def commit(self) -> None:
        """Refuse to be cancelled from here on. Raises :class:`JobCancelled`."""
        with self._lock:
            self.raise_if_cancelled()
            self._committed = True

    def cancel(self) -> bool:
        """Cancel the job; false if it is too late."""
        with self._lock:
            if self._committed:
                return False
            self._cancelled = True
            if self._on_cancel is not None:
                self._on_cancel()
        return True

    @contextmanager
    def cancelling(self, on_cancel: Callable[[], object]) -> Generator[None]:
        """Call ``on_cancel`` if cancelled during the block: for work that rarely reports."""
        with self._lock:
            self.raise_if_cancelled()
            self._on_cancel = on_cancel
        try:
            yield
        finally:
            with self._lock:
                self._on_cancel = None
