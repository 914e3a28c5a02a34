"""A day in the life of a gateway: from no rows at all to a recalibration after a change.

Everything goes through HTTP and the command line: traffic, its random sample, labels, calibration,
certificates that hold, a change of the traffic, the alarm, and the calibration after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.settings import key_format
from app.store import now
from tests.kit.checkers import EVENING, MORNING, UNCHECKED
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    POOL,
    SKILLS,
    Command,
    Gateway,
    configure,
    running,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.monitored import KEY, sampled, shadow_rows
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

stats = LazyModule("scipy.stats")

ALPHA = 0.2
BOT_KEY = key_format.new_key()
PROMPTS = ("You are a bank.", "Answer in one word.", None)
KINDS = tuple(SKILLS)
CHANGED = "Spell the number {} and then {}"  # the only kind in the evening, and answered anew


def requests(start: int, count: int, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    """Whole requests of a bot: system prompts and parameters as its clients like them."""
    return [
        {
            "model": "auto",
            "messages": [
                *([{"role": "system", "content": prompt}] if prompt else []),
                *user(kinds[number % len(kinds)].format(number, number + 1)),
            ],
            **({"temperature": 0.5} if number % 2 else {}),
        }
        for number in range(start, start + count)
        for prompt in [PROMPTS[number % len(PROMPTS)]]
    ]


@pytest.fixture
def bot(tmp_path: Path, artifact: Path, pool: FakePool) -> Iterator[Gateway]:
    """A gateway with one application of drawn rows, none of which exist yet."""
    hashed = key_format.format_hash(BOT_KEY, key_format.new_salt())
    path = configure(
        tmp_path,
        artifact,
        pool.url,
        applications={
            "bot": {
                "keys": ["bot"],
                "premise": "drawn",
                "alpha": ALPHA,
                "checker": {"function": "tests.kit.checkers:check_number"},
            }
        },
        access={"keys": [{"name": "bot", "hash": hashed}]},
        watching={"shadow_rate": 1.0, "store_requests": True, "false_alarm": 0.01},
    )
    with running(path, {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}) as gateway:
        yield gateway


def answered(gateway: Gateway, bodies: list[dict[str, Any]], key: str = BOT_KEY) -> list[Any]:
    """The `racer` objects of the answers."""
    found: list[Any] = []
    for body in bodies:
        response = gateway.post("/v1/chat/completions", key, json=body)
        assert response.status_code == 200, response.text
        found.append(response.json()["racer"])
    return found


def unlabelled(gateway: Gateway) -> int:
    """How many rows have no label."""
    return sum(row.get("unlabelled", False) for row in shadow_rows(gateway, "?application=bot"))


def test_a_day(bot: Gateway, racer: Command) -> None:
    """Seven steps; each needs the one before."""

    def recalibrate(*options: str) -> tuple[int, str, str]:
        at = ("--url", bot.url, "--key", ADMIN_KEY, "--json")
        return racer("calibrate", "--from-shadow", "--application", "bot", *at, *options)

    # 1. Morning: the fallback answers, and nothing is promised.
    first, *_ = answered(bot, requests(MORNING, 60, KINDS))
    assert first["certificate"]["reasons"] == ["not_calibrated"]
    assert [each["part"] for each in bot.ready()["missing"]] == ["calibration"]

    # 2. Every request was drawn, whole, and checked but for three, which count as misses.
    assert sampled(bot, 60) == {"whole": 60}
    rows = shadow_rows(bot, "?application=bot")
    assert len(rows) == 60
    assert all(set(row["answers"]) == set(POOL) for row in rows)
    assert until(lambda: unlabelled(bot) == UNCHECKED, 30)

    # 3. They calibrate the bot.
    code, out, err = recalibrate()
    assert code == 0, err
    evidence = json.loads(out)["evidence"]["uploads"]["bot"]
    assert (evidence["rows"], evidence["unlabelled"], evidence["alpha"]) == (60, UNCHECKED, ALPHA)

    # 4. Noon: certificates hold for every request of the bot, and for no other application's.
    noon = answered(bot, requests(30_000, 9, KINDS))
    for each in noon:
        guarantee = each["certificate"]["guarantee"]
        assert each["certificate"]["holds"]
        assert (guarantee["premise"], guarantee["alpha"]) == ("drawn", ALPHA)
    (other,) = answered(bot, requests(31_000, 1, KINDS), DATA_KEY)
    assert not other["certificate"]["holds"]

    # 5. The traffic changes, and the bot's alarm voids its certificates.
    evening_at = now()
    evening = answered(bot, requests(EVENING, 70, (CHANGED,)))
    assert sum("poet" not in each["selected"] for each in evening) > 35

    def is_alarmed() -> bool:
        found = bot.get("/drift", ADMIN_KEY).json()["applications"]
        return bool(found["bot"]["alarms"]["alarmed"])

    assert until(is_alarmed, 30)
    (stale,) = answered(bot, requests(41_000, 1, (CHANGED,)))
    assert not stale["certificate"]["holds"]
    assert any(each.startswith("stale:") for each in stale["certificate"]["reasons"])

    # 6. Rows of the evening are checked. Their sets are larger, which an operator confirms.
    assert sampled(bot, 141) == {"whole": 141}
    assert until(lambda: unlabelled(bot) == UNCHECKED, 30)
    before = bot.ready()["calibration"]
    code, _, err = recalibrate("--since", evening_at)
    assert (code, "a change of the mean set size by more than 25%" in err) == (1, True)
    assert bot.ready()["calibration"] == before
    code, out, err = recalibrate("--since", evening_at, "--force")
    assert code == 0, err
    assert json.loads(out)["evidence"]["uploads"]["bot"]["rows"] == 71

    # 7. Night: certificates hold again, and so does what they say.
    night = answered(bot, requests(50_000, 30, (CHANGED,)))
    assert all(each["certificate"]["holds"] for each in night)
    missed = sum("poet" not in each["selected"] for each in night)
    assert missed <= stats.binom.isf(1e-6, len(night), ALPHA)
