"""Databases: PostgreSQL and PgBouncer where they are installed, and hooks in SQL statements."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, event, make_url

from tests.kit.network import free_port
from tests.kit.waiting import wait_while_running

_DEBIAN: Final = Path("/usr/lib/postgresql")
WHY_NOT: Final = "PostgreSQL's server is not installed: apt-get install postgresql"
NO_POOLER: Final = "PgBouncer is not installed: apt-get install pgbouncer"


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
    def stopped(self, mode: str = "immediate") -> Generator[None]:
        """No database meanwhile."""
        self.stop(mode)
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def standby(self) -> Generator[None]:
        """It is a standby, as after a failover to another server, and is promoted at the end."""
        data = self._folder / "data"
        self.stop("fast")
        (data / "standby.signal").touch()
        self.start()
        try:
            yield
        finally:
            self._run("pg_ctl", "promote", f"--pgdata={data}", "--wait")

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Connected as ever, and silent."""
        pids = self._pids()
        try:
            _signal(pids, signal.SIGSTOP)
            yield
        finally:
            _signal(pids, signal.SIGCONT)

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
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, *statements: str) -> None:
        """Run statements as its superuser, in a database of its own."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            for each in statements:
                connection.execute(each.encode())

    def remove(self) -> None:
        """Delete its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        _run(self._folder, str(self._binaries / program), *arguments)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to these processes; those of connections may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class PgBouncer:
    """PgBouncer in transaction mode before a server: sessions belong to a transaction each.

    It refuses to run as root, too.
    """

    def __init__(self, server: Postgres) -> None:
        program = pgbouncer()
        assert program is not None, NO_POOLER
        self._folder = Path(tempfile.mkdtemp(prefix="racer-pgbouncer-"))
        self.port = free_port()
        url = make_url(server.url())
        (self._folder / "users").write_text(f'"{url.username}" "{url.password}"\n')
        (self._folder / "settings").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            "pool_mode = transaction\nauth_type = scram-sha-256\n"
            f"auth_file = {self._folder / 'users'}\nunix_socket_dir =\n"
            f"logfile = {self._folder / 'log'}\n"
            # Few sessions, which change hands, and none for long: each database has its own.
            "default_pool_size = 8\nserver_idle_timeout = 1\nserver_login_retry = 1\n"
        )
        if os.geteuid() == 0:
            for path in (self._folder, *self._folder.iterdir()):
                shutil.chown(path, "postgres")
        self._command = _unprivileged(str(program), "--quiet", "settings")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it answers."""
        self._process = subprocess.Popen(self._command, cwd=self._folder)
        wait_while_running(self._is_answering, self._process)

    def stop(self) -> None:
        """At once, with every connection."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def url(self, url: str) -> str:
        """The URL of the same database through it."""
        return make_url(url).set(port=self.port).render_as_string(hide_password=False)

    def remove(self) -> None:
        """Delete its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_answering(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def pgbouncer() -> Path | None:
    """The program; None where it is not installed."""
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    return None if found is None else Path(found)


@contextmanager
def pooled(server: Postgres) -> Generator[PgBouncer]:
    """A running PgBouncer before a server."""
    pooler = PgBouncer(server)
    try:
        pooler.start()
        yield pooler
        pooler.stop()
    finally:
        pooler.remove()


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


def _run(folder: Path, *command: str) -> None:
    whole = _unprivileged(*command)
    done = subprocess.run(whole, cwd=folder, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def _unprivileged(*command: str) -> tuple[str, ...]:
    """A command that root runs as Debian's user ``postgres``."""
    as_postgres = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
    return (*as_postgres, *command) if os.geteuid() == 0 else command


@contextmanager
def before_statements(database: str, callback: Callable[[str], None]) -> Generator[None]:
    """Call ``callback`` with each statement that is about to run on a database.

    Statements of the callback itself are left out, and those that set limits of a transaction.
    """
    name = make_url(database).database
    is_running = False

    def listener(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal is_running
        is_limit = statement.startswith("SELECT set_config")
        if is_running or is_limit or connection.engine.url.database != name:
            return
        is_running = True
        try:
            callback(statement)
        finally:
            is_running = False

    event.listen(Engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", listener)
