"""`watching.store_queries`: a query's text beside its decision, where the operator wants it."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.monitoring.decisions.store import DecisionStore
from app.store import Store, now
from app.telemetry import logs
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    POOL,
    UNANSWERABLE,
    Command,
    Gateway,
    Serve,
    configure,
    user,
)
from tests.kit.monitored import MonitoredStore, calibration_record, decision_record, exported_rows
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

RECORD = calibration_record()
SCORES = [0.9, 0.5, 0.1]


@pytest.fixture
def storing(shared: Shared) -> Gateway:
    """A gateway whose operator keeps queries, and samples every decision."""
    return shared(watching={"store_queries": True, "shadow_rate": 1.0}).gateway


def documents(gateway: Gateway) -> list[dict[str, Any]]:
    """Every decision that is in the store's file."""
    with closing(sqlite3.connect(store_of(gateway))) as connection:
        found = connection.execute("SELECT document FROM decisions ORDER BY created_at, id")
        return [json.loads(document) for (document,) in found]


def store_of(gateway: Gateway) -> Path:
    """The file of the store."""
    assert gateway.config is not None
    return gateway.config.parent / "racer.db"


def seen(gateway: Gateway, decision_id: str, key: str = DATA_KEY) -> dict[str, Any]:
    """GET /decisions/{id}, with the status checked."""
    response = gateway.get(f"/decisions/{decision_id}", key)
    assert response.status_code == 200, response.text
    return response.json()


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {"messages": user("{}")}, 200),
        (CHAT, {"messages": user("{}"), "stream": True}, 200),
        ("/v1/completions", {"prompt": "{}"}, 200),
        ("/v1/responses", {"input": "{}"}, 200),
        ("/route", {"messages": user("{}")}, 200),
        (CHAT, {"messages": user(UNANSWERABLE + "{}"), "racer": {"on_abstain": "error"}}, 422),
    ],
    ids=["chat", "stream", "completions", "responses", "decision", "refused"],
)
def test_every_query_is_stored_with_its_decision(
    storing: Gateway, pool: FakePool, path: str, body: dict[str, Any], status: int
) -> None:
    """On every way of asking, and where it ends with an error."""
    query = f"What is 3 plus 4? {path} {len(json.dumps(body))}"
    before = len(documents(storing))
    request = {"model": "auto", **json.loads(json.dumps(body).replace("{}", query, 1))}
    assert storing.post(path, json=request).status_code == status
    assert until(lambda: len(documents(storing)) == before + 1, 30.0)
    assert documents(storing)[-1]["query"].endswith(query)


def test_a_request_that_failed_is_kept_too(storing: Gateway, pool: FakePool) -> None:
    """No candidate answered: the query is stored all the same, and never an answer."""
    for name in POOL:
        pool.fail(name, "500")
    before = len(documents(storing))
    assert storing.ask("What is 5 plus 6, failed?").status_code == 502
    assert until(lambda: len(documents(storing)) == before + 1, 30.0)
    assert documents(storing)[-1]["query"] == "What is 5 plus 6, failed?"
    pool.reset()
    for name in POOL:
        pool.say(name, "correct horse battery staple")
    seen(storing, storing.chat("What is 5 plus 6, answered?")["id"])
    content = store_of(storing).read_bytes()
    assert b"answered?" in content
    assert b"battery" not in content


def test_it_is_what_the_router_read(serve: Serve) -> None:
    """All turns where it reads them, cut where it cuts."""
    gateway = serve(
        watching={"store_queries": True},
        routing={"text": "conversation"},
        limits={"query_chars": 40},
    )
    turns = [*user("What is 3 plus 4?"), {"role": "assistant", "content": "7"}, *user("And 5?")]
    body = {"model": "auto", "messages": [{"role": "system", "content": "Be brief."}, *turns]}
    answer = gateway.post(CHAT, json=body).json()
    assert seen(gateway, answer["id"])["query"] == "What is 3 plus 4?\n\n7\n\nAnd 5?"
    long = gateway.chat("What is 3 plus 4? " * 10)
    assert seen(gateway, long["id"])["query"] == ("What is 3 plus 4? " * 10)[:40]


