"""Samples of another configuration: rows of requests that an application no longer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.applications import ACCESS, BOT_KEY
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, candidates, configure, running, user
from tests.kit.monitored import KEY, sampled, shadow_rows
from tests.kit.upstream import FakePool

KEYED = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
WATCHING: dict[str, Any] = {"shadow_rate": 1.0, "store_requests": True}
DRAWN: dict[str, Any] = {"keys": ["bot"], "premise": "drawn"}
COLD: dict[str, Any] = {"parameters": {"temperature": 0}}
LATER = [*user("Hello"), {"role": "assistant", "content": "Hi"}, *user("And?")]
SESSION = {"x-session-id": "s"}


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
    tmp_path: Path,
    artifact: Path,
    pool: FakePool,
    before: dict[str, Any],
    after: dict[str, Any],
    any_pool: int,
) -> None:
    """All samples of an earlier population are left out, whatever their requests are."""
    is_same = "text" in after["bot"]
    saved: list[Any] = []
    for each, count in ((before, 2), (after, 2 if is_same else 0), (before, 2)):
        own = each.get("params", {})
        path = configure(
            tmp_path,
            artifact,
            pool.url,
            candidates=candidates(pool.url, **own),
            access=ACCESS,
            watching=WATCHING,
            applications={name: each[name] for name in each if name != "params"},
        )
        with running(path, KEYED) as gateway:
            if pool.requests == []:
                for more in ({"messages": LATER, "temperature": 1.0}, {"messages": user("Hello")}):
                    body = {"model": "auto", **more}
                    gateway.post("/v1/chat/completions", BOT_KEY, json=body, headers=SESSION)
                sampled(gateway, 2)
                saved = shadow_rows(gateway)
            assert len(shadow_rows(gateway)) == count
            if each is after:
                assert len(shadow_rows(gateway, "?pool=any")) == any_pool
                found = gateway.post("/calibrate", ADMIN_KEY, json={"rows": saved, "dry_run": True})
                assert ("has other members" in found.text) == (any_pool == 0)
