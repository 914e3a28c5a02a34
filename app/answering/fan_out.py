"""Concurrent fan-out with early stopping: calls candidates until the vote is decided. Sec. 3.3.

The winning class is always that of the full vote. Calls are cancelled or skipped only when no
outstanding answer could change it (:mod:`racer_core.aggregation.early`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.errors import UpstreamError
from app.upstream.reply import Reply
from app.wire.format import AnswerKind

log = logging.getLogger(__name__)

Call = Callable[[str], Coroutine[Any, Any, Reply]]


class StopRule(Protocol):
    """Decides when the answers so far decide the vote."""

    async def read(self, reply: Reply) -> str | None:
        """The normal form of a reply."""
        ...

    def decided(self, results: FanOutResult, out: Sequence[str]) -> bool:
        """Whether no outstanding answer, of ``out``, can change the winning class."""
        ...

    def wave(self, results: FanOutResult, left: Sequence[str]) -> Sequence[str]:
        """The candidates of ``left`` to call now; at least one."""
        ...

    @property
    def hurry_s(self) -> float | None:
        """Seconds until further candidates are called beside a slow wave; None: never."""
        ...

    def hurry(self) -> Sequence[str]:
        """These candidates, all of them not called yet."""
        ...


@dataclass(slots=True, kw_only=True)
class FanOutResult:
    """Replies, failures and unfinished calls of a set."""

    replies: dict[str, Reply] = field(default_factory=dict[str, Reply])  # in order of arrival
    forms: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    failures: dict[str, UpstreamError] = field(default_factory=dict[str, UpstreamError])
    cancelled: list[str] = field(default_factory=list[str])  # called, then not waited for
    skipped: list[str] = field(default_factory=list[str])  # not called: the vote was decided before
    seconds: float = 0.0  # that all calls together took

    def has(self, name: str) -> bool:
        """Whether a candidate's call has ended."""
        return name in self.replies or name in self.failures

    def joined(self, later: FanOutResult) -> FanOutResult:
        """These and later results, without a change of either."""
        return FanOutResult(
            replies=self.replies | later.replies,
            forms=self.forms | later.forms,
            failures=self.failures | later.failures,
            cancelled=[*self.cancelled, *later.cancelled],
            skipped=[*self.skipped, *later.skipped],
            seconds=self.seconds + later.seconds,
        )

    def is_unanswered_by(self, names: Collection[str]) -> bool:
        """Whether all of these candidates replied, and none with an answer or a refusal."""
        for name in names:
            if name not in self.replies or self.replies[name].kind >= AnswerKind.REFUSAL:
                return False
        return bool(names)


async def fan_out(
    names: Sequence[str],
    *,
    call: Call,
    vote: StopRule,
    into: FanOutResult | None = None,
) -> FanOutResult:
    """Call these candidates, all at once or in waves, until the vote is decided.

    A failed call is recorded and does not fail the others. Cancellation cancels every call;
    ``into`` then has the replies so far and the cancelled candidates.

    Args:
        names: The candidates in the order in which waves take them.
        call: Calls one candidate.
        vote: Reads replies, and decides when to stop.
        into: Results of earlier calls; new ones are added. None begins anew.
    """
    results = FanOutResult() if into is None else into
    left = list(names)
    out: dict[asyncio.Task[Reply], str] = {}
    hurry_s = vote.hurry_s
    has_rounds = hurry_s is not None
    try:
        while out or left:
            if not out:
                wave = vote.wave(results, left)
                left = _without(left, wave) if has_rounds else left[len(wave) :]
                if hurry_s is not None:
                    hurry_s = vote.hurry_s
                if len(wave) > 1 or has_rounds:
                    out = {asyncio.create_task(call(name)): name for name in wave}
                else:  # a call with nothing beside it needs no task
                    await _collect(results, wave[0], call(wave[0]), vote)
            if out:
                done, _ = await asyncio.wait(
                    out, timeout=hurry_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and (hurry_s := vote.hurry_s):
                    continue  # what is left to wait for may have changed
                if not done:
                    further, hurry_s = vote.hurry(), None
                    left = _without(left, further)
                    out |= {asyncio.create_task(call(name)): name for name in further}
                elif hurry_s is not None:
                    hurry_s = vote.hurry_s
                for task in done:
                    await _collect(results, out.pop(task), task, vote)
            if any(task.done() for task in out):  # a reply that has arrived votes too
                continue
            if vote.decided(results, [*out.values(), *left]):
                results.skipped += left
                break
    finally:
        if out:
            results.cancelled += out.values()
            for task in out:
                task.cancel()
            await asyncio.gather(*out, return_exceptions=True)
    return results


def _without(names: Sequence[str], called: Sequence[str]) -> list[str]:
    return [name for name in names if name not in called]


async def _collect(
    results: FanOutResult, name: str, call: Awaitable[Reply], vote: StopRule
) -> None:
    try:
        reply = await call
    except asyncio.CancelledError:
        results.cancelled.append(name)
        raise
    except UpstreamError as exc:
        results.failures[name] = exc
    except Exception:  # our own fault, but no reason to fail the other calls
        log.exception("a call to %s failed unexpectedly", name)
        results.failures[name] = UpstreamError(f"{name} could not be called")
    else:
        results.replies[name] = reply
        results.forms[name] = await vote.read(reply)
