"""Rows that repeat queries, through the gateway: upload, overlap, clusters, monitoring."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from app.monitoring.drift.statistics import SET_SIZE, STREAMS, new_drift_state
from racer_core.racer import Racer
from racer_core.types import RowsKind
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    TRAINED,
    Gateway,
    Serve,
    as_json,
    error_message,
    labelled,
    noisy,
)


def upload(gateway: Gateway, rows: list[dict[str, Any]], **query: Any) -> dict[str, Any]:
    """The result of an upload of JSON lines."""
    headers = {"content-type": "application/x-ndjson"}
    response = gateway.post(
        "/calibrate",
        ADMIN_KEY,
        content="".join(json.dumps(row) + "\n" for row in rows),
        headers=headers,
        params=query,
    )
    assert response.status_code == 200, response.text
    return response.json()


def test_the_kind_of_rows_is_said_or_guessed_and_reported(serve: Serve) -> None:
    """In the evidence, and in the history."""
    gateway = serve(calibrated=False)
    rows = as_json(labelled(20_000, 40))
    clustered = [row | {"cluster": f"user {i % 8}"} for i, row in enumerate(rows)]
    for given, query, kind, guessed, clusters in (
        (rows, {}, "questions", True, None),
        (rows + rows[:10], {}, "traffic", True, None),
        (rows + rows[:10], {"rows_kind": "questions"}, "questions", False, None),
        (clustered, {"rows_kind": "traffic"}, "traffic", False, 8),
    ):
        made = upload(gateway, given, **query)
        sample = {"kind": kind, "guessed": guessed, "clusters": clusters, "unit": "request"}
        sample |= {"shared_clusters": clusters or 0, "later_turns_answered_by": {}}
        assert made["evidence"]["sample"] == sample
    document = {"rows": rows, "rows_kind": "traffic"}
    sample = gateway.post("/calibrate", ADMIN_KEY, json=document).json()["evidence"]["sample"]
    assert (sample["kind"], sample["guessed"]) == ("traffic", False)
    bad = gateway.post("/calibrate", ADMIN_KEY, json=document | {"rows_kind": "users"})
    assert bad.status_code == 400


def test_traffic_may_repeat_training_queries_if_it_is_said(serve: Serve) -> None:
    """Counted in the evidence, and no reason against the certificate; refused by a guess."""
    gateway = serve(calibrated=False)
    rows = as_json(labelled(TRAINED - 20, 60))  # twenty of them were training rows
    upload(gateway, rows, rows_kind="traffic")
    assert gateway.route(ONE)["certificate"]["holds"]
    [shown] = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
    assert shown["evidence"]["overlap"] == 20
    repeated = {"rows": rows + rows[-20:]}
    assert "20 of 80 rows" in error_message(
        gateway.post("/calibrate", ADMIN_KEY, json=repeated), 422
    )
    training = {"rows": as_json(labelled(TRAINED - 100, 60)), "rows_kind": "traffic"}
    response = gateway.post("/calibrate", ADMIN_KEY, json=training)
    assert "no fresh sample of traffic" in error_message(response, 422)
    made = upload(gateway, training["rows"], rows_kind="traffic", allow_overlap=True)
    assert made["active"]
    assert gateway.route(ONE)["certificate"]["reasons"] == ["training_overlap"]


def test_one_row_per_cluster_calibrates_and_the_certificate_says_so(serve: Serve) -> None:
    """The bound is one for a request of a random cluster; the draw is the same each time."""
    gateway = serve(calibrated=False)
    rows = [
        row | {"cluster": f"user {i % 40}"} for i, row in enumerate(as_json(noisy(20_000, 160)))
    ]
    made = [upload(gateway, rows, one_per_cluster=True, rows_kind="traffic") for _ in range(2)]
    for each in made:
        assert each["evidence"]["rows"] == each["evidence"]["sample"]["clusters"] == 40
        assert each["evidence"]["sample"]["unit"] == "cluster"
    assert made[0]["evidence"]["lambda_hat"] == made[1]["evidence"]["lambda_hat"]
    assert gateway.route(ONE)["certificate"]["guarantee"]["unit"] == "cluster"
    upload(gateway, rows, rows_kind="traffic")
    assert gateway.route(ONE)["certificate"]["guarantee"]["unit"] == "request"


def test_a_list_with_shared_clusters_certifies_nothing(serve: Serve) -> None:
    """Its rows are not independent; one row per cluster needs the kind to be said."""
    gateway = serve(calibrated=False)
    rows = [
        row | {"cluster": f"document {i % 40}"}
        for i, row in enumerate(as_json(labelled(20_000, 160)))
    ]
    upload(gateway, rows)
    certificate = gateway.route(ONE)["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (False, ["rows_in_clusters"])
    for refused, message in (
        ({"one_per_cluster": True}, "say traffic or questions"),
        ({"answer_risk_max": 0.2}, "independent rows"),
    ):
        response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows} | refused)
        assert message in error_message(response, 400)
    upload(gateway, rows, rows_kind="questions", one_per_cluster=True)
    assert gateway.route(ONE)["certificate"]["holds"]


def test_decisions_on_copies_are_verified(serve: Serve) -> None:
    """A decision is recomputed from stored rows that repeat queries, smoothing included."""
    gateway = serve(calibrated=False)
    rows = as_json(noisy(20_000, 60))
    upload(gateway, rows + rows)
    answer = gateway.chat(rows[0]["query"])["racer"]
    assert "calibration_query" in answer["certificate"]["remarks"]
    checked = gateway.post(f"/decisions/{answer['decision_id']}/verify", ADMIN_KEY)
    assert checked.status_code == 200, checked.text
    assert checked.json()["matches"] is True


def test_drift_sees_repeats_of_traffic_and_each_question_once(noisy_artifact: Path) -> None:
    """Rows of traffic are compared with their repeats, a list with the first row of each."""
    racer, rng = Racer.load(noisy_artifact), np.random.default_rng(3)
    rows = noisy(20_000, 60)
    calibration = racer.calibrate(replace(rows + rows, kind=RowsKind.TRAFFIC))
    for counts_repeats, size in ((True, 120), (False, 60)):
        state = new_drift_state(calibration, 0.1, rng, counts_repeats=counts_repeats)
        assert set(state.streams) == set(STREAMS)
        assert len(state.streams["largest_score"].bag) == size  # type: ignore[union-attr]
    options = replace(calibration.options, one_per_cluster=True)
    state = new_drift_state(replace(calibration, options=options), 0.1, rng)
    assert set(state.streams) == {SET_SIZE}
