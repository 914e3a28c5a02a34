"""Sampling before an artifact exists, and rows that outlive artifacts and configurations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Gateway,
    as_json,
    candidates,
    configure,
    labelled,
    running,
)
from tests.kit.monitored import KEY, sampled, shadow_rows
from tests.kit.upstream import FakePool

KEYED = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
SAMPLING: dict[str, Any] = {"shadow_rate": 1.0, "store_requests": True, "feedback": "all"}


def ask(gateway: Gateway, *queries: str, adder: bool = True) -> list[str]:
    """Ask and judge them: the adder is right or not, the others are wrong; returns the ids."""
    ids: list[str] = []
    for query in queries:
        decision_id = gateway.chat(query)["id"]
        correct = {name: adder and name == "adder" for name in gateway.settings.pool}
        verdicts = {"decision_id": decision_id, "correct": correct}
        gateway.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()
        ids.append(decision_id)
    return ids


def ids_of(rows: list[dict[str, Any]]) -> list[str]:
    """The decisions of rows."""
    return [row["decision_id"] for row in rows]


def test_sampling_begins_before_there_is_an_artifact(
    tmp_path: Path, artifact: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """The fallback's traffic becomes rows, which a first artifact and the next one calibrate by."""
    place = tmp_path / "artifact"
    path = configure(tmp_path, place, pool.url, watching=SAMPLING)
    with running(path, KEYED) as gateway:
        assert "artifact" in [each["part"] for each in gateway.ready()["missing"]]
        asked = ask(gateway, ONE, TWO)
        assert sampled(gateway, 2) == {"whole": 2}
        rows = shadow_rows(gateway)
        assert ids_of(rows) == asked
        for row in rows:
            assert row["correct"] == {name: name == "adder" for name in POOL}
            assert set(row["answers"]) == set(POOL)
            assert "request" in row
    for trained in (artifact, noisy_artifact):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(trained, place)
        with running(path, KEYED) as gateway:
            rows = shadow_rows(gateway)
            assert ids_of(rows) == asked
            upload = {"rows": rows, "confirm": True, "rows_kind": "traffic"}
            response = gateway.post("/calibrate", ADMIN_KEY, json=upload)
            assert response.status_code == 200, response.text


def test_rows_outlive_artifact_and_pool_where_their_requests_are_stored(
    tmp_path: Path, artifact: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """Rows of another artifact are scored anew; those that lack a candidate can be labelled."""
    path = configure(tmp_path, artifact, pool.url, watching=SAMPLING)
    with running(path, KEYED) as gateway:
        upload = {"rows": as_json(labelled(20_000, 60)), "confirm": True}
        gateway.post("/calibrate", ADMIN_KEY, json=upload).raise_for_status()
        asked = ask(gateway, ONE, TWO)
        assert sampled(gateway, 2) == {"whole": 2}
    path = configure(tmp_path, noisy_artifact, pool.url, watching=SAMPLING)
    with running(path, KEYED) as gateway:
        rows = shadow_rows(gateway)
        assert ids_of(rows) == asked
        assert all("correct" in row and "scores" not in row for row in rows)
        again = {"rows": rows, "confirm": True, "rows_kind": "traffic"}
        response = gateway.post("/calibrate", ADMIN_KEY, json=again)
        assert response.status_code == 200, response.text
    # A candidate that is sent something else is another one.
    changed = candidates(pool.url)
    changed[0]["parameters"] = {"temperature": 0.5}
    path = configure(tmp_path, noisy_artifact, pool.url, watching=SAMPLING, candidates=changed)
    with running(path, KEYED) as gateway:
        assert shadow_rows(gateway) == []
        rows = shadow_rows(gateway, "?pool=any")
        assert ids_of(rows) == asked
        assert all(set(row["answers"]) == set(row["conditions"]) == set(POOL) for row in rows)
        assert gateway.get("/shadow/rows?pool=all", ADMIN_KEY).status_code in (400, 422)


def test_scores_of_another_artifact_are_no_rows(
    tmp_path: Path, artifact: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """Without stored requests nothing can be scored anew."""
    for trained, count in ((artifact, 1), (noisy_artifact, 0)):
        path = configure(tmp_path, trained, pool.url, watching={"shadow_rate": 1.0})
        with running(path, ENVIRONMENT) as gateway:
            if count:
                upload = {"rows": as_json(labelled(20_000, 60)), "confirm": True}
                gateway.post("/calibrate", ADMIN_KEY, json=upload).raise_for_status()
                ask(gateway, ONE)
                sampled(gateway, 1)
            assert len(shadow_rows(gateway)) == count
