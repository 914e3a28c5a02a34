"""One cell of the matrix: a mode, a kind of request, a number of candidates; asked and noted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import aiohttp

from tests.kit.gateway import DATA_KEY, ONE, POOL, TWO
from tests.kit.hostile.process import FaultyUpstream, Log

from .catalogue import Row

FAULTY: Final = "adder"  # of equal votes it wins, so that its answer always could change the result
LET_GO_S: Final = 1.0  # ten times the goal of 100 ms


class Width(StrEnum):
    """How many candidates are selected, and who is faulty: one that others stand in for, or all."""

    ONE = "one"
    TWO = "two"
    THREE = "three"
    ALL = "two, all faulty"

    @property
    def selected(self) -> tuple[str, ...]:
        """The candidates that the router selects."""
        return POOL[: {Width.ONE: 1, Width.THREE: 3}.get(self, 2)]

    @property
    def faulty(self) -> tuple[str, ...]:
        """The candidates that have the mode."""
        return (FAULTY,) if self in (Width.TWO, Width.THREE) else POOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is asked.

    Attributes:
        mode: A mode of the upstream, or a place.
        row: What may come of it.
        limit_s: The request's deadline, with ten times the slack that is promised.
        at_a_place: The faulty candidate is not at the upstream at all.
    """

    mode: str
    row: Row
    width: Width
    streaming: bool
    limit_s: float
    at_a_place: bool = False

    @property
    def modes(self) -> dict[str, str]:
        """How the upstream behaves. The healthy disagree, so that each answer counts."""
        texts = {"speller": "healthy:43", "poet": "healthy:44"}
        return texts | ({} if self.at_a_place else dict.fromkeys(self.width.faulty, self.mode))

    @property
    def name(self) -> str:
        """The cell in a report, and in the upstream's log."""
        mode = self.mode if len(self.mode) < 40 else f"{self.mode[:37]}..."
        return f"{mode} / {'stream' if self.streaming else 'plain'} / {self.width}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of it.

    Attributes:
        broken: How the client's connection failed, if it did.
        seconds: From the first byte of the request to the last of the answer.
        log: The upstream's log of the cell, once all were let go or the time for it is over;
            a warming request is not in it.
    """

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    broken: str | None = None
    seconds: float = 0.0
    log: Log = field(default_factory=Log)

    def is_late(self, cell: Cell) -> bool:
        """Over the upper time bound of its cell."""
        return self.seconds > cell.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The upstream that the candidates have, and a client for it and for gateways."""

    upstream: FaultyUpstream
    session: aiohttp.ClientSession

    async def look(self, cell: Cell, gateway: str) -> Seen:
        """Ask one cell of the gateway at this address."""
        await self.upstream.plan(self.session, cell.name, cell.modes)
        if cell.row.warm:
            await self._ask(cell, gateway)
        before = len((await self.upstream.log(self.session, cell.name)).entries)
        seen = await self._ask(cell, gateway)
        log = await self.upstream.wait(
            self.session, cell.name, lambda log: not log.busy, within_s=LET_GO_S
        )
        return replace(seen, log=log.without(before))

    async def _ask(self, cell: Cell, gateway: str) -> Seen:
        started = time.monotonic()
        parts: list[bytes] = []
        status, headers, broken = 0, dict[str, str](), None
        try:
            async with self.session.post(
                f"{gateway}/v1/chat/completions",
                json=body_of(cell),
                headers={"authorization": f"Bearer {DATA_KEY}"},
                timeout=aiohttp.ClientTimeout(total=cell.limit_s * 3),
            ) as answer:
                status = answer.status
                headers = {name.lower(): value for name, value in answer.headers.items()}
                async for part in answer.content.iter_any():
                    parts.append(part)
        except (aiohttp.ClientError, TimeoutError) as exc:
            broken = repr(exc)
        return Seen(
            status=status,
            headers=headers,
            body=b"".join(parts),
            broken=broken,
            seconds=time.monotonic() - started,
        )


def body_of(cell: Cell) -> dict[str, Any]:
    """The request; ``user`` passes through to the upstream and breaks no premise."""
    text = ONE if cell.width is Width.ONE else TWO
    body: dict[str, Any] = {
        "model": "auto",
        "messages": [{"role": "user", "content": text}],
        "user": cell.name,
        "stream": cell.streaming,
    }
    if cell.width is Width.THREE:
        body["racer"] = {"alpha": 0.001}  # too few rows for it: the whole pool is called
    return body
