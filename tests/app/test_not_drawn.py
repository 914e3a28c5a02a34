"""Drawn rows and the requests that they cover: what could be no row has no certificate."""

from __future__ import annotations

from typing import Any

import pytest

from app.settings import key_format
from tests.kit.applications import BOT_KEY, TOOLS, drawn_rows, upload, whole
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    POOL,
    TWO,
    Gateway,
    Serve,
    candidates,
    error_message,
)
from tests.kit.monitored import KEY, sampled, shadow_rows
from tests.kit.network import closed_port
from tests.kit.upstream import FakePool

LIMITED_KEY = key_format.new_key()
ACCESS = {
    "keys": [
        {"name": "bot", "hash": key_format.format_hash(BOT_KEY, key_format.new_salt())},
        {
            "name": "limited",
            "hash": key_format.format_hash(LIMITED_KEY, key_format.new_salt()),
            "candidates": ["adder", "speller"],
        },
    ]
}


def drawing_gateway(serve: Serve, pool: FakePool, **changes: Any) -> Gateway:
    """Every request of a drawn application is sampled."""
    gateway = serve(
        calibrated=False,
        access=ACCESS,
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
    response = drawing.post("/calibrate", ADMIN_KEY, json={"rows": rows})
    message = error_message(response, 422)
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
