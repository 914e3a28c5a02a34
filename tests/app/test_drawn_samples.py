"""Drawn rows: the turns that are drawn, what could be a row, and rows of another configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import SettingsError
from app.monitoring.drift.statistics import SET_SIZE, new_drift_state
from app.store.calibration_record import CalibrationRecord
from tests.kit.accounts import configured_key
from tests.kit.applications import ACCESS, BOT_KEY, TOOLS, drawn_rows, later, upload, whole
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Gateway,
    Restart,
    Serve,
    candidates,
    configure,
    running,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.monitored import KEY, calibration_record, sampled, shadow_rows
from tests.kit.network import closed_port
from tests.kit.upstream import FakePool

RATE = 0.25
BOT: dict[str, Any] = {"keys": ["bot"], "premise": "drawn", "turns": "together"}
ANSWER = {"role": "assistant", "content": "7"}
SESSION = {"x-session-id": "of this conversation"}


def certificate(
    gateway: Gateway, body: dict[str, Any], headers: dict[str, str] | None
) -> dict[str, Any]:
    """The certificate of a chat answer."""
    body = {"model": "auto", **body}
    response = gateway.post("/v1/chat/completions", BOT_KEY, json=body, headers=headers or {})
    assert response.status_code == 200, response.text
    return response.json()["racer"]["certificate"]


def rows_of_turns() -> list[dict[str, Any]]:
    """As many rows of first turns as of later ones."""
    turns = [row | {"request": later(row["request"])} for row in drawn_rows(40, 30_000)]
    return [row | {"application": "bot"} for row in (*drawn_rows(40), *turns)]


def test_first_and_later_turns_have_one_threshold(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Certificates say so; a request of an unknown conversation has none, as after a change."""
    with running(with_bot(tmp_path, artifact, pool, BOT), ENVIRONMENT) as gateway:
        made = upload(gateway, [*rows_of_turns(), *drawn_rows(60, 50_000)], rows_kind="traffic")
        assert "later_turns" not in made["evidence"]
        first, after = (certificate(gateway, each, SESSION) for each in both())
        assert (first["holds"], after["holds"]) == (True, True)
        assert first["lambda_hat"] == after["lambda_hat"]
        assert first["n"] == after["n"] > 40
        assert first["guarantee"]["turns"] == after["guarantee"]["turns"] == "together"
        assert "later_turn" in after["reasons"]
        for body in both():
            found = certificate(gateway, body, None)
            assert (found["holds"], "not_drawn" in found["reasons"]) == (False, True)
    separate = {**BOT, "turns": "separate"}
    with running(with_bot(tmp_path, artifact, pool, separate), ENVIRONMENT) as gateway:
        found = certificate(gateway, whole(TWO), SESSION)
        assert (found["holds"], "grouping_changed" in found["reasons"]) == (False, True)


def both() -> tuple[dict[str, Any], dict[str, Any]]:
    """A first and a later turn."""
    return whole(TWO), later(whole(TWO))


def with_bot(path: Path, artifact: Path, pool: FakePool, bot: dict[str, Any]) -> Path:
    """The configuration with this application."""
    return configure(path, artifact, pool.url, access=ACCESS, applications={"bot": bot})


def test_at_most_one_turn_of_a_session_is_drawn(serve: Serve) -> None:
    """Be it the first; and requests without a session are no rows."""
    gateway = serve(
        calibrated=False,
        access=ACCESS,
        applications={"bot": {**BOT, "shadow_rate": RATE}},
        watching={"store_requests": True},
        environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY},
    )
    drawn = 0
    for name in range(12):
        turns: list[Any] = user(f"{ONE} {name}")
        for turn in range(4):  # as many as the rate allows: exactly one is drawn
            headers = {"x-session-id": f"{name}"}
            body = {"model": "auto", "messages": turns}
            found = gateway.post("/v1/chat/completions", BOT_KEY, json=body, headers=headers)
            drawn += "shadow_rate" in found.json()["racer"]
            turns = [*turns, ANSWER, *user(f"{name} and {turn}?")]
    assert drawn == 12
    alone = 0
    for name in range(12):
        body = {"model": "auto", "messages": user(f"{ONE} alone {name}")}
        found = gateway.post("/v1/chat/completions", BOT_KEY, json=body)
        alone += "shadow_rate" in found.json()["racer"]
    sampled(gateway, drawn + alone)
    rows = shadow_rows(gateway)
    assert len(rows) == drawn == len({row["cluster"] for row in rows})
    assert all(len(row["request"]["messages"]) == 2 * row["turn"] + 1 for row in rows)
    forged = [{**row, "turn": (row["turn"] + 1) % 4} for row in rows]
    assert "was not drawn at the rate" in gateway.refused(forged, dry_run=True)


