"""A call to a candidate or evaluator, and one attempt of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from app.concurrency.memory_budget import MemoryBudget
from app.concurrency.threads import SMALL_BYTES
from app.telemetry.tracing import CallSpan
from app.upstream.http_client import UpstreamAnswer
from app.upstream.replicas import Replica, Target


class CallMeter(Protocol):
    """Measures the calls of one request."""

    def attempted(self, candidate: str, seconds: float, exc: BaseException | None) -> None:
        """Take an attempt that ended.

        Args:
            candidate: Its candidate.
            seconds: Its duration, without the time that it waited to be sent.
            exc: What ended it; None: it was answered.
        """
        ...


@dataclass(slots=True, kw_only=True)
class UpstreamCall:
    """A call to a target, over all its attempts."""

    name: str  # in errors and metrics
    caller: str
    target: Target
    path: str
    model: object  # the requested model
    data: bytes
    timeout_s: float  # of an attempt, or of all of them
    is_timed_in_all: bool
    deadline: float
    conversation: bytes | None  # its key; None: a single turn, or one replica
    tried: list[Replica]
    buffers: MemoryBudget  # of large payloads and answers
    meter: CallMeter | None = None
    span: CallSpan | None = None  # of the latest attempt

    def __enter__(self) -> Self:
        """Count a large payload as buffered. Raises UpstreamError."""
        self.buffers.reserve(self._buffered)
        return self

    def __exit__(self, *_: object) -> None:
        self.buffers.release(self._buffered)

    @property
    def _buffered(self) -> int:
        size = len(self.data)
        return size if size > SMALL_BYTES else 0


class Attempt:
    """One attempt of a call: a context in which it is sent and its answer read.

    A class, since generators as contexts cost more than the call itself.

    Args:
        call: The call.
        end: Records what came of it, once a replica was chosen; gets the exception that ended the
            context.
    """

    __slots__ = ("_end", "answer", "call", "limit_s", "replica", "started")

    started: float  # a ``time.monotonic()``
    limit_s: float

    def __init__(
        self, call: UpstreamCall, end: Callable[[Attempt, Replica, BaseException | None], None]
    ) -> None:
        self.call = call
        self.replica: Replica | None = None
        self.answer: UpstreamAnswer | None = None
        self._end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        if self.replica is not None:
            self._end(self, self.replica, exc)
