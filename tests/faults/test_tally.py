"""Certificates under chaos: none says that it holds where a premise failed.

Requests of every kind meet candidates that break in every way, and clients leave. What happened to
each call is read from the upstream's log, never from the gateway. ``RACER_TALLY_REQUESTS=10000``
asks more often.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import pytest

from tests.kit.gateway import DATA_KEY, ONE, POOL, TWO
from tests.kit.hostile.exchange import Entry
from tests.kit.hostile.server import THEN

from .bench import Bench, Limits
from .catalogue import GROUPS, Row, UsableAnswer

REQUESTS: Final = int(os.environ.get("RACER_TALLY_REQUESTS", "600"))
AT_ONCE: Final = 12
SOON: Final = Limits(candidate_s=1.0, request_s=2.0, connect_s=1.0)
# Floods take the machine's time and break as the others do.
ROWS: Final[dict[str, Row]] = {
    mode: row for name, rows in GROUPS.items() if "floods" not in name for mode, row in rows.items()
}
MODES: Final = [*ROWS]
SYSTEM: Final = {"role": "system", "content": "Answer in one word."}
EARLIER: Final = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRequest:
    """One request, the modes that it meets, and whether it breaks a premise by itself."""

    name: str
    body: dict[str, Any]
    modes: dict[str, str]
    unlike_rows: bool
    leaves_after_s: float | None


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of the requests."""

    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


def drawn(rng: random.Random, number: int) -> FaultRequest:
    """A request, its candidates' modes and its client's patience."""
    name = f"chaos {number}"
    body: dict[str, Any] = {
        "model": "auto",
        "messages": [{"role": "user", "content": rng.choice([ONE, TWO])}],
        "stream": rng.random() < 0.5,
        "user": name,
    }
    # At this alpha the whole pool is called.
    racer: dict[str, Any] = {"alpha": 0.001} if rng.random() < 0.5 else {}
    twist = rng.choice(["temperature", "system", "earlier", "tools", *[""] * 16])
    match twist:
        case "temperature":
            body["temperature"] = 0.7
        case "system":
            body["messages"] = [SYSTEM, *body["messages"]]
        case "earlier":
            body["messages"] = [*EARLIER, *body["messages"]]
        case "tools":
            body["tools"] = [{"type": "function", "function": {"name": "add"}}]
        case _ if body["stream"] and rng.random() < 0.1:
            racer["stream"] = "leader"
        case _:
            pass
    return FaultRequest(
        name=name,
        body=body | ({"racer": racer} if racer else {}),
        modes={candidate: _mode(rng) for candidate in POOL},
        unlike_rows=bool(twist),
        leaves_after_s=rng.uniform(0.0, 0.02) if rng.random() < 0.1 else None,
    )


def _mode(rng: random.Random) -> str:
    """Most are healthy and agree; some break, and some of these are mended by a retry."""
    if rng.random() < 0.6:
        return rng.choice(["healthy:42", "healthy:42", "healthy:43"])
    broken = rng.choice(MODES)
    return f"{broken}{THEN}healthy:42" if rng.random() < 0.2 else broken


def may_have_answered(entry: Entry) -> bool:
    """Whether a call with this mode can have given a usable answer."""
    if entry.mode.startswith("healthy"):
        return True
    row = ROWS[entry.mode]
    return any(
        isinstance(each, UsableAnswer) for each in (row.stream if entry.stream else row.plain)
    )


def broken_premise(
    request: FaultRequest, racer: dict[str, Any], entries: Sequence[Entry]
) -> str | None:
    """Why a certificate may not hold; None when it may.

    A candidate that gave nothing is no failure of the set where the vote was decided without it:
    the winner leads by more votes than are missing, or by as many and wins every tie.
    """
    if request.unlike_rows:
        return "the request is unlike the rows"
    selected: list[str] = racer["selected"]
    answered = {each.model for each in entries if may_have_answered(each)}
    silent = [name for name in selected if name not in answered]
    if not silent:
        return None
    votes = sorted(racer["votes"].values(), reverse=True)
    lead = votes[0] - sum(votes[1:2]) if votes else 0
    if lead > len(silent) or (lead == len(silent) and _wins_ties(racer, silent)):
        return None
    return f"{silent} gave nothing, and the votes were {racer['votes']}"


def _wins_ties(racer: dict[str, Any], silent: Sequence[str]) -> bool:
    """Of equal votes the highest score wins, then the first name."""
    scores: dict[str, float] = racer["pool_scores"]
    first = min([racer["served_by"], *silent], key=lambda name: (-scores[name], name))
    return bool(racer["served_by"] == first)


async def ask(
    bench: Bench, session: aiohttp.ClientSession, gateway: str, request: FaultRequest, tally: Tally
) -> None:
    """Ask, and hold what is answered against the log."""
    await bench.upstream.plan(session, request.name, request.modes)
    data = b""
    patience = asyncio.timeout(request.leaves_after_s)
    with contextlib.suppress(TimeoutError):
        async with (
            patience,
            session.post(
                f"{gateway}/v1/chat/completions",
                json=request.body,
                headers={"authorization": f"Bearer {DATA_KEY}"},
            ) as answer,
        ):
            data = await answer.read()
    if patience.expired():
        tally.counts["left"] += 1
        return
    racer = certified(data, streaming=request.body["stream"])
    if racer is None:
        tally.counts["error"] += 1
        return
    log = await bench.upstream.log(session, request.name)
    broken = broken_premise(request, racer, log.entries)
    holds = racer["certificate"]["holds"]
    tally.counts[f"{'holds' if holds else 'void'}, premises {'failed' if broken else 'held'}"] += 1
    if holds and broken:
        tally.wrong.append(f"{request.name}: {broken}; {request.modes}, {json.dumps(racer)}")


def certified(data: bytes, *, streaming: bool) -> dict[str, Any] | None:
    """The ``racer`` object of an answer, or of a stream's last event; None in an error."""
    if not data.startswith((b"data:", b":")):
        return json.loads(data).get("racer")
    assert streaming
    events = [each for each in data.decode().split("\n\n") if each.startswith("data: {")]
    chunks: list[dict[str, Any]] = [json.loads(each.removeprefix("data: ")) for each in events]
    return next((each["racer"] for each in chunks if "racer" in each), None)


async def chaos(bench: Bench, gateway: str, count: int, seed: int) -> Tally:
    """Send ``count`` random requests, a few at a time."""
    tally, rng = Tally(), random.Random(seed)
    requests = (drawn(rng, number) for number in range(count))

    async def client(session: aiohttp.ClientSession) -> None:
        for request in requests:  # shared: each request is asked by one of them
            await ask(bench, session, gateway, request, tally)

    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, trust_env=False) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(AT_ONCE):
            group.create_task(client(session))
    return tally


@pytest.mark.timeout(300 + REQUESTS)
def test_no_certificate_holds_where_a_premise_failed(bench: Bench) -> None:
    """Not one; and the chaos was one: each kind of end came often enough to see it."""
    replicas = [f"{bench.upstream.url}/{place}/v1" for place in ("first", "second")]
    with bench.gateway("tally", SOON, replicas=replicas) as gateway:
        tally = asyncio.run(chaos(bench, gateway.url, REQUESTS, seed=20260201))
    sys.stdout.write(f"{REQUESTS} requests: {dict(sorted(tally.counts.items()))}\n")
    assert not tally.wrong, "\n".join(tally.wrong[:20])
    assert sum(tally.counts.values()) == REQUESTS
    kinds = ("holds, premises held", "void, premises failed", "error", "left")
    assert all(tally.counts[kind] > REQUESTS / 50 for kind in kinds), tally.counts
