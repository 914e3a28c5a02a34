"""A client that leaves costs nothing: every call of its request is let go at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest

from tests.kit.gateway import DATA_KEY
from tests.kit.hostile.exchange import Entry, now

from .bench import Bench, Limits
from .catalogue import Row
from .cells import LET_GO_S, Cell, Width, body_of

PATIENT = Limits(candidate_s=60, request_s=60)  # no deadline of its own ends a call in time


async def leave(bench: Bench, gateway: str, cell: Cell) -> tuple[float, Sequence[Entry]]:
    """Send a request, disconnect once all calls have begun, and wait.

    Returns the time of the disconnect and the upstream's log.
    """
    upstream, selected = bench.upstream, cell.width.selected
    headers = {"authorization": f"Bearer {DATA_KEY}"}
    url = f"{gateway}/v1/chat/completions"
    async with aiohttp.ClientSession() as control:
        await upstream.plan(control, cell.name, dict.fromkeys(selected, cell.mode))
        async with aiohttp.ClientSession() as client:
            asking = asyncio.create_task(client.post(url, json=body_of(cell), headers=headers))
            log = await upstream.wait(
                control, cell.name, lambda log: len(log.entries) == len(selected), within_s=30
            )
            assert {each.model for each in log.entries} == set(selected)
            await asyncio.sleep(0.3)  # where something is sent, some of it has come
            left = now()
            asking.cancel()
            [answer] = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(answer, aiohttp.ClientResponse):  # a stream that had begun
                answer.close()
        log = await upstream.wait(
            control, cell.name, lambda log: not log.busy, within_s=3 * LET_GO_S
        )
    return left, log.entries


@pytest.mark.parametrize("mode", ["hang", "trickle_headers", "stall"])
def test_a_client_that_leaves_lets_every_call_go(bench: Bench, mode: str) -> None:
    """Plain or streaming, one candidate or two: the upstream sees the connection closed."""
    cells = [
        Cell(mode=mode, row=Row(plain=(), stream=()), width=width, streaming=streaming, limit_s=10)
        for streaming in (False, True)
        for width in (Width.ONE, Width.TWO)
    ]
    problems: list[str] = []
    with bench.gateway(f"leaving-{mode}", PATIENT) as gateway:
        for cell in cells:
            left, entries = asyncio.run(leave(bench, gateway.url, cell))
            for each in entries:
                if each.peer_closed is None:
                    problems.append(f"{cell.name}: {each.model} is still called")
                elif each.peer_closed - left > LET_GO_S:
                    problems.append(
                        f"{cell.name}: {each.model} after {each.peer_closed - left:.2f} s"
                    )
                elif each.peer_closed < left:
                    problems.append(f"{cell.name}: {each.model} was let go before the client left")
    assert not problems, "\n".join(problems)
