"""Calibration of one application: its rows are replaced, those of all others stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.routing.prompt_digest import prompt_digest
from app.store import Store
from tests.kit.applications import ACCESS, BOT_KEY
from tests.kit.gateway import (
    DATA_KEY,
    TWO,
    Gateway,
    Restart,
    Serve,
    as_json,
    noisy,
    user,
)

PROMPT = {"role": "system", "content": "You are an agent of the bank."}
DIGEST = prompt_digest({"messages": [PROMPT, *user(TWO)]}) or ""
CONFIGURED: dict[str, Any] = {
    "applications": {
        "bot": {"keys": ["bot"], "premise": "drawn", "alpha": 0.3},
        "search": {},
        "agent": {"prompts": [DIGEST]},
    },
    "access": ACCESS,
    "routing": {"alpha": 0.2, "levels": []},
}


def drawn(start: int, count: int, **fields: Any) -> list[dict[str, Any]]:
    """Whole requests of the bot."""
    return [
        {"request": {"messages": user(row["query"])}, "correct": row["correct"]}
        | {"application": "bot"}
        | fields
        for row in as_json(noisy(start, count))
    ]


def named(name: str, start: int, count: int) -> list[dict[str, Any]]:
    """Rows of an application whose requests are like its rows."""
    return [row | {"application": name} for row in as_json(noisy(start, count))]


FULL = [*drawn(20_000, 60), *named("search", 30_000, 80), *as_json(noisy(40_000, 120))]


def certificates(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """What decides a request of each application, without the id of the calibration."""
    found: dict[str, dict[str, Any]] = {}
    for name, key, body in (
        ("bot", BOT_KEY, {}),
        ("search", DATA_KEY, {"application": "search"}),
        ("default", DATA_KEY, {}),
    ):
        response = gateway.post("/route", key, json={"query": TWO, **body})
        assert response.status_code == 200, response.text
        found[name] = response.json()["certificate"]
        del found[name]["remarks"]  # queries repeat
        assert found[name].pop("calibration_id") == gateway.ready()["calibration"]
    return found


@pytest.fixture
def calibrated(serve: Serve, noisy_artifact: Path) -> Gateway:
    """A gateway that has rows of all applications but the agent's."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, **CONFIGURED)
    gateway.upload(FULL, alpha=0.2)
    return gateway


@pytest.mark.parametrize("name", ["bot", "search"])
def test_the_rows_of_one_application_are_replaced(calibrated: Gateway, name: str) -> None:
    """Drawn ones and alike ones; the thresholds of all others are what they were."""
    before = certificates(calibrated)
    rows = drawn(50_000, 90) if name == "bot" else named("search", 50_000, 90)
    result = calibrated.upload(rows, application=name)
    after = certificates(calibrated)
    counted = sum(any(row["correct"].values()) for row in rows)
    assert all(each["holds"] for each in after.values())
    assert (after[name]["n"], after[name] != before[name]) == (counted, True)
    others = before.keys() - {name}
    assert {each: after[each] for each in others} == {each: before[each] for each in others}
    evidence = result["evidence"]
    sizes = {each["application"]: each["rows"] for each in evidence["applications"]}
    assert sizes == {"bot": 60, "search": 80, "default": 120} | {name: 90}
    own = evidence["uploads"][name]
    assert (own["rows"], own["n"], own["alpha"]) == (90, counted, 0.3 if name == "bot" else 0.2)
    assert own["source"]["bytes"] > 0
    assert own["lambda_hat"] == after[name]["lambda_hat"]
    assert evidence["shift"]["application"] == name
    first, second = evidence["replaced"]["calibration_id"], result["id"]
    assert evidence["replaced"]["earlier"] == {each: [first] for each in others}
    third = calibrated.upload(as_json(noisy(60_000, 90)), application="default")["evidence"]
    assert third["replaced"]["earlier"] == {name: [second]} | {
        each: [first, second] for each in others - {"default"}
    }


