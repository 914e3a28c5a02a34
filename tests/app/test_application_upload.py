"""Calibration of one application: its rows are replaced, those of all others stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.routing.prompt_digest import prompt_digest
from app.settings import key_format
from app.store import Store
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    TWO,
    Gateway,
    Serve,
    as_json,
    configure,
    error_message,
    noisy,
    running,
    user,
)
from tests.kit.upstream import FakePool

KEY = key_format.new_key()
PROMPT = {"role": "system", "content": "You are an agent of the bank."}
DIGEST = prompt_digest({"messages": [PROMPT, *user(TWO)]}) or ""
CONFIGURED: dict[str, Any] = {
    "applications": {
        "bot": {"keys": ["bot"], "premise": "drawn", "alpha": 0.3},
        "search": {},
        "agent": {"prompts": [DIGEST]},
    },
    "access": {
        "keys": [{"name": "bot", "hash": key_format.format_hash(KEY, key_format.new_salt())}]
    },
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


def post(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> httpx2.Response:
    """POST /calibrate."""
    return gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows, **options})


def upload(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """The same, confirmed and with the status checked."""
    response = post(gateway, rows, **{"confirm": True} | options)
    assert response.status_code == 200, response.text
    return response.json()


def certificates(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """What decides a request of each application, without the id of the calibration."""
    found: dict[str, dict[str, Any]] = {}
    for name, key, body in (
        ("bot", KEY, {}),
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
    upload(gateway, FULL, alpha=0.2)
    return gateway


@pytest.mark.parametrize("name", ["bot", "search"])
def test_the_rows_of_one_application_are_replaced(calibrated: Gateway, name: str) -> None:
    """Drawn ones and alike ones; the thresholds of all others are what they were."""
    before = certificates(calibrated)
    rows = drawn(50_000, 90) if name == "bot" else named("search", 50_000, 90)
    result = upload(calibrated, rows, application=name)
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
    third = upload(calibrated, as_json(noisy(60_000, 90)), application="default")["evidence"]
    assert third["replaced"]["earlier"] == {name: [second]} | {
        each: [first, second] for each in others - {"default"}
    }


@pytest.mark.parametrize("count", [40, 250], ids=["fewest", "most"])
def test_each_application_keeps_the_kind_of_its_rows(
    serve: Serve, noisy_artifact: Path, count: int
) -> None:
    """Traffic of one beside a list of questions of the others, whichever has the most rows."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, **CONFIGURED)
    upload(gateway, FULL, alpha=0.2, rows_kind="questions")
    rows = drawn(50_000, count)
    evidence = upload(gateway, rows, application="bot", rows_kind="traffic")["evidence"]
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
    upload(gateway, drawn(20_000, 60), application="bot", alpha=0.2)
    found = certificates(gateway)
    assert [found[name]["holds"] for name in ("bot", "search", "default")] == [True, False, False]
    assert "group_uncalibrated" in found["search"]["reasons"]
    upload(gateway, as_json(noisy(40_000, 120)), application="default")
    upload(gateway, named("search", 30_000, 80), application="search")
    assert all(each["holds"] for each in certificates(gateway).values())
    upload(gateway, FULL, alpha=0.2)
    together = certificates(gateway)
    assert {n: c["lambda_hat"] for n, c in together.items()} == {
        name: each["lambda_hat"] for name, each in certificates(gateway).items()
    }


def test_a_restarted_gateway_has_the_replaced_rows(
    tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """Weights, reasons and terms of each population are stored."""
    path = configure(tmp_path, noisy_artifact, pool.url, **CONFIGURED)
    with running(path, ENVIRONMENT) as gateway:
        upload(gateway, FULL, alpha=0.2)
        scored = [
            {"scores": {"adder": 0.9, "speller": 0.5, "poet": 0.1}, "correct": row["correct"]}
            | {"application": "search"}
            for row in as_json(noisy(60_000, 60))
        ]
        upload(gateway, drawn(50_000, 90, weight=100), application="bot")
        upload(gateway, scored, application="search")
        before = certificates(gateway)
    assert "row_scores_unverified" in before["search"]["reasons"]
    assert [before[name]["holds"] for name in ("bot", "default")] == [True, True]
    with running(path, ENVIRONMENT) as gateway:
        assert certificates(gateway) == before


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([*drawn(50_000, 30), *named("search", 50_000, 1)], "row 31 is of 'search'"),
        ([*drawn(50_000, 30), *as_json(noisy(50_000, 1))], "row 31 names no application"),
    ],
    ids=["another", "none"],
)
def test_rows_of_others_are_refused(
    calibrated: Gateway, rows: list[dict[str, Any]], problem: str
) -> None:
    """Whichever they belong to, their rows would calibrate the wrong population."""
    before = calibrated.ready()
    message = error_message(post(calibrated, rows, application="bot"), 400)
    assert problem in message
    assert "application 'bot'" in message
    assert calibrated.ready() == before


def test_an_unknown_application_is_not_found(calibrated: Gateway) -> None:
    """A typo must not make a population that no request belongs to."""
    message = error_message(post(calibrated, drawn(50_000, 30), application="bott"), 404)
    assert "no application 'bott'" in message


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
    message = error_message(post(calibrated, rows, application="bot", **options), 400)
    assert problem in message


