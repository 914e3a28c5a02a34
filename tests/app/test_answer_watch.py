"""The alarm of the promise `same_answer`: it stays, and every sampled request bets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.same_answer import calibrator as answer_calibrator
from app.same_answer import rows as answer_rows
from tests.kit.gateway import ADMIN_KEY, Gateway, Serve
from tests.kit.monitored import sampled
from tests.kit.same_answer import configured, talk
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

STALE = ["stale:same_answer"]


@pytest.fixture
def talking(pool: FakePool) -> Iterator[FakePool]:
    """Candidates of which ada is always right."""
    talk(pool)
    pool.answer = lambda _: "0"
    yield pool
    pool.answer = lambda _: "42"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_calibrator, "EVERY_S", 0.1)


def lost_ada(body: dict[str, Any]) -> str:
    """Ada is alone with her answer."""
    return "x" if body["model"] == "ada" else "0"


def watching(serve: Serve, pool: FakePool, folder: Path, rate: float = 1.0) -> Gateway:
    """A gateway that is calibrated by command."""
    section, terms = {"alpha": 0.1}, {"shadow_rate": rate, "false_alarm": 0.01}
    return serve(folder=folder, **configured(pool, same_answer=section, watching=terms))


def calibrated(gateway: Gateway, count: int) -> None:
    """Calibrate on this number of requests."""
    for number in range(count):
        gateway.chat(f"question {number}")
    sampled(gateway, count)
    response = gateway.post("/same-answer/calibrate", ADMIN_KEY)
    assert response.json()["active"], response.text


def reasons(gateway: Gateway) -> list[str]:
    """Those of a certificate."""
    return gateway.route("question 0")["certificate"]["reasons"]


def test_an_alarm_outlives_a_lower_rate_and_a_start(
    serve: Serve, talking: FakePool, tmp_path: Path
) -> None:
    """Requests that a lower rate would not have drawn have bet all the same."""
    gateway = watching(serve, talking, tmp_path / "one")
    calibrated(gateway, 29)
    talking.answer = lost_ada
    for number in range(20):
        gateway.chat(f"another {number}")
    found = until(lambda: reasons(gateway) == STALE, 30)
    assert found, gateway.get("/same-answer", ADMIN_KEY).text
    seldom = watching(serve, talking, tmp_path / "one", rate=0.001)
    assert reasons(seldom) == STALE
    decision = seldom.chat("question 1")["racer"]["decision_id"]
    assert until(lambda: seldom.get(f"/decisions/{decision}", ADMIN_KEY).status_code == 200, 30)
    again = watching(serve, talking, tmp_path / "one", rate=0.001)
    assert reasons(again) == STALE


def test_no_number_of_requests_ends_the_watch(
    serve: Serve, talking: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are read at a time."""
    monkeypatch.setattr(answer_rows, "MAX_ROWS", 30)
    gateway = watching(serve, talking, tmp_path / "one")
    calibrated(gateway, 29)
    for number in range(40):
        gateway.chat(f"further {number}")
    sampled(gateway, 69)
    talking.answer = lost_ada
    for number in range(30):
        gateway.chat(f"another {number}")
    found = until(lambda: reasons(gateway) == STALE, 30)
    assert found, gateway.get("/same-answer", ADMIN_KEY).text


def test_answers_that_wait_in_the_queue_are_not_lost(
    serve: Serve, talking: FakePool, tmp_path: Path
) -> None:
    """However long: candidates are called for a few sampled requests at a time."""
    given = configured(talking, watching={"shadow_rate": 1.0}, limits={"deadline_s": 2.5})
    gateway = serve(folder=tmp_path / "one", **given)
    for name in ("bob", "cyd", "dan", "eve"):
        talking.say(name, "0", delay_s=0.6)
    for number in range(24):  # four at a time: 3.6 s
        gateway.chat(f"question {number}")

    def progress() -> dict[str, Any]:
        return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]

    seen: list[int] = []
    assert until(lambda: seen.append(progress()["lost"]) or progress()["rows"] == 24, 30)
    assert set(seen) == {0}
