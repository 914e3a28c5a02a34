"""Uploads with rows that have no label, and with rows of one sampling rate."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from typing import Any

from app.settings import key_format
from app.store import KeyPurpose, Store
from racer_core.calibration.shadow import is_sampled
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    TWO,
    Gateway,
    Serve,
    as_json,
    configure,
    error_message,
    noisy,
    running,
)
from tests.kit.upstream import FakePool

ROWS = as_json(noisy(20_000, 120))
COUNTED = sum(any(row["correct"].values()) for row in ROWS)


def without_labels(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first ``count`` rows without their labels."""
    bare = [{"query": row["query"], "unlabelled": True} for row in rows[:count]]
    return [*bare, *rows[count:]]


def upload(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """POST /calibrate, with the status checked."""
    body = {"rows": rows, "alpha": 0.2, "confirm": True, **options}
    response = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_unlabelled_rows_count_as_misses(serve: Serve, noisy_artifact: Path) -> None:
    """They count, also those that no candidate would have answered; the evidence says how many."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    full = upload(gateway, ROWS)["evidence"]
    evidence = upload(gateway, without_labels(ROWS, 6))["evidence"]
    unanswerable = sum(not any(row["correct"].values()) for row in ROWS[:6])
    assert (full["n"], full["unlabelled"]) == (COUNTED, 0)
    assert (evidence["n"], evidence["unlabelled"]) == (COUNTED + unanswerable, 6)
    assert evidence["lambda_hat"] > full["lambda_hat"]
    assert evidence["risk_q05"] == 0.0 < full["risk_q05"]
    allowed = math.floor(0.2 * (evidence["n"] + 1)) - 1
    assert evidence["missed"] <= allowed
    certificate = gateway.decided(TWO)["certificate"]
    assert (certificate["holds"], certificate["n"]) == (True, evidence["n"])


def test_too_many_unlabelled_rows_are_refused_and_name_the_remedy(serve: Serve) -> None:
    """Confirmed all the same, every candidate is called, and the certificate says why."""
    gateway = serve(calibrated=False)
    body = {"rows": without_labels(ROWS, 40), "alpha": 0.2}
    message = error_message(gateway.post("/calibrate", ADMIN_KEY, json=body), 409)
    assert "40 of them have no label and count as misses: label more of them" in message
    assert gateway.ready()["calibration"] is None
    upload(gateway, without_labels(ROWS, 40))
    certificate = gateway.decided(TWO)["certificate"]
    assert certificate["holds"]
    assert certificate["reasons"] == ["unlabelled_exceeds_alpha_whole_pool"]


def test_rows_without_any_label_are_refused(serve: Serve) -> None:
    """One clear error, and nothing changes."""
    gateway = serve(calibrated=False)
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": without_labels(ROWS, 120)})
    assert "none of the 120 rows has a label" in error_message(response, 422)
    assert gateway.ready()["calibration"] is None


def test_the_store_keeps_which_rows_have_no_label(
    tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """A restarted gateway has the same threshold."""
    path = configure(tmp_path, noisy_artifact, pool.url)
    with running(path, ENVIRONMENT) as gateway:
        evidence = upload(gateway, without_labels(ROWS, 6))["evidence"]
    with running(path, ENVIRONMENT) as gateway:
        certificate = gateway.decided(TWO)["certificate"]
        assert certificate["lambda_hat"] == evidence["lambda_hat"]
        assert certificate["n"] == evidence["n"]


def test_rows_of_one_sampling_rate_have_the_exact_law(serve: Serve, noisy_artifact: Path) -> None:
    """Equal weights are no weights: no max_weight is needed, and delta is allowed."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    plain = upload(gateway, ROWS)["evidence"]
    sampled = [row | {"weight": 100} for row in ROWS]
    found = upload(gateway, sampled)["evidence"]
    for name in ("weights", "lambda_hat", "risk_q05", "risk_q95", "n"):
        assert found[name] == plain[name]
    assert upload(gateway, sampled, delta=0.1)["evidence"]["delta"] == 0.1
    assert gateway.decided(TWO)["certificate"]["guarantee"]["weights"] is None
    mixed = [*sampled, *(row | {"weight": 50} for row in as_json(noisy(30_000, 10)))]
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": mixed})
    assert "rows with weights need max_weight" in error_message(response, 422)


def test_rows_of_a_gateways_sample_are_thinned_to_their_lowest_rate(
    serve: Serve, noisy_artifact: Path
) -> None:
    """The exact law holds then, with delta too; an upload with `max_weight` keeps its weights."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    with Store(gateway.settings.store) as store:
        key = store.key(KeyPurpose.SAMPLES)
    ids = (f"dec-{number}" for number in count())
    drawn = [
        row | {"weight": weight, "decision_id": decision_id}
        for place, row in enumerate(ROWS)
        for weight in [50 + 50 * (place % 2)]
        for decision_id in [
            next(each for each in ids if is_sampled(key, each.encode(), 1 / weight))
        ]
    ]
    lowest = [row for row in drawn if is_sampled(key, row["decision_id"].encode(), 0.01)]
    assert 60 < len(lowest) < len(drawn)
    found = upload(gateway, drawn, delta=0.1)["evidence"]
    plain = upload(gateway, lowest, delta=0.1)["evidence"]
    for name in ("weights", "n", "rows", "lambda_hat", "risk_q05", "risk_q95", "delta"):
        assert found[name] == plain[name]
    assert (found["weights"], found["rows"]) == (None, len(lowest))
    sampling = {"application": None, "rate": 0.01, "since": None, "unsampled": 0}
    sampling |= {"drawn": len(drawn), "kept": len(lowest)}
    assert found["source"]["sampling"] == [sampling]
    weighted = upload(gateway, drawn, max_weight=100)["evidence"]
    assert weighted["weights"]["max_weight"] == 100
    assert weighted["source"]["sampling"] == []


def test_a_window_is_one_of_sampled_rows(serve: Serve) -> None:
    """Rows of a file stand for no time; the error says so, and what a time is."""
    gateway = serve(calibrated=False)
    problems = {"2026-01-31": (400, "no row has a `decision_id`"), "soon": (422, "ISO 8601")}
    for since, (status, problem) in problems.items():
        response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": ROWS, "since": since})
        assert problem in error_message(response, status)


def test_each_population_has_the_weights_of_its_own_rate(
    tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """Each application is sampled at a rate of its own; the record keeps the options of each."""
    applications = {"bot": {"keys": ["bot"], "premise": "drawn"}}
    hashed = key_format.format_hash(key_format.new_key(), key_format.new_salt())
    access = {"keys": [{"name": "bot", "hash": hashed}]}
    path = configure(tmp_path, noisy_artifact, pool.url, applications=applications, access=access)
    requests = [
        {
            "request": {"messages": [{"role": "user", "content": row["query"]}]},
            "correct": row["correct"],
            "application": "bot",
            "weight": 20 + 20 * (place % 2),
        }
        for place, row in enumerate(as_json(noisy(30_000, 100)))
    ]
    with running(path, ENVIRONMENT) as gateway:
        sampled = [row | {"weight": 100} for row in ROWS]
        both = upload(gateway, [*sampled, *requests], max_weight=100)
        assert both["evidence"]["weights"]["max_weight"] == 100
        requests = [row | {"weight": 20} for row in requests]
        evidence = upload(gateway, [*sampled, *requests])["evidence"]
        assert evidence["weights"] is None
        parts = evidence["applications"]
    with running(path, ENVIRONMENT) as gateway:
        certificate = gateway.decided(TWO, candidates=None)["certificate"]
        assert certificate["guarantee"]["weights"] is None
        assert certificate["lambda_hat"] == evidence["lambda_hat"]
        assert {each["application"] for each in parts} == {"bot", "default"}