def test_an_application_may_have_a_delta_of_its_own(calibrated: Gateway) -> None:
    """As the verdicts of a judge need one; it stays until another one is stated."""
    upload(calibrated, drawn(50_000, 90), application="bot", delta=0.3)
    for rows in (drawn(60_000, 90), drawn(70_000, 90)):
        found = certificates(calibrated)
        assert all(each["holds"] for each in found.values())
        deltas = {name: each["guarantee"]["delta"] for name, each in found.items()}
        assert deltas == {"bot": 0.3, "search": None, "default": None}
        upload(calibrated, rows, application="bot")


def test_the_activation_rule_looks_at_the_application(calibrated: Gateway) -> None:
    """Its sets, not those of the largest population; by id, too. The proposal is stored."""
    before = calibrated.ready()["calibration"]
    sure = [row | {"correct": ["adder"], "candidates": ["adder", "speller", "poet"]}
            for row in drawn(50_000, 90)]  # fmt: skip
    message = error_message(post(calibrated, sure, application="bot"), 409)
    assert "a change of the mean set size by more than 25%" in message
    assert calibrated.ready()["calibration"] == before
    stored = calibrated.get("/calibrations", ADMIN_KEY).json()["data"]
    (proposal,) = (each["id"] for each in stored if "refused" in each["evidence"])
    path = f"/calibrations/{proposal}/activate"
    assert "25%" in error_message(calibrated.post(path, ADMIN_KEY, json={}), 409)
    assert calibrated.post(path, ADMIN_KEY, json={"confirm": True}).status_code == 200
    assert certificates(calibrated)["bot"]["n"] == 90


def test_a_change_of_membership_needs_the_rows_of_all(
    tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """The rows of the others are of other populations than their requests."""
    path = configure(tmp_path, noisy_artifact, pool.url, **CONFIGURED)
    with running(path, ENVIRONMENT) as gateway:
        upload(gateway, FULL, alpha=0.2)
    moved = {**CONFIGURED["applications"], "search": {"prompts": ["0" * 32]}}
    path = configure(tmp_path, noisy_artifact, pool.url, **CONFIGURED | {"applications": moved})
    with running(path, ENVIRONMENT) as gateway:
        message = error_message(post(gateway, drawn(50_000, 60), application="bot"), 400)
        assert "since the active calibration, what belongs to `applications` changed" in message


def test_a_dry_run_shows_the_application_alone(calibrated: Gateway) -> None:
    """Its curve; nothing is stored."""
    before = calibrated.ready()
    result = upload(calibrated, drawn(50_000, 90), application="bot", dry_run=True)
    assert result["evidence"]["uploads"]["bot"]["rows"] == 90
    assert result["evidence"]["uploads"]["bot"]["curve"]
    assert calibrated.ready() == before


def test_rows_without_a_name_that_belong_to_an_application_are_refused(
    serve: Serve, noisy_artifact: Path
) -> None:
    """Rows of mixed applications without names would all be rows of ``default``."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, **CONFIGURED)
    rows = as_json(noisy(40_000, 60))
    rows[7] = {
        "request": {"messages": [PROMPT, *user(rows[7]["query"])]}, "correct": rows[7]["correct"]
    }  # fmt: skip
    message = error_message(post(gateway, rows), 422)
    assert "row 8: its system prompt and tools are those of the application 'agent'" in message
    rows[7] |= {"application": "agent"}
    upload(gateway, rows)


def bases(gateway: Gateway) -> dict[str, str]:
    """How the alpha of each application was chosen."""
    found = certificates(gateway)
    return {name: each["guarantee"]["alpha_basis"] for name, each in found.items()}


@pytest.mark.parametrize("count", [80, 300], ids=["few", "most"])
def test_an_alpha_is_picked_for_the_rows_that_were_seen_alone(
    tmp_path: Path, noisy_artifact: Path, pool: FakePool, count: int
) -> None:
    """Whichever part of the record has the most rows, and after a restart."""
    rows = named("search", 60_000, count)
    path = configure(tmp_path, noisy_artifact, pool.url, **CONFIGURED)
    expected = {"bot": "fixed", "search": "band", "default": "fixed"}
    with running(path, ENVIRONMENT) as gateway:
        upload(gateway, rows, dry_run=True)  # at the configured alpha of 0.1
        upload(gateway, FULL, alpha=0.2)
        assert bases(gateway) == dict.fromkeys(expected, "fixed")
        upload(gateway, rows, application="search")
        assert bases(gateway) == expected
    with running(path, ENVIRONMENT) as gateway:
        assert bases(gateway) == expected


def test_rows_that_were_not_seen_change_no_other_basis(serve: Serve, noisy_artifact: Path) -> None:
    """The alpha of the others was picked, and stays so, also beside more rows of one."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, **CONFIGURED)
    upload(gateway, FULL, dry_run=True)
    upload(gateway, FULL, alpha=0.2)
    assert bases(gateway) == {"bot": "fixed", "search": "band", "default": "band"}
    upload(gateway, named("search", 60_000, 300), application="search")
    assert bases(gateway) == {"bot": "fixed", "search": "fixed", "default": "band"}
