"""Databases of tests: a file, and a PostgreSQL server of one's own where one is installed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

_DEBIAN: Final = Path("/usr/lib/postgresql")
WHY_NOT: Final = "PostgreSQL's server is not installed: apt-get install postgresql"


def binaries() -> Path | None:
    """Where ``initdb`` and ``postgres`` are; None where they are not installed."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb")) if _DEBIAN.is_dir() else []
    return versions[-1].parent if versions else None


class Postgres:
    """A server on a free port, with a password, in a folder that goes with it.

    It refuses to run as root, so root starts it as Debian's user ``postgres``.
    """

    def __init__(self) -> None:
        found = binaries()
        assert found is not None, WHY_NOT
        self._binaries = found
        self._folder = Path(tempfile.mkdtemp(prefix="racer-postgres-"))
        self._password = secrets.token_hex(8)
        self.port = free_port()
        if os.geteuid() == 0:
            shutil.chown(self._folder, "postgres")
        given = self._folder / "password"
        given.write_text(self._password, encoding="ascii")
        given.chmod(0o644)
        data = self._folder / "data"
        options = ["--auth=scram-sha-256", f"--pwfile={given}", "--username=racer", "--no-sync"]
        self._run("initdb", f"--pgdata={data}", "--encoding=UTF8", *options)
        with (data / "postgresql.conf").open("a", encoding="ascii") as settings:
            settings.write(
                f"port={self.port}\nlisten_addresses='127.0.0.1'\nfsync=off\n"
                f"unix_socket_directories='{self._folder}'\nmax_connections=200\n"
            )

    def url(self, database: str = "postgres") -> str:
        """Of one database, as the store takes it."""
        return f"postgresql://racer:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Return once it answers."""
        log, data = self._folder / "log", self._folder / "data"
        self._run("pg_ctl", "start", f"--pgdata={data}", f"--log={log}", "--wait", "--timeout=60")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: ``immediate`` as a crash would, ``fast`` as an operator does."""
        data = self._folder / "data"
        self._run("pg_ctl", "stop", f"--pgdata={data}", f"--mode={mode}", "--wait")

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Connected as ever, and silent."""
        pids = self._pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        """The server's own process, first, and one for every connection."""
        first = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        parents = {
            int(each.parent.name): int(each.read_text().rpartition(")")[2].split()[1])
            for each in Path("/proc").glob("[0-9]*/stat")
        }
        return [first, *(pid for pid, parent in parents.items() if parent == first)]

    def create(self) -> str:
        """An empty database's URL."""
        name = f"racer_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def remove(self) -> None:
        """Delete its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        if os.geteuid() == 0:
            command = [
                "setpriv",
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                *command,
            ]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, check=False, timeout=120
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)


@contextmanager
def postgres() -> Generator[Postgres]:
    """A running server."""
    server = Postgres()
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.remove()


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
