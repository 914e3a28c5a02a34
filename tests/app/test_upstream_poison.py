"""Poison queries: the circuit breaker opens only for the key that sent them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.errors import UpstreamError
from app.settings import FleetSettings, key_format
from app.upstream.fleet import HealthChecks
from app.upstream.replicas import Replica
from tests.kit.fleets import CHAT, asking, opened, soon
from tests.kit.gateway import DATA_KEY, ONE, Serve, user
from tests.kit.hostile.exchange import Exchange
from tests.kit.hostile.replicas import answers, fails, replicas
from tests.kit.loops import on_loop
from tests.kit.upstream import FakePool
from tests.kit.waiting import eventually

POISONER = "key-of-the-one-who-poisons"


async def broken_by_poison(exchange: Exchange) -> None:
    """Fail every query that begins with "poison", at once; answer any other."""
    text = exchange.body["messages"][0]["content"]
    await (fails("500") if text.startswith("poison") else answers)(exchange)


async def ask(fleet: Any, text: str, caller: str = "honest") -> None:
    """Ask the candidate that can be poisoned."""
    await fleet.ask("m", CHAT, asking(text), deadline=soon(), caller=caller)


async def poison(fleet: Any, count: int, caller: str) -> None:
    """Send ``count`` different queries that fail."""
    for number in range(count):
        with pytest.raises(UpstreamError):
            await ask(fleet, f"poison {number} {time.monotonic()}", caller)


@on_loop
async def test_a_flood_of_poison_puts_the_candidate_out_for_its_own_key() -> None:
    """Nothing succeeds before; the queries of another key are tried, and end the ejection."""
    async with (
        replicas(broken_by_poison, answers) as [one, other],
        opened({"m": [one], "n": [other]}, attempts=1) as fleet,
    ):
        await poison(fleet, 100, "mallory")
        assert len(one.asked) == 5
        assert fleet.down("mallory") == {"m"}
        assert fleet.down("honest") == frozenset()
        await ask(fleet, "an honest query")
        assert fleet.down("mallory") == frozenset()


@on_loop
async def test_an_ejection_after_a_longer_one_is_checked_when_its_own_pause_is_over() -> None:
    """A success ended the longer one, whose check was still to come."""

    class Alive:
        async def is_alive(self, *_: object) -> bool:
            return True

    replica = Replica("http://unused", FleetSettings(failures=1, eject_s=0.05))
    breaker = replica.breaker
    checks = HealthChecks(Alive())  # pyright: ignore[reportArgumentType]
    breaker.record_failure(time.monotonic() + 60, caller="a", payload=1)
    checks.watch(object(), replica)  # pyright: ignore[reportArgumentType]
    await asyncio.sleep(0)
    breaker.record_success(0.0)
    breaker.record_failure(time.monotonic(), caller="a", payload=1)
    checks.watch(object(), replica)  # pyright: ignore[reportArgumentType]
    await eventually(lambda: breaker.state == "probation")
    await checks.close()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"model": "adder"}),
        ("chat/completions", {"model": "adder", "stream": True}),
        ("completions", {"model": "adder"}),
        ("chat/completions", {"model": "auto"}),
        ("chat/completions", {"model": "auto", "stream": True}),
    ],
)
def test_every_surface_names_the_key_that_causes_a_call(
    serve: Serve, pool: FakePool, path: str, fields: dict[str, Any]
) -> None:
    """Five failures of a key: its next set is chosen among the others, that of no other key is."""
    written = key_format.format_hash(POISONER, key_format.new_salt())
    gateway = serve(
        access={"keys": [{"name": "mallory", "hash": written}]},
        fleet={"attempts": 1, "failures": 5},
    )
    pool.fail("adder", "500")
    for number in range(5):
        text = f"What is {number} plus {number + 1}?"
        body = {"prompt": text} if path == "completions" else {"messages": user(text)}
        gateway.post(f"/v1/{path}", POISONER, json=body | fields)
    remarks = {
        key: gateway.post("/route", key, json={"query": ONE}).json()["certificate"]["reasons"]
        for key in (POISONER, DATA_KEY)
    }
    assert remarks == {POISONER: ["candidate_down:adder"], DATA_KEY: []}
