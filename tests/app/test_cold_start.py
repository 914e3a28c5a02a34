"""Sampling before an artifact exists, and rows that outlive artifacts and configurations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.support.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Gateway,
    configure,
    running,
)
from tests.support.samples import KEY, sampled, shadow_rows
from tests.upstreams.scripted import FakePool

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