@pytest.mark.parametrize("count", [40, 250], ids=["fewest", "most"])
def test_each_application_keeps_the_kind_of_its_rows(
    serve: Serve, noisy_artifact: Path, count: int
) -> None:
    """Traffic of one beside a list of questions of the others, whichever has the most rows."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, **CONFIGURED)
    gateway.upload(FULL, alpha=0.2, rows_kind="questions")
    rows = drawn(50_000, count)
    evidence = gateway.upload(rows, application="bot", rows_kind="traffic")["evidence"]
    with Store(gateway.settings.store) as store:
        record = store.record(gateway.ready()["calibration"])
    assert not record.counts_repeats
    kinds = {name: record.counts_repeats_of(name) for name in ("bot", "search", "default")}
    assert kinds == {"bot": True, "search": False, "default": False}
    assert evidence["sample"]["kind"] == "questions"


def test_an_application_may_be_the_first_to_be_calibrated(
    serve: Serve, noisy_artifact: Path
) -> None:
    """Requests of the others are void until their rows come, in any order."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, **CONFIGURED)
    gateway.upload(drawn(20_000, 60), application="bot", alpha=0.2)
    found = certificates(gateway)
    assert [found[name]["holds"] for name in ("bot", "search", "default")] == [True, False, False]
    assert "group_uncalibrated" in found["search"]["reasons"]
    gateway.upload(as_json(noisy(40_000, 120)), application="default")
    gateway.upload(named("search", 30_000, 80), application="search")
    assert all(each["holds"] for each in certificates(gateway).values())
    gateway.upload(FULL, alpha=0.2)
    together = certificates(gateway)
    assert {n: c["lambda_hat"] for n, c in together.items()} == {
        name: each["lambda_hat"] for name, each in certificates(gateway).items()
    }


def test_a_restarted_gateway_has_the_replaced_rows(restart: Restart, noisy_artifact: Path) -> None:
    """Weights, reasons and terms of each population are stored."""
    with restart(artifact=noisy_artifact, **CONFIGURED) as gateway:
        gateway.upload(FULL, alpha=0.2)
        scored = [
            {"scores": {"adder": 0.9, "speller": 0.5, "poet": 0.1}, "correct": row["correct"]}
            | {"application": "search"}
            for row in as_json(noisy(60_000, 60))
        ]
        gateway.upload(drawn(50_000, 90, weight=100), application="bot")
        gateway.upload(scored, application="search")
        before = certificates(gateway)
    assert "row_scores_unverified" in before["search"]["reasons"]
    assert [before[name]["holds"] for name in ("bot", "default")] == [True, True]
    with restart(artifact=noisy_artifact, **CONFIGURED) as gateway:
        assert certificates(gateway) == before


@pytest.mark.parametrize(
    ("name", "more", "status", "problem"),
    [
        ("bot", named("search", 50_000, 1), 400, "row 31 is of 'search'"),
        ("bot", as_json(noisy(50_000, 1)), 400, "row 31 names no application"),
        ("bott", [], 404, "no application 'bott'"),
    ],
    ids=["another", "none", "unknown"],
)
def test_rows_of_others_are_refused(
    calibrated: Gateway, name: str, more: list[dict[str, Any]], status: int, problem: str
) -> None:
    """Whichever they belong to, their rows would calibrate the wrong population."""
    before = calibrated.ready()
    rows = [*drawn(50_000, 30), *more]
    assert problem in calibrated.refused(rows, status, application=name)
    assert calibrated.ready() == before


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"alpha": 0.1}, "alpha 0.1 is not that of the active calibration, 0.2"),
        ({"score": "prob"}, "score prob is not that of the active calibration, "),
        ({"r": 2}, "r 2 is not that of the active calibration, 1"),
    ],
)
def test_the_others_keep_their_promise(
    calibrated: Gateway, options: dict[str, Any], problem: str
) -> None:
    """One record has one promise, but for the alpha that applications are configured with."""
    rows = drawn(50_000, 30)
    message = calibrated.refused(rows, 400, application="bot", **options)
    assert problem in message


