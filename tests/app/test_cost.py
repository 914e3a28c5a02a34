"""What a request costs, in calls of functions: a guard against becoming slower unseen.

Counted and not timed, so that a busy machine changes nothing. The candidates answer inside the
process, without sockets. A change that needs more raises the bound and states the reason.

The last reason: coverage remembers each request, certificates state the bound that holds for the
served level, and answers are read with their question (46 calls a request).
"""

from __future__ import annotations

import cProfile
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import uvloop

from app.upstream.http_client import UpstreamClient
from tests.kit.gateway import ONE, TWO
from tests.kit.services import LONG, SHORT, application, ask, chat, posted
from tests.kit.services import calibrated as calibrated

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the bounds were counted on Python 3.11"
)

REQUESTS = 40
MOST = 1450  # of a request to a set of two
MOST_OF_A_LETTER = 58  # of a live stream


async def calls_of(work: Callable[[], Awaitable[None]]) -> float:
    """Function calls of a piece of work, after a warm-up."""
    for _ in range(3):
        await work()
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(REQUESTS):
        await work()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats()) / REQUESTS


def test_a_request_costs_no_more_calls_than_it_did(
    calibrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of a letter is of those that a longer stream has more."""
    monkeypatch.setattr(UpstreamClient, "post", posted)

    async def count() -> tuple[float, float]:
        async with application(calibrated) as app:
            short, long = [
                await calls_of(partial(ask, app, *chat(f"{ONE} {length}", stream=True)))
                for length in ("short", "long")
            ]
            whole = await calls_of(partial(ask, app, *chat(TWO)))
            return whole, (long - short) / (LONG - SHORT)

    request, letter = uvloop.run(count())
    assert request <= MOST
    assert letter <= MOST_OF_A_LETTER
