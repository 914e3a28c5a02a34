"""`turns: together`: first and later turns of an application are one population, by session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import SettingsError
from app.monitoring.drift.statistics import SET_SIZE, new_drift_state
from app.store.calibration_record import CalibrationRecord
from tests.kit.applications import ACCESS, BOT_KEY, drawn_rows, later, upload, whole
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    Gateway,
    Serve,
    configure,
    error_message,
    running,
    user,
)
from tests.kit.monitored import KEY, calibration_record, sampled, shadow_rows
from tests.kit.upstream import FakePool

RATE = 0.25
BOT: dict[str, Any] = {"keys": ["bot"], "premise": "drawn", "turns": "together"}
ANSWER = {"role": "assistant", "content": "7"}
SESSION = {"x-session-id": "of this conversation"}


def certificate(
    gateway: Gateway, body: dict[str, Any], headers: dict[str, str] | None
) -> dict[str, Any]:
    """The certificate of a chat answer."""
    body = {"model": "auto", **body}
    response = gateway.post("/v1/chat/completions", BOT_KEY, json=body, headers=headers or {})
    assert response.status_code == 200, response.text
    return response.json()["racer"]["certificate"]


def rows_of_turns() -> list[dict[str, Any]]:
    """As many rows of first turns as of later ones."""
    turns = [row | {"request": later(row["request"])} for row in drawn_rows(40, 30_000)]
    return [row | {"application": "bot"} for row in (*drawn_rows(40), *turns)]


def test_first_and_later_turns_have_one_threshold(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Certificates say so; a request of an unknown conversation has none, as after a change."""
    with running(with_bot(tmp_path, artifact, pool, BOT), ENVIRONMENT) as gateway:
        made = upload(gateway, [*rows_of_turns(), *drawn_rows(60, 50_000)], rows_kind="traffic")
        assert "later_turns" not in made["evidence"]
        first, after = (certificate(gateway, each, SESSION) for each in both())
        assert (first["holds"], after["holds"]) == (True, True)
        assert first["lambda_hat"] == after["lambda_hat"]
        assert first["n"] == after["n"] > 40
        assert first["guarantee"]["turns"] == after["guarantee"]["turns"] == "together"
        assert "later_turn" in after["reasons"]
        for body in both():
            found = certificate(gateway, body, None)
            assert (found["holds"], "not_drawn" in found["reasons"]) == (False, True)
    separate = {**BOT, "turns": "separate"}
    with running(with_bot(tmp_path, artifact, pool, separate), ENVIRONMENT) as gateway:
        found = certificate(gateway, whole(TWO), SESSION)
        assert (found["holds"], "grouping_changed" in found["reasons"]) == (False, True)


def both() -> tuple[dict[str, Any], dict[str, Any]]:
    """A first and a later turn."""
    return whole(TWO), later(whole(TWO))


def with_bot(path: Path, artifact: Path, pool: FakePool, bot: dict[str, Any]) -> Path:
    """The configuration with this application."""
    return configure(path, artifact, pool.url, access=ACCESS, applications={"bot": bot})


def test_at_most_one_turn_of_a_session_is_drawn(serve: Serve) -> None:
    """Be it the first; and requests without a session are no rows."""
    gateway = serve(
        calibrated=False,
        access=ACCESS,
        applications={"bot": {**BOT, "shadow_rate": RATE}},
        watching={"store_requests": True},
        environment={**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY},
    )
    drawn = 0
    for name in range(12):
        turns: list[Any] = user(f"{ONE} {name}")
        for turn in range(4):  # as many as the rate allows: exactly one is drawn
            headers = {"x-session-id": f"{name}"}
            body = {"model": "auto", "messages": turns}
            found = gateway.post("/v1/chat/completions", BOT_KEY, json=body, headers=headers)
            drawn += "shadow_rate" in found.json()["racer"]
            turns = [*turns, ANSWER, *user(f"{name} and {turn}?")]
    assert drawn == 12
    alone = 0
    for name in range(12):
        body = {"model": "auto", "messages": user(f"{ONE} alone {name}")}
        found = gateway.post("/v1/chat/completions", BOT_KEY, json=body)
        alone += "shadow_rate" in found.json()["racer"]
    sampled(gateway, drawn + alone)
    rows = shadow_rows(gateway)
    assert len(rows) == drawn == len({row["cluster"] for row in rows})
    assert all(len(row["request"]["messages"]) == 2 * row["turn"] + 1 for row in rows)
    forged = [{**row, "turn": (row["turn"] + 1) % 4} for row in rows]
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": forged, "dry_run": True})
    assert "was not drawn at the rate" in error_message(response, 422)


def test_turns_are_together_where_rows_are_drawn(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Nothing else has them in the shares of the traffic."""
    path = with_bot(tmp_path, artifact, pool, {**BOT, "premise": "alike"})
    with pytest.raises(SettingsError, match="needs `premise: drawn`"), running(path, ENVIRONMENT):
        pass


def test_first_turns_are_not_compared_with_rows_of_all_turns() -> None:
    """They differ, and no alarm may say so; the stored record tells."""
    record = calibration_record()
    [population] = record.populations
    record = replace(record, populations=(replace(population, together=True),))
    document, arrays = record.encoded()
    stored = CalibrationRecord.decoded(record.id, record.created_at, "a", document, arrays)
    assert stored.populations[0].together
    rng = np.random.default_rng(1)
    assert len(new_drift_state(record.calibration, 0.01, rng).streams) > 1
    found = new_drift_state(record.calibration, 0.01, rng, together=True)
    assert set(found.streams) == {SET_SIZE}
