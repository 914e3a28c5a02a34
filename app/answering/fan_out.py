"""Calls a set and stops as soon as the vote is decided. Paper, Sec. 3.3.

The winning class is always that of the full vote: calls are cancelled, or never made, only when no
answer that is still out could change it (:mod:`racer_core.aggregation.early`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.errors import UpstreamError
from app.upstream.reply import Reply

log = logging.getLogger(__name__)

Call = Callable[[str], Awaitable[Reply]]


class StopRule(Protocol):
    """What decides a vote."""

    async def read(self, reply: Reply) -> str | None:
        """What a reply counts as."""
        ...

    def decided(self, results: FanOutResult, out: Sequence[str]) -> bool:
        """Whether no answer of those still out can change the winning class."""
        ...

    def wave(self, results: FanOutResult, left: Sequence[str]) -> int:
        """How many of those not yet called to call now; at least one."""
        ...


@dataclass(slots=True, kw_only=True)
class FanOutResult:
    """What a set gave."""

    replies: dict[str, Reply] = field(default_factory=dict[str, Reply])  # as they arrived
    forms: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    failures: dict[str, UpstreamError] = field(default_factory=dict[str, UpstreamError])
    cancelled: list[str] = field(default_factory=list[str])  # asked, then not waited for
    unasked: list[str] = field(default_factory=list[str])  # the vote was decided before
    seconds: float = 0.0  # that all calls together took


async def fan_out(
    names: Sequence[str],
    *,
    call: Call,
    vote: StopRule,
    into: FanOutResult | None = None,
) -> FanOutResult:
    """Ask these candidates, all at once or in waves, until the vote is decided.

    A failure is noted and does not fail the others. Cancelling cancels every call;
    ``into`` then says who had answered and who had not.

    Args:
        names: The candidates in the order in which waves take them.
        call: Asks one candidate.
        vote: Reads answers, and says when the vote is decided.
        into: Answers that are there already; new ones are added.
    """
    results = FanOutResult() if into is None else into
    left = list(names)
    out: dict[asyncio.Task[Reply], str] = {}
    try:
        while out or left:
            if not out:
                wave = left[: vote.wave(results, left)]
                left = left[len(wave) :]
                if len(wave) > 1:
                    out = {asyncio.ensure_future(_awaited(call(name))): name for name in wave}
                else:  # a call with nothing beside it needs no task
                    await _note(results, wave[0], call(wave[0]), vote)
            if out:
                done, _ = await asyncio.wait(out, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await _note(results, out.pop(task), task, vote)
            if any(task.done() for task in out):  # paid for and here: it votes too
                continue
            if vote.decided(results, [*out.values(), *left]):
                results.unasked += left
                break
    finally:
        if out:
            results.cancelled += out.values()
            for task in out:
                task.cancel()
            await asyncio.gather(*out, return_exceptions=True)
    return results


async def _awaited(call: Awaitable[Reply]) -> Reply:
    return await call


async def _note(results: FanOutResult, name: str, call: Awaitable[Reply], vote: StopRule) -> None:
    try:
        reply = await call
    except asyncio.CancelledError:
        results.cancelled.append(name)
        raise
    except UpstreamError as exc:
        results.failures[name] = exc
    except Exception:  # ours, but no reason to fail the others
        log.exception("a call to %s failed unexpectedly", name)
        results.failures[name] = UpstreamError(f"{name} could not be asked")
    else:
        results.replies[name] = reply
        results.forms[name] = await vote.read(reply)
