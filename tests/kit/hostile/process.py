"""The faulty upstream as a process, and the places where no upstream answers at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from .exchange import Entry, now

ROOT: Final = Path(__file__).parents[3]
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the upstream noted."""

    entries: tuple[Entry, ...] = ()
    trapped: int = 0  # connections to the trap, of all cells

    @property
    def busy(self) -> list[str]:
        """The candidates whose connection is open with work to do."""
        return [
            each.model
            for each in self.entries
            if each.finished is None and each.peer_closed is None
        ]

    def without(self, first: int) -> Log:
        """The same without the first entries."""
        return replace(self, entries=self.entries[first:])


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyUpstream:
    """A running upstream, and its control."""

    url: str
    tls_url: str | None
    process: subprocess.Popen[str]

    async def plan(
        self, session: aiohttp.ClientSession, cell: str, modes: Mapping[str, str]
    ) -> None:
        """Say how models behave for the requests of a cell."""
        async with session.put(f"{self.url}/_plan", json={"cell": cell, "modes": modes}) as done:
            done.raise_for_status()

    async def log(self, session: aiohttp.ClientSession, cell: str) -> Log:
        """What the upstream was asked for a cell."""
        async with session.get(f"{self.url}/_log", params={"cell": cell}) as answer:
            told: dict[str, Any] = await answer.json(content_type=None)
        entries = [Entry(**each) for each in told["entries"]]
        return Log(entries=tuple(entries), trapped=told["trapped"])

    async def wait(
        self,
        session: aiohttp.ClientSession,
        cell: str,
        until: Callable[[Log], bool],
        *,
        within_s: float,
    ) -> Log:
        """The log once it is so, or as it is when the time is over."""
        deadline = now() + within_s
        while True:
            log = await self.log(session, cell)
            if until(log) or now() > deadline:
                return log
            await asyncio.sleep(_LOOK_S)


@contextmanager
def upstream(certificate: Path | None = None) -> Generator[FaultyUpstream]:
    """Run an upstream; with a certificate it speaks TLS on a second port."""
    extra = [] if certificate is None else ["--certificate", str(certificate)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.hostile.server", *extra],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # leaving closes its standard input, at which it ends
        assert process.stdout is not None
        addresses: dict[str, str] = json.loads(process.stdout.readline())
        try:
            yield FaultyUpstream(
                url=addresses["url"], tls_url=addresses.get("tls_url"), process=process
            )
        finally:
            process.kill()


@contextmanager
def frozen() -> Generator[str]:
    """The address of a stopped upstream: the kernel accepts, the process does not answer."""
    with upstream() as running:
        running.process.send_signal(signal.SIGSTOP)
        try:
            yield running.url
        finally:
            os.kill(running.process.pid, signal.SIGCONT)


@contextmanager
def refusing() -> Generator[str]:
    """An address whose port is bound but not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def black_hole() -> Generator[str]:
    """An address at which packets are dropped: a queue of one, which is taken, is never emptied."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address: tuple[str, int] = listener.getsockname()
        stack.enter_context(socket.create_connection(address))
        yield f"http://127.0.0.1:{address[1]}"


def certify(folder: Path) -> Path:
    """Make a self-signed certificate with its key in one file."""
    path = folder / "self-signed.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 "
        f"-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {path} -out {path}.crt"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path
