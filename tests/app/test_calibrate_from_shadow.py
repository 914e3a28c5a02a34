"""``racer calibrate --from-shadow``: recalibration from the sample of live traffic."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from app.cli.console import start_of
from app.store import KeyPurpose, Store, now
from racer_core.calibration.shadow import is_sampled
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    POOL,
    Command,
    Gateway,
    Restart,
    Serve,
    as_json,
    labelled,
    user,
)
from tests.kit.monitored import KEY, sampled, shadow_rows


def ask_and_label(gateway: Gateway, start: int, count: int, application: str | None = None) -> None:
    """Requests of which each gets a verdict on every candidate."""
    rows = labelled(start, count)
    for row in rows.rows:
        answer = gateway.chat(row.query, application and {"application": application})
        verdicts = {name: name in row.correct for name in rows.pool}
        body = {"decision_id": answer["id"], "correct": verdicts}
        assert gateway.post("/feedback", ADMIN_KEY, json=body).status_code == 200


def label_everything(gateway: Gateway) -> list[str]:
    """A verdict on every candidate of every sampled decision; returns their ids."""
    ids = [row["decision_id"] for row in shadow_rows(gateway)]
    for each in ids:
        body = {"decision_id": each, "correct": dict.fromkeys(POOL, True)}
        assert gateway.post("/feedback", ADMIN_KEY, json=body).status_code == 200
    return ids


def test_the_sample_of_live_traffic_calibrates(serve: Serve, racer: Command) -> None:
    """The rows go the way of an upload: weights, evidence and the activation rule are its own."""
    gateway = serve(watching={"shadow_rate": 1.0})
    before = gateway.ready()["calibration"]
    ask_and_label(gateway, 20_000, 40)
    at = ("--from-shadow", "--url", gateway.url, "--key", ADMIN_KEY)
    code, out, err = racer("calibrate", *at, "--json")
    assert code == 0, err
    result = json.loads(out)
    evidence = result["evidence"]
    assert (evidence["rows"], evidence["unlabelled"], evidence["weights"]) == (40, 0, None)
    assert (evidence["sample"]["kind"], evidence["sample"]["guessed"]) == ("traffic", False)
    assert evidence["shift"]["active_id"] == before
    assert gateway.ready()["calibration"] == result["id"] != before


def test_rows_of_several_rates_are_thinned(restart: Restart, racer: Command) -> None:
    """The rate rises from 0.2 to 1: a law without weights, and how to take all rows since."""
    for rate in (0.0, 0.2, 1.0):
        watching = {"shadow_rate": rate, "store_requests": rate > 0.0}
        with restart(
            watching=watching, environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
        ) as gateway:
            if rate == 0.0:
                gateway.chat("What comes before the sample?")
                continue
            start = 20_000 + round(100 * rate)
            for row in labelled(start, 60).rows:
                gateway.chat(row.query)
            if rate < 1.0:
                continue
            sampled(gateway, 60)
            drawn = label_everything(gateway)
            with Store(gateway.settings.store) as store:
                key = store.key(KeyPurpose.SAMPLES)
            kept = [each for each in drawn if is_sampled(key, each.encode(), 0.2)]
            assert len(drawn) - 60 < len(kept) < len(drawn)
            at = ("--from-shadow", "--url", gateway.url, "--key", ADMIN_KEY, "--json")
            code, out, err = racer("calibrate", *at, "--alpha", "0.5", "--delta", "0.5")
            assert code == 0, err
            evidence = json.loads(out)["evidence"]
            source = evidence["source"]
            (sampling,) = source["sampling"]
            assert (evidence["rows"], evidence["weights"]) == (len(kept), None)
            assert (sampling["drawn"], sampling["kept"]) == (len(drawn), len(kept))
            assert (sampling["rate"], sampling["unsampled"], source["since"]) == (0.2, 1, None)
            said = " ".join(err.split())
            assert f"{len(kept)} of {len(drawn)} sampled rows were used" in said
            assert "1 requests came while the sampling was off" in said
            assert f"--since {sampling['since']}" in said
            code, out, err = racer("calibrate", *at, "--since", sampling["since"])
            assert code == 0, err
            evidence = json.loads(out)["evidence"]
            assert (evidence["rows"], evidence["source"]["since"]) == (60, sampling["since"])
            assert "sampled rows were used" not in err
            body = {"rows": shadow_rows(gateway), "since": sampling["since"]}
            response = gateway.post("/calibrate", ADMIN_KEY, json=body)
            assert (response.status_code, "before `since`" in response.text) == (400, True)
            rows = [row | {"weight": 5.0} for row in shadow_rows(gateway)]
            response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows})
            assert response.status_code == 422
            assert "was not drawn at the rate 0.2 that its weight states" in response.text


def test_a_turn_that_was_sent_again_gives_one_row(serve: Serve, racer: Command) -> None:
    """Six conversations, whose first later turn was sent twice; second ones are not drawn at 1."""
    gateway = serve(
        watching={"shadow_rate": 1.0, "store_requests": True},
        environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY},
    )
    before = gateway.ready()["calibration"]
    ask_and_label(gateway, 20_000, 40)
    for place in range(18):
        answer = {"role": "assistant", "content": "Hi"}
        turns: list[Any] = [*user(f"Hello {place // 3}"), answer, *user("And?")]
        turns += [answer, *user(labelled(30_000 + place, 1).queries[0])] * (place % 3 == 2)
        gateway.post("/v1/chat/completions", json={"model": "auto", "messages": turns})
    sampled(gateway, 52)
    at = ("--from-shadow", "--url", gateway.url, "--key", ADMIN_KEY, "--json")
    code, out, err = racer("calibrate", *at)
    assert code == 0, err
    evidence = json.loads(out)["evidence"]
    (sampling,) = evidence["source"]["sampling"]
    assert (sampling["drawn"], sampling["kept"], sampling["turns"]) == (52, 46, 1)
    assert evidence["sample"]["shared_clusters"] == 0
    assert evidence["sample"]["later_turns_answered_by"] == {before: 6}
    assert "46 of 52 sampled rows were used" in " ".join(err.split())


def test_what_fails_the_checks_is_not_activated(serve: Serve, racer: Command) -> None:
    """Exit code 1, as of an upload by hand; the active calibration stays."""
    gateway = serve(watching={"shadow_rate": 1.0})
    before = gateway.ready()["calibration"]
    ask_and_label(gateway, 20_000, 5)
    code, _, err = racer("calibrate", "--from-shadow", "--url", gateway.url, "--key", ADMIN_KEY)
    assert (code, "no finite threshold keeps alpha" in err) == (1, True)
    assert gateway.ready()["calibration"] == before


def test_an_empty_sample_says_what_is_missing(serve: Serve, racer: Command) -> None:
    """Nothing is uploaded."""
    gateway = serve()
    before = gateway.ready()["calibration"]
    code, _, err = racer("calibrate", "--from-shadow", "--url", gateway.url, "--key", ADMIN_KEY)
    assert (code, "has no sampled rows" in err, "watching.shadow_rate" in err) == (1, True, True)
    assert gateway.ready()["calibration"] == before


def test_each_application_is_calibrated_by_itself(serve: Serve, racer: Command) -> None:
    """One without labels keeps what it has, and the others go on; the exit code says so."""
    applications = {"search": {}, "support": {}}
    gateway = serve(
        calibrated=False,
        watching={"shadow_rate": 1.0, "store_requests": True},
        applications=applications,
        environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY},
    )
    rows = as_json(labelled(10_000, 60))
    named = [row | {"application": name} for row in rows for name in ("support", "default")]
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": named})
    assert response.status_code == 200, response.text
    ask_and_label(gateway, 20_000, 40)
    ask_and_label(gateway, 30_000, 40, application="search")
    for row in labelled(40_000, 5).rows:
        gateway.chat(row.query, {"application": "support"})
    sampled(gateway, 85)
    at = ("--from-shadow", "--url", gateway.url, "--key", ADMIN_KEY)
    code, out, err = racer("calibrate", *at)
    assert code == 1
    assert "application support: none of the 5 rows has a label" in " ".join(err.split())
    shown = [line.split() for line in out.splitlines()]
    names = [words[1] for words in shown if words[:1] == ["application"]]
    assert sorted(names) == ["default", "search"]
    stored = gateway.get(f"/calibrations/{gateway.ready()['calibration']}", ADMIN_KEY).json()
    evidence = stored["evidence"]
    sizes = {each["application"]: each["rows"] for each in evidence["applications"]}
    assert sizes["search"] == sizes["default"] == 40
    assert sizes["support"] > 0
    assert evidence["uploads"].keys() == {"search", "default"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give ROWS or --from-shadow"),
        (("rows.jsonl", "--from-shadow"), "give ROWS or --from-shadow"),
        (("--from-shadow", "--since", "soon"), "'soon' is neither a time in ISO 8601"),
    ],
)
def test_rows_come_from_one_place(racer: Command, arguments: tuple[str, ...], problem: str) -> None:
    """A file or the gateway; the error names the option."""
    code, _, err = racer("calibrate", *arguments)
    assert code == 2
    assert problem in err


def test_a_time_is_given_as_such_or_in_days() -> None:
    """A job that runs every night names a window."""
    assert start_of("2026-01-31T12:00:00+00:00") == "2026-01-31T12:00:00+00:00"
    start = datetime.fromisoformat(start_of("30d"))
    age = datetime.fromisoformat(now()) - start
    assert timedelta(days=30) <= age < timedelta(days=30, minutes=1)
