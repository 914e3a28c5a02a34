"""Test bed of the fault matrix: upstream, gateways, and concurrent cells."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import aiohttp

from tests.kit.gateway import ENVIRONMENT, Gateway, candidates, configure, running
from tests.kit.hostile.process import (
    FaultyUpstream,
    black_hole,
    certify,
    frozen,
    refusing,
    upstream,
)

from .catalogue import GROUPS, PLACES, Row
from .cells import Cell, Matrix, Seen, Width
from .judge import ANSWER_BYTES, CANDIDATE_KEY

SLACK_S: Final = 2.5  # ten times what is promised
AT_ONCE: Final = 8
# A flood that holds up its gateway would make the cells beside it late.
AT_ONCE_OF: Final = dict.fromkeys(GROUPS, AT_ONCE) | {"floods": 2, "interim_floods": 1}
_KEY: Final = "RACER_TEST_CANDIDATE_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a gateway allows its candidates."""

    candidate_s: float = 2.0  # a call
    request_s: float = 4.0  # a request, retries included
    connect_s: float = 2.0  # a connection
    answer_bytes: int = ANSWER_BYTES


USUAL: Final = Limits()
# Where no time runs out: a busy machine may take long, and no answer is late for it.
PATIENT: Final = Limits(candidate_s=20, request_s=30, connect_s=10)
# Where nothing answers at all, that is found out before the time for a call is over.
IMPATIENT: Final = Limits(connect_s=0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The upstream, and what gateways in front of it start from."""

    folder: Path
    artifact: Path
    upstream: FaultyUpstream

    @property
    def store(self) -> Path:
        """A store in which a calibration is active."""
        return self.folder / "calibrated" / "racer.db"

    @contextmanager
    def gateway(
        self,
        name: str,
        limits: Limits = USUAL,
        moved: Mapping[str, str] | None = None,
        replicas: Sequence[str] | None = None,
    ) -> Generator[Gateway]:
        """A calibrated gateway; see :meth:`configure`."""
        path = self.configure(name, limits, moved, replicas)
        with running(path, self.environment) as gateway:
            _complete(gateway)
            yield gateway

    def configure(
        self,
        name: str,
        limits: Limits = USUAL,
        moved: Mapping[str, str] | None = None,
        replicas: Sequence[str] | None = None,
        **changes: Any,
    ) -> Path:
        """Write a configuration; a calibration is active in its store.

        Args:
            name: Of a folder.
            limits: How long, and how much.
            moved: Candidates that are not at the upstream but at these base URLs.
            replicas: Where every candidate is, instead of at one URL.
            changes: Other fields of the configuration.
        """
        path = configure(
            self.folder / name,
            self.artifact,
            self.upstream.url,
            candidates=candidates(
                f"{self.upstream.url}/v1",
                timeout_s=limits.candidate_s,
                api_key_env=_KEY,
                **({} if replicas is None else {"base_url": None, "base_urls": [*replicas]}),
                **{each: {"base_url": url} for each, url in (moved or {}).items()},
            ),
            limits={"answer_bytes": limits.answer_bytes, "deadline_s": limits.request_s},
            # No candidate is taken out by the few failures of its own cells.
            fleet={"failures": 100, "connect_timeout_s": limits.connect_s},
            # The same few queries over and over would rightly be called a drift.
            watching={"decisions": False, "false_alarm": None},
            **changes,
        )
        if self.store.exists():
            shutil.copy(self.store, path.parent)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """The keys."""
        return ENVIRONMENT | {_KEY: CANDIDATE_KEY}


@contextmanager
def open_bench(folder: Path, artifact: Path) -> Generator[Bench]:
    """Start the upstream, and calibrate once for all gateways."""
    with upstream(certify(folder)) as faulty:
        bench = Bench(folder=folder, artifact=artifact, upstream=faulty)
        with bench.gateway(bench.store.parent.name) as gateway:
            gateway.calibrate(120)
        yield bench


def look_at_modes(bench: Bench, rows: Mapping[str, Row], *, at_once: int) -> dict[Cell, Seen]:
    """All cells of these modes.

    A mode that fails has a gateway of its own, so that no failure adds to another's. So has a cell
    that needs a warm connection, so that it takes its own.
    """
    with ExitStack() as stack:
        gateways: dict[str, str] = {}
        places: dict[Cell, str] = {}
        for mode, row in rows.items():
            limits = USUAL if row.must_be_late else PATIENT
            for cell in cells_of(mode, row, limits):
                owner = cell.name if row.warm else mode if row.can_fail else ""
                if owner not in gateways:
                    name = f"{_safe(mode)}-{len(gateways)}"
                    gateway = stack.enter_context(bench.gateway(name, limits))
                    gateways[owner] = gateway.url
                places[cell] = gateways[owner]
        return _look(bench, places, at_once)


def look_at_place(bench: Bench, name: str) -> dict[Cell, Seen]:
    """All cells of a place. Each has a gateway: what cannot be reached is soon not tried again."""
    limits = IMPATIENT if name == "black_hole" else USUAL
    with ExitStack() as stack:
        url = stack.enter_context(place(bench, name))
        places: dict[Cell, str] = {}
        for number, cell in enumerate(cells_of(name, PLACES[name], limits, at_a_place=True)):
            moved = dict.fromkeys(cell.width.faulty, url)
            gateway = stack.enter_context(bench.gateway(f"{name}-{number}", limits, moved))
            places[cell] = gateway.url
        return _look(bench, places, AT_ONCE)


def cells_of(mode: str, row: Row, limits: Limits, *, at_a_place: bool = False) -> list[Cell]:
    """A mode, plain and streaming, for every number of candidates."""
    return [
        Cell(
            mode=mode,
            row=row,
            width=width,
            streaming=streaming,
            limit_s=limits.request_s + SLACK_S,
            at_a_place=at_a_place,
        )
        for streaming in (False, True)
        for width in Width
    ]


@contextmanager
def place(bench: Bench, name: str) -> Generator[str]:
    """The address of a place where no upstream answers."""
    with ExitStack() as stack:
        match name:
            case "refused":
                url = stack.enter_context(refusing())
            case "black_hole":
                url = stack.enter_context(black_hole())
            case "no_such_name":
                url = "http://no-such-host.invalid"
            case "frozen":
                url = stack.enter_context(frozen())
            case "tls_to_a_plain_port":
                url = bench.upstream.url.replace("http:", "https:")
            case "bad_certificate":
                assert bench.upstream.tls_url is not None
                url = bench.upstream.tls_url
            case _:
                raise ValueError(name)
        yield f"{url}/v1"


def _look(bench: Bench, places: Mapping[Cell, str], at_once: int) -> dict[Cell, Seen]:
    """Ask cells at their gateways, some at a time.

    Where one was late, all are asked once more, and the late ones judged by that: the machine may
    have stood still. A gateway that holds up its clients does so the second time, too.
    """

    async def all_of_them() -> dict[Cell, Seen]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            matrix = Matrix(upstream=bench.upstream, session=session)
            turn = asyncio.Semaphore(at_once)

            async def one(cell: Cell, url: str) -> Seen:
                async with turn:
                    return await matrix.look(cell, url)

            async def look_at_all() -> dict[Cell, Seen]:
                seen = await asyncio.gather(*(one(cell, url) for cell, url in places.items()))
                return dict(zip(places, seen, strict=True))

            found = await look_at_all()
            late = [cell for cell, seen in found.items() if seen.is_late(cell)]
            again = await look_at_all() if late else {}
            return found | {cell: again[cell] for cell in late}

    return asyncio.run(all_of_them())


def _complete(gateway: Gateway) -> None:
    """The first request builds what the next ones pass: one gateway of a process after another."""
    with urlopen(f"{gateway.url}/healthz", timeout=10) as answer:
        assert answer.status == 200


def _safe(mode: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in mode[:40])