def test_prompts_are_in_no_log_and_no_metric_also_when_they_cannot_be_stored(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is locked while the decision waits: the error is logged without the query.

    A whole traceback, as pytest writes it, does not contain it either.
    """
    prompt = "CANARY-prompt-41"
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        gateway = serve(folder=tmp_path, watching={"store_queries": True})
        with closing(sqlite3.connect(tmp_path / "racer.db")) as connection:
            connection.execute("BEGIN IMMEDIATE")  # others can read
            decision_id = gateway.route(f"{prompt} {ONE}")["decision_id"]
            assert until(lambda: "decisions cannot be written" in stream.getvalue(), 60.0)
            metrics = gateway.get("/metrics").text
            connection.rollback()
        path = f"/decisions/{decision_id}"
        assert until(lambda: gateway.get(path).status_code == 200, 30.0)
        assert seen(gateway, decision_id)["query"] == f"{prompt} {ONE}"
    assert "INSERT INTO decisions" in caplog.text
    assert prompt not in caplog.text
    assert prompt not in stream.getvalue()
    assert prompt not in metrics


def test_it_needs_decisions(racer: Command, tmp_path: Path, artifact: Path) -> None:
    """They are kept with them: exit code 2, and the field is named."""
    watching = {"decisions": False, "store_queries": True}
    path = configure(tmp_path, artifact, "http://127.0.0.1:1/v1", watching=watching)
    code, _, stderr = racer("validate", "--config", path)
    assert code == 2
    assert "store_queries needs `decisions: true`" in stderr


# Shadow rows ----------------------------------------------------------------------------------


def judge(gateway: Gateway, query: str) -> None:
    """Ask, and say that the adder alone was right."""
    correct = {name: name == "adder" for name in POOL}
    body = {"decision_id": gateway.chat(query)["id"], "correct": correct}
    assert gateway.post("/feedback", ADMIN_KEY, json=body).status_code == 200


def test_shadow_rows_with_queries_calibrate_as_any_rows_do(serve: Serve, pool: FakePool) -> None:
    """The router scores them itself: unlike scores without queries, they void nothing."""
    gateway = serve(watching={"store_queries": True, "shadow_rate": 1.0})
    queries = [f"What is {number} plus {number + 7}, twice?" for number in range(20)]
    for query in queries:
        judge(gateway, query)
    rows = gateway.get("/shadow/rows", ADMIN_KEY).text
    assert [json.loads(line)["query"] for line in rows.splitlines()] == queries
    headers = {"content-type": "application/x-ndjson"}
    made = gateway.post("/calibrate", ADMIN_KEY, content=rows.encode(), headers=headers)
    assert made.status_code == 200, made.text
    assert made.json()["evidence"]["rows"] == 20
    certificate = gateway.route("What is 50 plus 60?")["certificate"]
    assert certificate["calibration_id"] == made.json()["id"]
    assert "row_scores_unverified" not in certificate["reasons"]
    assert certificate["holds"]


def test_a_repeat_is_a_shadow_row_of_its_own(store: Store) -> None:
    """With a label of its own: the rows are drawn like the traffic, oldest first."""
    world = MonitoredStore(store, RECORD)
    decision_store = DecisionStore(store)
    one = replace(decision_record(RECORD, SCORES), shadow_rate=0.5, query=ONE)
    again = replace(one, decision_id="chatcmpl-again", created_at=now())
    before = replace(decision_record(RECORD, SCORES), shadow_rate=0.5)
    decision_store.add([again, one, before], [True] * 3)
    for note, right in ((again, False), (one, True), (before, True)):
        labels = dict.fromkeys(POOL, right)
        decision_store.add_verdicts(
            note.decision_id, lambda _, feedback=labels: feedback, key="admin", counts=True
        )
        decision_store.set_loss(note, None)

    async def story() -> list[dict[str, Any]]:
        async with await world.monitor() as monitor:
            return await exported_rows(monitor)

    rows = asyncio.run(story())
    ids = {one.decision_id: True, again.decision_id: False, before.decision_id: True}
    assert {row["decision_id"]: row["correct"]["adder"] for row in rows} == ids
    assert [row.get("query") for row in rows].count(ONE) == 2  # else scores stand in for it
