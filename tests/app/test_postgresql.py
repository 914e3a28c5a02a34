"""PostgreSQL as it is run: behind PgBouncer, as a standby, and for a role without CREATE."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url, text

from app.errors import SettingsError
from app.store import Store
from app.store.notifications import NotificationListener
from tests.docs.blocks import DOCUMENTS, blocks
from tests.kit.databases import PgBouncer, Postgres
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, ONE, TWO, Command, Gateway, Serve, configure
from tests.kit.monitored import calibration_record
from tests.kit.waiting import eventually, until

pytestmark = pytest.mark.scale

FOLLOWED_S = 10.0  # ten times the goal for all gateways to follow the store
ALL_RIGHT = {"adder": True, "speller": True, "poet": True}
RECORD = calibration_record()

Start = Callable[..., Gateway]


@pytest.fixture
def store_url(postgres: Postgres) -> str:
    """An empty database."""
    return postgres.create()


@pytest.fixture
def start(serve: Serve, store_url: str) -> Start:
    """Start gateways that share a store, each by a URL of its own."""

    def begin(url: str = store_url, *, calibrated: bool = True, **changes: Any) -> Gateway:
        environment = ENVIRONMENT | {"RACER_STORE_URL": url}
        return serve(calibrated=calibrated, environment=environment, **changes)

    return begin


def is_stored(gateway: Gateway, decision_id: str) -> bool:
    """Whether a decision is in the database."""
    return gateway.get(f"/decisions/{decision_id}", ADMIN_KEY).status_code == 200


# PgBouncer ------------------------------------------------------------------------------------


def test_gateways_behind_a_pooler_share_their_store(
    start: Start, pgbouncer: PgBouncer, store_url: str
) -> None:
    """Activations, decisions and feedback reach the other gateway, and a new PgBouncer both."""
    url = pgbouncer.url(store_url)
    gateways = [start(url), start(url, calibrated=False)]
    first = gateways[0].active()
    second = gateways[0].calibrate(120)["id"]
    assert until(lambda: gateways[1].active() == second, FOLLOWED_S)
    made = gateways[0].route(TWO)["decision_id"]
    body = {"decision_id": made, "correct": ALL_RIGHT}
    assert gateways[1].post("/feedback", ADMIN_KEY, json=body).status_code == 200
    pgbouncer.stop()
    try:
        assert until(lambda: gateways[1].degraded() == ["store"], FOLLOWED_S)
        assert gateways[1].route(ONE)["certificate"]["holds"]
    finally:
        pgbouncer.start()
    assert until(lambda: gateways[0].degraded() == gateways[1].degraded() == [], FOLLOWED_S)
    assert gateways[1].activate(first).status_code == 200
    assert until(lambda: gateways[0].active() == first, FOLLOWED_S)


def test_nothing_of_a_transaction_stays_in_its_session(
    pgbouncer: PgBouncer, store_url: str
) -> None:
    """Its limits hold in it alone, and its statements are not prepared, however often they run."""
    url = pgbouncer.url(store_url)
    with Store(url) as store, psycopg.connect(url, autocommit=True) as another:
        for _ in range(2):
            with store.transaction() as session:
                limits = [
                    session.scalar(text(f"SHOW {name}_timeout")) for name in ("statement", "lock")
                ]
                for _ in range(20):
                    session.scalar(text("SELECT CAST(:one AS int)"), {"one": 1})
                prepared = session.scalar(text("SELECT count(*) FROM pg_prepared_statements"))
                used = session.scalar(text("SELECT pg_backend_pid()"))
            assert limits == ["1min", "5s"]
            assert prepared == 0
        found = another.execute(
            "SELECT pg_backend_pid(), current_setting('statement_timeout'), "
            "current_setting('lock_timeout')"
        )
        assert found.fetchone() == (used, "0", "0")  # in the very same session


@pytest.mark.parametrize("is_pooled", [True, False])
def test_behind_a_pooler_the_store_is_polled(
    pgbouncer: PgBouncer, store_url: str, monkeypatch: pytest.MonkeyPatch, *, is_pooled: bool
) -> None:
    """No session listens, for another gateway would get what it hears; a direct one does."""
    url = pgbouncer.url(store_url) if is_pooled else store_url
    statements: list[str] = []
    execute = psycopg.AsyncConnection.execute

    async def recorded(self: Any, query: str, *rest: Any) -> Any:
        result = await execute(self, query, *rest)
        statements.append(query)
        return result

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", recorded)

    async def story() -> None:
        async with NotificationListener(url) as listener:
            await eventually(lambda: len(statements) == (1 if is_pooled else 2))
            for _ in range(3):  # by the poll interval, or by what a direct session heard
                await listener.wait()

    asyncio.run(story())
    assert ["LISTEN" in each for each in statements] == [False] if is_pooled else [False, True]


# A standby ------------------------------------------------------------------------------------


def test_a_standby_is_followed_and_written_once_it_is_promoted(
    start: Start, postgres: Postgres
) -> None:
    """Routing goes on, decisions wait, an activation says what to do; a gateway can start there."""
    gateway = start()
    first = gateway.active()
    second = gateway.calibrate(120)["id"]
    with postgres.standby():
        assert until(lambda: gateway.degraded() == ["store_writes"], FOLLOWED_S)
        assert gateway.metric("racer_store_up") == 0.0
        made = gateway.route(ONE)
        assert made["certificate"]["holds"]
        answer = gateway.activate(first)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "store_read_only")
        assert "promote" in error["message"]
        assert gateway.metric("racer_store_queue_rows") == 1.0
        other = start(calibrated=False)
        assert (other.active(), other.degraded()) == (second, ["store_writes"])
        assert other.route(TWO)["certificate"]["holds"]
    assert until(lambda: gateway.degraded() == other.degraded() == [], FOLLOWED_S)
    assert gateway.metric("racer_store_up") == 1.0
    assert until(lambda: is_stored(other, made["decision_id"]), FOLLOWED_S)
    assert gateway.metric("racer_store_queue_rows") == 0.0
    assert gateway.activate(first).status_code == 200
    assert until(lambda: other.active() == first, FOLLOWED_S)


def test_sessions_of_a_read_only_database_are_replaced(
    start: Start, postgres: Postgres, store_url: str
) -> None:
    """As those to an old primary, without a write that fails: red when they stay in use.

    `ALTER DATABASE` reaches new sessions alone.
    """
    gateway = start()
    name = make_url(store_url).database
    sessions = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on", sessions)
    assert until(lambda: gateway.degraded() == ["store_writes"], FOLLOWED_S)
    postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert until(lambda: gateway.degraded() == [], FOLLOWED_S)
    assert gateway.activate(gateway.active()).status_code == 200


def test_a_refused_write_replaces_every_session(postgres: Postgres, store_url: str) -> None:
    """Also those that wait in the pool: the next writes reach the primary at once."""
    with Store(store_url) as store:
        name = make_url(store_url).database
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        together = threading.Barrier(3)

        def read() -> None:
            with store.transaction() as session:
                session.scalar(text("SELECT 1"))
                together.wait(30)  # each has a session of its own

        with ThreadPoolExecutor(3) as threads:
            for each in [threads.submit(read) for _ in range(3)]:
                each.result()
        postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        outcomes: list[str] = []
        for number in range(6):
            try:
                store.add(replace(RECORD, id=f"cal-{number}"), activate=False)
                outcomes.append("written")
            except Exception as exc:  # noqa: BLE001 - looked at below
                outcomes.append(type(exc).__name__)
        assert outcomes == ["StoreReadOnly", *["written"] * 5]


def test_a_session_of_the_time_without_writes_is_replaced(
    postgres: Postgres, store_url: str
) -> None:
    """One that was opened between the last read without writes and their return."""
    with Store(store_url) as store:
        name = make_url(store_url).database
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        assert not store.shared_state("an artifact").takes_writes
        with store.transaction() as session:
            assert session.scalar(text("SHOW transaction_read_only")) == "on"
            postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            assert store.shared_state("an artifact").takes_writes  # by a session of its own
        for number in range(3):
            store.add(replace(RECORD, id=f"cal-{number}"), activate=False)


def test_sessions_that_an_administrator_ends_are_opened_again(
    start: Start, postgres: Postgres, store_url: str
) -> None:
    """An activation that waits is 503, and the next one succeeds."""
    gateway = start()
    wanted = gateway.active()
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"
    ends = others.format(make_url(store_url).database) + " AND wait_event_type = 'Lock'"
    with psycopg.connect(store_url) as connection, ThreadPoolExecutor(1) as threads:
        connection.execute("SELECT 1 FROM active_calibrations FOR UPDATE")
        waiting = threads.submit(gateway.activate, wanted)
        with psycopg.connect(postgres.url(), autocommit=True) as administrator:
            assert until(lambda: administrator.execute(ends).fetchone() == (True,), FOLLOWED_S)
        answer = waiting.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert gateway.activate(wanted).status_code == 200


# Rights ---------------------------------------------------------------------------------------


@pytest.fixture
def role_url(postgres: Postgres, store_url: str) -> str:
    """The URL of a role that may create nothing, and has no rights on the tables yet."""
    role = f"gateway_{make_url(store_url).database}"
    postgres.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    url = make_url(store_url).set(username=role, password="secret")
    return url.render_as_string(hide_password=False)


def grants(role_url: str) -> str:
    """The statements of the document, for the role and the owner of this test."""
    found = [block.text for block in blocks(DOCUMENTS) if "GRANT" in block.text]
    (statements,) = found
    role = str(make_url(role_url).username)
    return statements.replace("racer_gateway", role).replace("racer_owner", "racer")


def test_a_role_without_create_runs_a_gateway(start: Start, role_url: str, store_url: str) -> None:
    """With the rights of the document: all that a gateway writes, and a second start."""
    Store(store_url).close()  # as `racer db upgrade` by the owner
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(grants(role_url).encode())
    watching = {"false_alarm": 0.01, "shadow_rate": 1.0}
    gateway = start(role_url, watching=watching)
    first = gateway.active()
    gateway.calibrate(120)
    assert gateway.activate(first).status_code == 200
    made = gateway.chat(TWO)["racer"]["decision_id"]
    body = {"decision_id": made, "correct": ALL_RIGHT}
    assert gateway.post("/feedback", ADMIN_KEY, json=body).status_code == 200
    assert gateway.post("/drift/reset", ADMIN_KEY).status_code == 200
    other = start(role_url, calibrated=False, watching=watching)
    assert (other.active(), other.degraded()) == (first, [])


def test_what_a_role_lacks_is_said_at_the_start(
    role_url: str,
    store_url: str,
    racer: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    artifact: Path,
) -> None:
    """On an empty database, by the upgrade, too, and without rights on its tables."""
    with pytest.raises(SettingsError, match="racer db upgrade"):
        Store(role_url)
    for name, value in (ENVIRONMENT | {"RACER_STORE_URL": role_url}).items():
        monkeypatch.setenv(name, value)
    configuration = configure(tmp_path, artifact, "http://127.0.0.1:9")
    code, _, error = racer("db", "upgrade", "--config", configuration)
    assert (code, "tables' owner" in error) == (2, True)
    Store(store_url).close()
    with pytest.raises(SettingsError, match="grant this role SELECT"):
        Store(role_url)
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(grants(role_url).encode())
    Store(role_url).close()