def test_turns_are_together_where_rows_are_drawn(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Nothing else has them in the shares of the traffic."""
    path = with_bot(tmp_path, artifact, pool, {**BOT, "premise": "alike"})
    with pytest.raises(SettingsError, match="needs `premise: drawn`"), running(path, ENVIRONMENT):
        pass


def test_first_turns_are_not_compared_with_rows_of_all_turns() -> None:
    """They differ, and no alarm may say so; the stored record tells."""
    record = calibration_record()
    [population] = record.populations
    record = replace(record, populations=(replace(population, together=True),))
    document, arrays = record.encoded()
    stored = CalibrationRecord.decoded(record.id, record.created_at, "a", document, arrays)
    assert stored.populations[0].together
    rng = np.random.default_rng(1)
    assert len(new_drift_state(record.calibration, 0.01, rng).streams) > 1
    found = new_drift_state(record.calibration, 0.01, rng, together=True)
    assert set(found.streams) == {SET_SIZE}


# Conversations ---------------------------------------------------------------------------------


stats = LazyModule("scipy.stats")

CONVERSATIONS, LATER = 20, 3  # turns after the first: 4 turns are as many as the rate allows


def talk(gateway: Gateway, name: int) -> int:
    """A conversation; returns how many of its turns were drawn."""
    turns: list[Any] = user(f"{ONE} {name}")
    drawn = 0
    for turn in range(LATER + 1):
        body = {"model": "auto", "messages": turns}
        racer = gateway.post("/v1/chat/completions", json=body).json()["racer"]
        drawn += "shadow_rate" in racer
        turns = [*turns, ANSWER, *user(f"{name} and {turn}?")]
    return drawn


def test_at_most_one_later_turn_of_a_conversation_is_drawn(serve: Serve) -> None:
    """So rows of later turns share no cluster; and no row passes as a turn that was not drawn."""
    gateway = serve(
        watching={"shadow_rate": RATE, "store_requests": True},
        environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY},
    )
    drawn = sum(talk(gateway, name) for name in range(CONVERSATIONS))
    sampled(gateway, drawn)
    rows = shadow_rows(gateway)
    later = [row for row in rows if "cluster" in row]
    assert len(rows) == drawn
    assert all(len(row["request"]["messages"]) == 2 * row["turn"] + 3 for row in later)
    low, high = stats.binom.interval(1.0 - 1e-6, CONVERSATIONS, LATER * RATE)
    assert low <= len(later) == len({row["cluster"] for row in later}) <= high
    body = {"rows_kind": "traffic", "dry_run": True}
    for wrong in ({"turn": later[0]["turn"] + 1}, {"turn": None}, {"cluster": "another"}):
        forged = [{**row, **wrong} for row in later]
        assert "was not drawn at the rate" in gateway.refused(forged, **body)
    unchanged = gateway.post("/calibrate", ADMIN_KEY, json={**body, "rows": rows})
    assert "was not drawn" not in unchanged.text


# What could be no row --------------------------------------------------------------------------


LIMITED_KEY, LIMITED = configured_key("limited", candidates=["adder", "speller"])
LIMITED_ACCESS = {"keys": [*ACCESS["keys"], LIMITED]}


def drawing_gateway(serve: Serve, pool: FakePool, **changes: Any) -> Gateway:
    """Every request of a drawn application is sampled."""
    gateway = serve(
        calibrated=False,
        access=LIMITED_ACCESS,
        environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY},
        candidates=candidates(pool.url, **changes),
        watching={"shadow_rate": 1.0, "store_requests": True},
        applications={"bot": {"keys": ["bot", "limited"], "premise": "drawn"}},
    )
    rows = [row for row in drawn_rows(60) if "tools" not in row["request"]]
    upload(gateway, rows)
    return gateway


@pytest.fixture
def drawing(serve: Serve, pool: FakePool) -> Gateway:
    """Its poet takes no tools."""
    return drawing_gateway(serve, pool, poet={"capabilities": {"tools": False}})


def ask(gateway: Gateway, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """The certificate of a chat answer."""
    request = {"model": "auto", **whole(TWO), **body}
    response = gateway.post("/v1/chat/completions", key, json=request)
    assert response.status_code == 200, response.text
    return response.json()["racer"]["certificate"]


@pytest.mark.parametrize(
    ("key", "body", "reasons"),
    [
        (BOT_KEY, {}, []),
        (BOT_KEY, {"racer": {"candidates": [*POOL]}}, ["pool_assumed_independent_of_query"]),
        (LIMITED_KEY, {}, ["not_drawn"]),
        (
            BOT_KEY,
            {"racer": {"candidates": ["adder", "poet"]}},
            ["pool_assumed_independent_of_query", "not_drawn"],
        ),
        (BOT_KEY, {"tools": TOOLS}, ["unlabelled_request_kind", "not_drawn"]),
    ],
    ids=["whole", "whole_named", "key", "request", "unable"],
)
def test_a_certificate_holds_for_what_could_be_a_row(
    drawing: Gateway, key: str, body: dict[str, Any], reasons: list[str]
) -> None:
    """And for nothing else: the decision is a row exactly where it holds."""
    certificate = ask(drawing, key, body)
    could_be_row = "not_drawn" not in reasons
    assert (certificate["reasons"], certificate["holds"]) == (reasons, could_be_row)
    sampled(drawing, 1)
    assert len(shadow_rows(drawing)) == could_be_row


def test_an_upload_has_no_drawn_row_that_a_candidate_cannot_serve(drawing: Gateway) -> None:
    """Its own certificate would be void, and it must not set the threshold of others."""
    rows = [row for row in drawn_rows(60) if "tools" not in row["request"]]
    rows.append({**rows[0], "request": whole(TWO, tools=TOOLS)})
    message = drawing.refused(rows)
    assert f"row {len(rows)}: its request is none that 'poet' can serve" in message


def test_an_outage_alone_leaves_a_row(serve: Serve, pool: FakePool) -> None:
    """Without a label, under a certificate that holds; a part of what is left is none."""
    gateway = drawing_gateway(serve, pool, poet={"base_url": closed_port()})
    count = 1
    while "candidate_down:poet" not in (found := ask(gateway, BOT_KEY, {}))["reasons"]:
        count += 1
        assert count < 20
    assert ("not_drawn" in found["reasons"], found["holds"]) == (False, True)
    sampled(gateway, count)
    rows = shadow_rows(gateway)
    assert [row["unlabelled"] for row in rows] == [True] * count
    part = ask(gateway, BOT_KEY, {"racer": {"candidates": ["adder", "poet"]}})
    assert "candidate_down:poet" in part["reasons"]
    assert ("not_drawn" in part["reasons"], part["holds"]) == (True, False)
    sampled(gateway, count + 1)
    assert shadow_rows(gateway) == rows


# Changed configurations ------------------------------------------------------------------------


KEYED = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
WATCHING: dict[str, Any] = {"shadow_rate": 1.0, "store_requests": True}
DRAWN: dict[str, Any] = {"keys": ["bot"], "premise": "drawn"}
COLD: dict[str, Any] = {"parameters": {"temperature": 0}}
TURNS = [*user("Hello"), {"role": "assistant", "content": "Hi"}, *user("And?")]
ANY_SESSION = {"x-session-id": "s"}


@pytest.mark.parametrize(
    ("before", "after", "any_pool"),
    [
        # The bot had the requests of two keys.
        ({"bot": {**DRAWN, "keys": ["bot", "data"]}}, {"bot": DRAWN, "new": {"keys": ["data"]}}, 0),
        # First turns were drawn by their ids, and are no rows of sessions; later ones would be.
        ({"bot": DRAWN}, {"bot": {**DRAWN, "turns": "together"}}, 0),
        # Only requests with a temperature of their own are sent the same now.
        ({"bot": DRAWN, "params": COLD}, {"bot": DRAWN}, 2),
        # What the router reads decides nothing about which requests there are.
        ({"bot": DRAWN}, {"bot": {**DRAWN, "text": "conversation"}}, 2),
    ],
    ids=["members", "turns", "parameters", "text"],
)
def test_rows_are_of_the_requests_that_an_application_has_now(
    restart: Restart, pool: FakePool, before: dict[str, Any], after: dict[str, Any], any_pool: int
) -> None:
    """All samples of an earlier population are left out, whatever their requests are."""
    is_same = "text" in after["bot"]
    saved: list[Any] = []
    for each, count in ((before, 2), (after, 2 if is_same else 0), (before, 2)):
        own = each.get("params", {})
        with restart(
            candidates=candidates(pool.url, **own),
            access=ACCESS,
            watching=WATCHING,
            applications={name: each[name] for name in each if name != "params"},
            environment=KEYED,
        ) as gateway:
            if pool.requests == []:
                for more in ({"messages": TURNS, "temperature": 1.0}, {"messages": user("Hello")}):
                    body = {"model": "auto", **more}
                    gateway.post("/v1/chat/completions", BOT_KEY, json=body, headers=ANY_SESSION)
                sampled(gateway, 2)
                saved = shadow_rows(gateway)
            assert len(shadow_rows(gateway)) == count
            if each is after:
                assert len(shadow_rows(gateway, "?pool=any")) == any_pool
                found = gateway.post("/calibrate", ADMIN_KEY, json={"rows": saved, "dry_run": True})
                assert ("has other members" in found.text) == (any_pool == 0)
