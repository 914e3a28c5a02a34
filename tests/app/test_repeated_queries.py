"""Queries that were asked many times: PostgreSQL reads few of their earlier decisions.

Plans say how many rows are read: no time is measured.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, make_url

from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.store import DecisionStore
from app.store import Store
from app.store.tables import DecisionRow
from tests.kit.databases import Postgres
from tests.kit.monitored import calibration_record, decision_record

pytestmark = pytest.mark.scale

RECORD = calibration_record()
SCORES = [0.9, 0.5, 0.1]
REPEATED = "ff" * 16
REPEATS = 20_000


@pytest.fixture
def store_url(postgres: Postgres) -> str:
    """An empty database."""
    return postgres.create()


def asked(fingerprint: str = REPEATED, **changes: Any) -> DecisionRecord:
    """A decision on a query."""
    return decision_record(RECORD, SCORES, fingerprint=fingerprint, **changes)


@contextmanager
def plans(url: str) -> Generator[list[dict[str, Any]]]:
    """The plans of the statements that read decisions, with what they read."""
    found: list[dict[str, Any]] = []
    database = make_url(url).database

    def explain(
        connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> None:
        is_read = statement.startswith("SELECT") and "FROM decisions" in statement
        if connection.engine.url.database == database and is_read:
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            row = cursor.fetchone()
            assert row is not None
            found.append(row[0][0]["Plan"])
            cursor.close()

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", explain)


def rows_read(plan: dict[str, Any]) -> float:
    """Rows and index entries that a plan looked at, those that it filtered out included."""
    below = sum(rows_read(each) for each in plan.get("Plans", ()))
    if not {"Relation Name", "Index Name"} & plan.keys():
        return below
    filtered = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    return below + plan["Actual Loops"] * (plan["Actual Rows"] + filtered)


@pytest.fixture
def repeated(store_url: str) -> Iterator[DecisionStore]:
    """A store with one query that was asked many times, and as many that were asked once."""
    with Store(store_url) as store:
        store.add(RECORD, activate=True)
        decisions = DecisionStore(store)
        decisions.add([asked(decision_id="d")], [True])
        columns = [each.name for each in DecisionRow.__table__.columns]
        several = "INSERT INTO decisions ({}) SELECT {} FROM decisions, generate_series(1, {}) AS n"
        changes = {
            "earlier": {"calibration_id": "'cal-0'"},  # those of another come first
            "again": {},
            "others": {"fingerprint": "md5(n::text)"},
        }
        with psycopg.connect(store_url) as connection:
            for name, change in changes.items():
                chosen = {each: each for each in columns} | {"id": f"'{name}' || n"} | change
                statement = several.format(
                    ", ".join(columns), ", ".join(chosen[each] for each in columns), REPEATS
                )
                connection.execute(f"{statement} WHERE id = 'd'".encode())
        yield decisions


@pytest.mark.parametrize("is_analysed", [True, False])
def test_a_batch_reads_one_earlier_decision_of_each_query(
    repeated: DecisionStore, store_url: str, *, is_analysed: bool
) -> None:
    """However many there are, and whether or not the planner has statistics of them."""
    if is_analysed:
        with psycopg.connect(store_url, autocommit=True) as connection:
            connection.execute("ANALYZE decisions")
    batch = [asked(REPEATED if number == 7 else f"{number:032x}") for number in range(20)]
    with plans(store_url) as found:
        assert repeated.add(batch, [True] * 20) == {("", REPEATED)}
    assert len(found) == 1
    assert rows_read(found[0]) <= 20, json.dumps(found, indent=1)


def test_a_judged_query_does_not_read_its_earlier_decisions(
    repeated: DecisionStore, store_url: str
) -> None:
    """Only those with a loss: red when all of them are read, or locked."""
    pair = [asked(shadow_rate=1.0) for _ in range(2)]
    repeated.add(pair, [True] * 2)
    with plans(store_url) as found:
        for each in pair:
            repeated.set_loss(each, 1.0)
    assert sum(map(rows_read, found)) <= 4, json.dumps(found, indent=1)
    assert [repeated.get(each.decision_id).loss for each in pair] == [1.0, None]


def test_a_query_judged_at_two_gateways_at_once_has_one_loss(store_url: str) -> None:
    """Thirty queries, each with two decisions: red when the two do not wait for each other."""
    with Store(store_url) as one, Store(store_url) as other:
        one.add(RECORD, activate=True)
        stores = [DecisionStore(each) for each in (one, other)]
        for number in range(30):
            pair = [asked(f"{number:032x}", shadow_rate=1.0) for _ in stores]
            stores[0].add(pair, [True] * 2)
            together = threading.Barrier(2)

            def judge(place: int, pair: Any = pair, together: Any = together) -> None:
                together.wait(30)
                stores[place].set_loss(pair[place], 1.0)

            with ThreadPoolExecutor(2) as threads:
                for each in [threads.submit(judge, place) for place in range(2)]:
                    each.result()
            losses = [stores[0].get(each.decision_id).loss for each in pair]
            assert sorted(losses, key=str) == [1.0, None]
