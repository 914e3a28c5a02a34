"""Calibrations as jobs: one runs, a few wait, and anybody may ask how far they are.

Jobs live in this process. What a job stored is in the store; the job itself is forgotten with the
process, or once many others have ended after it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal

from app.calibrations.progress import Progress
from app.errors import Conflict, JobCancelled, NotFound, Overloaded
from app.wire import error_envelope
from racer_core.errors import RacerError

log = logging.getLogger(__name__)

SMALL_UPLOAD_BYTES: Final = 4 * 2**20
SMALL_ROWS: Final = 2_000
MAX_WAITING: Final = 8  # uploads that are taken in or wait for their turn
_REMEMBERED: Final = 64
_LOOK_EVERY_S: Final = 0.2

Status = Literal["waiting", "running", "done", "failed", "cancelled"]
Work = Callable[[Progress], Awaitable[dict[str, Any]]]


class Job:
    """One calibration under way. Belongs to the event loop; only its progress is told elsewhere."""

    def __init__(self, created_at: str, upload_bytes: int) -> None:
        self.id = f"job-{secrets.token_hex(8)}"
        self.created_at = created_at
        self._upload_bytes = upload_bytes
        self.status: Status = "waiting"
        self.result: dict[str, Any] | None = None
        self.error: Exception | None = None
        loop = asyncio.get_running_loop()
        self.progress = Progress(lambda: loop.call_soon_threadsafe(self._wake))
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Nothing will change any more."""
        return self.status in ("done", "failed", "cancelled")

    @property
    def large(self) -> bool:
        """Too large to wait for, as far as is known; how many rows it has is known late."""
        phase, _, total = self.progress.stage
        many = phase == "scoring" and total > SMALL_ROWS
        return many or self._upload_bytes > SMALL_UPLOAD_BYTES

    async def changed(self) -> None:
        """Wait for the next change that is worth telling."""
        await self._changed.wait()

    def end(self, status: Status) -> None:
        """Say how it ended."""
        self.status = status
        self._wake()

    def outcome(self) -> dict[str, Any]:
        """The result of a job that ended. Raises what it failed with."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def as_json(self) -> dict[str, Any]:
        """What may be told."""
        phase, done, total = self.progress.stage
        return {
            "id": self.id,
            "status": self.status,
            "created_at": self.created_at,
            "phase": phase,
            "done": done,
            "total": total,
            "result": self.result,
            "error": None if self.error is None else _told(self.error),
        }

    def _wake(self) -> None:
        """Wake who waits, each once."""
        self._changed.set()
        self._changed = asyncio.Event()


class Jobs:
    """The queue. Close it before what the jobs use."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._arriving = 0

    def arriving(self) -> Arrival:
        """A place for an upload while it is taken in. Raises :class:`Overloaded`."""
        if self._arriving + len(self._tasks) > MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} calibrations already wait; try again soon")
        return Arrival(self._count)

    def submit(self, work: Work, created_at: str, upload_bytes: int) -> Job:
        """Put work into the queue. It is begun even when it was cancelled, to clean up."""
        job = Job(created_at, upload_bytes)
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
                f"no job {job_id[:64]!r}: jobs end with the gateway's process; whether it stored "
                "its calibration, GET /calibrations tells",
                code="job_not_found",
            )
        return self._jobs[job_id]

    def all(self) -> list[Job]:
        """Every job that is remembered, newest first."""
        return list(reversed(self._jobs.values()))

    async def answers_soon(self, job: Job) -> bool:
        """Wait for a job as long as it is small; false where its answer will take longer."""
        while not job.ended:
            if job.large or self._behind_a_large_one(job):
                return False
            with suppress(TimeoutError):  # one before it may turn out to be large meanwhile
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await job.changed()
        return True

    async def cancel(self, job_id: str) -> Job:
        """End a job; nothing is changed by it then.

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
        """Cancel what runs and waits, and see it end."""
        for job in self._jobs.values():
            job.progress.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, work: Work) -> None:
        its_turn = await self._may_run(job)
        try:
            job.status = "running"
            job.result = await work(job.progress)
        except JobCancelled as exc:
            job.error = exc
            job.end("cancelled")
        except RacerError as exc:
            job.error = exc
            job.end("failed")
        except Exception as exc:
            log.exception("a calibration failed unexpectedly")
            job.error = exc
            job.end("failed")
        else:
            job.end("done")
        finally:
            if its_turn:
                self._turn.release()

    async def _may_run(self, job: Job) -> bool:
        """Wait for its turn; false, and at once, where it is cancelled: it only cleans up then."""
        turn = asyncio.create_task(self._turn.acquire())
        try:
            with job.progress.cancelling(turn.cancel):
                await asyncio.wait({turn})
        except JobCancelled:  # before it began to wait
            turn.cancel()
            await asyncio.wait({turn})
        return not turn.cancelled()

    def _behind_a_large_one(self, job: Job) -> bool:
        before = itertools.takewhile(lambda each: each is not job, self._jobs.values())
        return any(each.large and not each.ended for each in before)

    def _count(self, step: int) -> None:
        self._arriving += step

    def _forget(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.ended]
        for name in ended[: max(0, len(self._jobs) - _REMEMBERED)]:
            del self._jobs[name]


class Arrival:
    """``with`` it, an upload counts as one that waits."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *_: object) -> None:
        self._count(-1)


def _told(exc: Exception) -> dict[str, Any]:
    """An error as the envelope has it, with the status that it would have had."""
    if not isinstance(exc, RacerError):
        exc = RacerError("internal error; see the gateway's log")
    status, body = error_envelope.envelope(exc)
    return {**body["error"], "status": status}
