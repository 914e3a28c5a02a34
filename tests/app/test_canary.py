"""Canary: a calibration decides a share of the requests beside the active one.

It is promoted, rolled back, or ended by its own drift alarm.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import Conflict
from app.routing.active_calibration import Canary
from app.store import Store
from app.store.tables import WatchRow
from racer_core.calibration.shadow import is_sampled
from racer_core.calibration.threshold import calibrate_threshold
from tests.core.laws import assert_binomial
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    POOL,
    TWO,
    Gateway,
    Serve,
    decided,
    error_message,
    labelled,
    noisy,
    running,
    user,
)
from tests.kit.monitored import add_verdicts
from tests.kit.stores import record
from tests.kit.waiting import wait_until

KEY = b"k" * 32
FALSE_ALARM = 1e-6


def canary(share: float, name: str = "cal-1", key: bytes = KEY) -> Canary:
    """A canary of random rows."""
    return Canary(record=record(name), share=share, key=key)


def stored(gateway: Gateway, seed: int = 1) -> str:
    """A calibration that is stored and not active; every seed has another threshold."""
    return gateway.calibrate(rows=noisy(20_000 + 1_000 * seed, 120), activate=False)["id"]


def listed(gateway: Gateway) -> dict[str, Any] | None:
    """The canary as GET /calibrations shows it."""
    return gateway.get("/calibrations", ADMIN_KEY).json()["canary"]


def shares(gateway: Gateway) -> dict[str, float]:
    """The calibrations that GET /calibrations marks with a share."""
    data = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
    return {each["id"]: each["share"] for each in data if "share" in each}


def deciding(gateway: Gateway, texts: Iterable[str]) -> Counter[str]:
    """How many certificates each calibration gives."""
    return Counter(gateway.route(text)["certificate"]["calibration_id"] for text in texts)


def questions(start: int, count: int) -> list[str]:
    """Questions that the adder alone is right on."""
    return [f"What is {number} plus {number + 7}?" for number in range(start, start + count)]


# The draw ----------------------------------------------------------------------------------------


def test_a_canary_decides_its_share_independently() -> None:
    """Of canaries and stores and of the sample with its key; of 20,000 ids, false alarm 4e-6."""
    ids = [f"chatcmpl-{number}" for number in range(20_000)]
    first, large = canary(0.1), canary(0.4)
    assert_binomial(sum(map(first.decides, ids)), 20_000, 0.1, FALSE_ALARM)
    assert all(large.decides(each) for each in ids if first.decides(each))
    for other in (canary(0.1, "cal-2"), canary(0.1, key=b"j" * 32)):
        both = sum(first.decides(each) and other.decides(each) for each in ids)
        assert_binomial(both, 20_000, 0.01, FALSE_ALARM)
    both = sum(first.decides(each) and is_sampled(KEY, each.encode(), 0.3) for each in ids)
    assert_binomial(both, 20_000, 0.03, FALSE_ALARM)


def test_both_calibrations_keep_their_exact_risk() -> None:
    """Whatever a score has to do with its session's name: 19 rows each at alpha 0.1.

    The risk of the requests of either is 2 / 20; false alarm 1e-6. With a draw by the plain hash of
    the name, which is the score here, that of the canary would be 0.
    """

    def score(session: str) -> float:
        return int.from_bytes(hashlib.blake2b(session.encode(), digest_size=8).digest()) * 2.0**-64

    beside = canary(0.3)
    decided_by, missed = Counter[bool](), Counter[bool]()
    for trial in range(6_000):
        *rows, request = (f"session-{trial}-{number}" for number in range(20))
        is_canary = beside.decides(request)
        decided_by[is_canary] += 1
        threshold = calibrate_threshold(np.array([score(each) for each in rows]), 0.1)
        missed[is_canary] += score(request) > threshold
    assert min(decided_by.values()) > 1_000
    for each, count in decided_by.items():
        assert_binomial(missed[each], count, 2 / 20, FALSE_ALARM / 2)


# Requests ----------------------------------------------------------------------------------------


def test_requests_are_shared_and_each_certificate_names_its_calibration(serve: Serve) -> None:
    """400 requests at 0.3; false alarm 1e-6. Either calibration decides as it does alone."""
    gateway = serve()
    active, other = gateway.ready()["calibration"], stored(gateway)
    before = gateway.decided(TWO)
    answer = gateway.activate(other, share=0.3)
    assert answer.status_code == 200
    assert (answer.json()["active"], answer.json()["share"]) == (False, 0.3)
    assert gateway.ready()["calibration"] == active
    found = deciding(gateway, questions(0, 400))
    assert found.keys() == {active, other}
    assert_binomial(found[other], 400, 0.3, FALSE_ALARM)
    by_calibration = {
        each["certificate"]["calibration_id"]: each
        for each in (gateway.route(TWO) for _ in range(60))
    }
    decision = by_calibration[other]["decision_id"]
    verified = gateway.post(f"/decisions/{decision}/verify", ADMIN_KEY)
    assert verified.json()["matches"], verified.text
    assert decided(by_calibration[active]) == before
    assert gateway.activate(other).status_code == 200  # promoted
    assert gateway.decided(TWO) == decided(by_calibration[other])
    assert before["certificate"]["lambda_hat"] != gateway.decided(TWO)["certificate"]["lambda_hat"]


# Promotion and rollback --------------------------------------------------------------------------


def test_promotion_and_rollback(serve: Serve) -> None:
    """An activation without a share decides all; another share of the same canary goes on."""
    gateway = serve()
    active, other = gateway.ready()["calibration"], stored(gateway)
    assert listed(gateway) is None
    gateway.activate(other, share=0.5)
    begun = listed(gateway)
    assert begun is not None
    assert shares(gateway) == {other: 0.5}
    assert gateway.get(f"/calibrations/{other}", ADMIN_KEY).json()["share"] == 0.5
    assert (begun["calibration_id"], begun["share"], begun["ended"]) == (other, 0.5, None)
    gateway.activate(other, share=0.999)
    raised = listed(gateway)
    assert raised is not None
    assert (raised["share"], raised["since"]) == (0.999, begun["since"])
    assert deciding(gateway, questions(0, 20))[other] >= 18
    gateway.activate(active)  # rolled back
    assert listed(gateway) is None
    assert shares(gateway) == {}
    assert deciding(gateway, questions(0, 20)) == {active: 20}
    gateway.activate(other, share=0.5)
    gateway.activate(other)  # promoted
    assert listed(gateway) is None
    assert gateway.ready()["calibration"] == other
    assert deciding(gateway, questions(0, 20)) == {other: 20}
    assert "racer_canary_share 0.0" in gateway.get("/metrics").text


def test_what_cannot_be_a_canary(serve: Serve) -> None:
    """The active one, one beside another than expected, one of too few rows, no share of 1."""
    gateway = serve()
    active, other = gateway.ready()["calibration"], stored(gateway)
    assert "is the active one" in error_message(gateway.activate(active, share=0.5), 409)
    wrong = gateway.activate(other, share=0.5, expected_active_id=other)
    assert "is not the active one" in error_message(wrong, 409)
    few = gateway.calibrate(rows=noisy(90_000, 5), activate=False)["id"]
    assert "it needs 9" in error_message(gateway.activate(few, share=0.5), 409)
    for share in (0, 1, 1.5, -0.1):
        assert gateway.activate(other, share=share).status_code == 400
    assert listed(gateway) is None


def test_without_an_active_calibration_there_is_no_rest(tmp_path: Path) -> None:
    """The first calibration decides all requests."""
    with Store(f"sqlite:///{tmp_path / 'racer.db'}") as store:
        store.add(record("cal-1"), activate=False)
        with pytest.raises(Conflict, match="without `share`"):
            store.activate("cal-1", None, "a" * 64, 0.5)


def test_the_turns_of_a_session_stay_together(serve: Serve, tmp_path: Path) -> None:
    """Also at another gateway on the store. Of 20 sessions all are alike by a chance of 2e-6."""
    gateway = serve(folder=tmp_path / "shared")
    other = stored(gateway)
    gateway.activate(other, share=0.5)
    begun = listed(gateway)
    assert gateway.config is not None
    with running(gateway.config, ENVIRONMENT) as second:
        wait_until(lambda: listed(second) == begun)

        def calibration(at: Gateway, session: int, text: str) -> str:
            body = {"model": "auto", "messages": user(text)}
            headers = {"x-session-id": f"session-{session}"}
            answer = at.post("/v1/chat/completions", json=body, headers=headers)
            return answer.json()["racer"]["certificate"]["calibration_id"]

        by_session = [
            {
                calibration(at, session, text)
                for text in questions(100 * session, 2)
                for at in (gateway, second)
            }
            for session in range(20)
        ]
        assert all(len(each) == 1 for each in by_session)
        assert len(set[str]().union(*by_session)) == 2
        second.activate(other)
        wait_until(lambda: gateway.ready()["calibration"] == other)
        wait_until(lambda: listed(gateway) is None)


# What both realise -------------------------------------------------------------------------------


def test_both_realised_figures_are_shown(serve: Serve) -> None:
    """Mean set, abstentions and judged risk of each, as the answers said."""
    gateway = serve(watching={"shadow_rate": 1.0})
    active, other = gateway.ready()["calibration"], stored(gateway)
    gateway.activate(other, share=0.5)
    made: dict[str, list[dict[str, Any]]] = {active: [], other: []}
    poems = [f"Write a poem about {number} and {number + 1}" for number in range(700, 710)]
    for text in (*questions(500, 30), *poems):
        answer = gateway.chat(text)["racer"]
        made[answer["certificate"]["calibration_id"]].append(answer)
    losses: dict[str, list[bool]] = {active: [], other: []}
    for name, answers in made.items():
        for each in answers:
            right = "speller" if len(losses[name]) % 3 else "adder"
            add_verdicts(gateway, each["decision_id"], {name: name == right for name in POOL})
            losses[name].append(right not in each["selected"])
    shown = listed(gateway)
    assert shown is not None
    figures = {other: shown["realised"], active: shown["active"]["realised"]}
    assert shown["active"]["calibration_id"] == active
    for name, answers in made.items():
        sizes = [len(each["selected"]) for each in answers]
        found = figures[name]
        assert found["decisions"] == found["at_own_alpha_and_pool"] == len(answers)
        assert found["mean_set"] == pytest.approx(np.mean(sizes))
        assert found["abstained"] == pytest.approx(sizes.count(0) / len(sizes))
        assert found["judged"] == len(answers)
        assert found["risk"] == pytest.approx(np.mean(losses[name]))
        assert found["lower"] <= found["risk"] < found["upper"]


def test_a_canary_that_breaks_its_promise_is_ended(serve: Serve) -> None:
    """Each of its answers is wrong: its alarm ends it, and the active calibration decides all.

    The probability that a canary within its promise is ended is at most 0.01.
    """
    gateway = serve(watching={"shadow_rate": 1.0, "false_alarm": 0.01})
    active = gateway.ready()["calibration"]
    other = gateway.calibrate(rows=labelled(21_000, 120), activate=False)["id"]
    gateway.activate(other, share=0.5)
    for text in [row.query for row in labelled(21_120, 160).rows]:  # like the rows
        answer = gateway.chat(text)["racer"]
        if answer["certificate"]["calibration_id"] == other:
            wrong = {"adder", "speller", "poet"} - set(answer["selected"])
            if wrong:
                correct = {name: name == min(wrong) for name in POOL}
                add_verdicts(gateway, answer["decision_id"], correct)
        shown = listed(gateway)
        if shown is None or shown["ended"]:
            break
    wait_until(lambda: bool((listed(gateway) or {}).get("ended")))
    shown = listed(gateway)
    assert shown is not None
    assert "risk" in shown["ended"] or "critical_score" in shown["ended"]
    assert shown["false_alarm"] == 0.01
    assert shown["realised"]["risk"] == 1.0
    assert deciding(gateway, questions(2_000, 20)) == {active: 20}
    assert shares(gateway) == {}
    again = gateway.activate(other, share=0.5)
    assert "has drift alarms" in error_message(again, 409)


def test_an_alarm_of_another_gateway_ends_a_canary_everywhere(store: Store) -> None:
    """The first of two that read it ends it; the reason stays until the next activation."""
    artifact = "a" * 64
    for name in ("cal-1", "cal-2"):
        store.add(record(name), activate=name == "cal-1")
    store.activate("cal-2", "cal-1", artifact, 0.2)
    with store.transaction() as session:
        watch = WatchRow(
            calibration_id="cal-2",
            application="bot",
            since="2026-11-24T00:00:00.000000+00:00",
            state="{}",
            raised=json.dumps(["risk", "set_size"]),
        )
        session.add(watch)
    found = store.shared_state(artifact).canary
    assert found is not None
    assert (found.ended, found.alarm) == (None, "risk, set_size of bot")
    assert [store.end_canary(artifact, found) for _ in range(2)] == [True, False]
    assert store.shared_state(artifact).canary == replace(found, ended=found.alarm)
    store.activate("cal-1", None, artifact)
    assert store.shared_state(artifact).canary is None
