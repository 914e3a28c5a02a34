"""The shadow sample of conversations: at most one turn of each, and rows that prove their draw."""

from __future__ import annotations

from typing import Any

from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, ONE, Gateway, Serve, error_message, user
from tests.kit.lazy import LazyModule
from tests.kit.monitored import KEY, sampled, shadow_rows

stats = LazyModule("scipy.stats")

RATE = 0.25
CONVERSATIONS, LATER = 20, 3  # turns after the first: 4 turns are as many as the rate allows
ANSWER = {"role": "assistant", "content": "7"}


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
    assert all(len(row["request"]["messages"]) == 2 * row["turn"] + 1 for row in later)
    low, high = stats.binom.interval(1.0 - 1e-6, CONVERSATIONS, LATER * RATE)
    assert low <= len(later) == len({row["cluster"] for row in later}) <= high
    body = {"rows_kind": "traffic", "dry_run": True, "confirm": True}
    for wrong in ({"turn": later[0]["turn"] + 1}, {"turn": None}, {"cluster": "another"}):
        forged = [{**row, **wrong} for row in later]
        response = gateway.post("/calibrate", ADMIN_KEY, json={**body, "rows": forged})
        assert "was not drawn at the rate" in error_message(response, 422)
    unchanged = gateway.post("/calibrate", ADMIN_KEY, json={**body, "rows": rows})
    assert "was not drawn" not in unchanged.text