def test_an_application_may_have_a_delta_of_its_own(calibrated: Gateway) -> None:
    """As the verdicts of a judge need one; it stays until another one is stated."""
    calibrated.upload(drawn(50_000, 90), application="bot", delta=0.3)
    for rows in (drawn(60_000, 90), drawn(70_000, 90)):
        found = certificates(calibrated)
        assert all(each["holds"] for each in found.values())
        deltas = {name: each["guarantee"]["delta"] for name, each in found.items()}
        assert deltas == {"bot": 0.3, "search": None, "default": None}
        calibrated.upload(rows, application="bot")


def test_a_shift_is_that_of_the_application(calibrated: Gateway) -> None:
    """Of its sets, not of those of the largest population; too few of its rows are refused."""
    sure = [row | {"correct": ["adder"], "candidates": ["adder", "speller", "poet"]}
            for row in drawn(50_000, 90)]  # fmt: skip
    assert "it needs 3" in calibrated.refused(sure[:2], 409, application="bot")
    found = calibrated.upload(sure, application="bot")["evidence"]["shift"]
    assert (found["application"], found["alert"] is None) == ("bot", False)
    assert abs(found["size_change"]) > 0.25
    assert certificates(calibrated)["bot"]["n"] == 90


def test_a_change_of_membership_needs_the_rows_of_all(
    restart: Restart, noisy_artifact: Path
) -> None:
    """The rows of the others are of other populations than their requests."""
    with restart(artifact=noisy_artifact, **CONFIGURED) as gateway:
        gateway.upload(FULL, alpha=0.2)
    moved = {**CONFIGURED["applications"], "search": {"prompts": ["0" * 32]}}
    with restart(artifact=noisy_artifact, **CONFIGURED | {"applications": moved}) as gateway:
        message = gateway.refused(drawn(50_000, 60), 400, application="bot")
        assert "since the active calibration, what belongs to `applications` changed" in message


def test_rows_without_a_name_that_belong_to_an_application_are_refused(
    serve: Serve, noisy_artifact: Path
) -> None:
    """Rows of mixed applications without names would all be rows of ``default``."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, **CONFIGURED)
    rows = as_json(noisy(40_000, 60))
    rows[7] = {
        "request": {"messages": [PROMPT, *user(rows[7]["query"])]}, "correct": rows[7]["correct"]
    }  # fmt: skip
    message = gateway.refused(rows, 422)
    assert "row 8: its system prompt and tools are those of the application 'agent'" in message
    rows[7] |= {"application": "agent"}
    gateway.upload(rows)


def bases(gateway: Gateway) -> dict[str, str]:
    """How the alpha of each application was chosen."""
    found = certificates(gateway)
    return {name: each["guarantee"]["alpha_basis"] for name, each in found.items()}


@pytest.mark.parametrize("count", [80, 300], ids=["few", "most"])
def test_an_alpha_is_picked_for_the_rows_that_were_seen_alone(
    restart: Restart, noisy_artifact: Path, count: int
) -> None:
    """Whichever part of the record has the most rows, and after a restart."""
    rows = named("search", 60_000, count)
    expected = {"bot": "fixed", "search": "band", "default": "fixed"}
    before: dict[str, Any] = CONFIGURED | {"routing": {"alpha": 0.1, "levels": []}}
    with restart(artifact=noisy_artifact, **before) as gateway:
        gateway.upload(rows, dry_run=True)  # at the configured alpha of 0.1
    with restart(artifact=noisy_artifact, **CONFIGURED) as gateway:
        gateway.upload(FULL)
        assert bases(gateway) == dict.fromkeys(expected, "fixed")
        gateway.upload(rows, application="search")
        assert bases(gateway) == expected
    with restart(artifact=noisy_artifact, **CONFIGURED) as gateway:
        assert bases(gateway) == expected
