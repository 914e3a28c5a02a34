"""GET /route/levels: mean set and bound at every alpha, over the rows of the active calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.settings import key_format
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    POOL,
    TWO,
    Gateway,
    Serve,
    as_json,
    candidates,
    error_message,
    noisy,
)
from tests.kit.upstream import FakePool

ROWS = noisy(10_000, 120)


def mean_levels(gateway: Gateway, key: str = DATA_KEY, **headers: str) -> dict[str, Any]:
    """The answer, with the status checked."""
    response = gateway.get("/route/levels", key, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def access(**terms: object) -> tuple[str, dict[str, Any]]:
    """A key with these terms, and the configuration that has it."""
    key = key_format.new_key()
    hashed = key_format.format_hash(key, key_format.new_salt())
    return key, {"keys": [{"name": "bounded", "hash": hashed, **terms}]}


def of_rows(gateway: Gateway, **options: Any) -> dict[float, list[dict[str, Any]]]:
    """What POST /route/levels says of each row, by alpha."""
    found: dict[float, list[dict[str, Any]]] = {}
    for row in ROWS.rows:
        body = {"query": row.query, **options}
        for each in gateway.post("/route/levels", json=body).json()["levels"]:
            found.setdefault(each["alpha"], []).append(each)
    return found


def test_a_level_is_the_mean_over_the_rows(serve: Serve, noisy_artifact: Path) -> None:
    """Sizes and abstentions of the same rows, sent one by one; the fixed order likewise."""
    gateway = serve(artifact=noisy_artifact, calibrated=False)
    calibration = gateway.calibrate(rows=ROWS)
    result = mean_levels(gateway)
    assert (result["calibration_id"], result["alpha"]) == (calibration["id"], 0.1)
    assert (result["n"], result["pool"]) == (calibration["evidence"]["n"], list(POOL))
    own, fixed = of_rows(gateway), of_rows(gateway, score="static")
    assert [each["alpha"] for each in result["levels"]] == sorted(own)
    for each in result["levels"]:
        sets = [len(one["selected"]) for one in own[each["alpha"]]]
        assert each["mean_size"] == pytest.approx(np.mean(sets))
        assert each["abstain"] == pytest.approx(sets.count(0) / len(sets))
        in_order = [len(one["selected"]) for one in fixed[each["alpha"]]]
        assert each["fixed_order_size"] == pytest.approx(np.mean(in_order))
    assert len({each["mean_size"] for each in result["levels"]}) > 3
    assert len({each["fixed_order_size"] for each in result["levels"]}) > 1


def test_the_bound_is_that_of_a_certificate(serve: Serve, noisy_artifact: Path) -> None:
    """Of a request that chooses this alpha."""
    gateway = serve(artifact=noisy_artifact, calibrated=False)
    gateway.calibrate(rows=ROWS)
    for each in mean_levels(gateway)["levels"][::9]:
        if each["alpha"] == 0.1:
            continue  # fixed beforehand, so that its bound is alpha itself
        guarantee = gateway.route(TWO, alpha=each["alpha"])["certificate"]["guarantee"]
        assert each["risk_band"] == guarantee["risk_band"]
        assert each["feasible"] == (not guarantee["trivial"])


def test_a_new_calibration_has_levels_of_its_own(serve: Serve, noisy_artifact: Path) -> None:
    """Those of the one that decides, whichever was asked for before."""
    gateway = serve(artifact=noisy_artifact, calibrated=False)
    first, second = (gateway.calibrate(rows=noisy(at, 90))["id"] for at in (20_000, 30_000))
    of_second = mean_levels(gateway)
    assert of_second["calibration_id"] == second
    gateway.activate(first)
    assert mean_levels(gateway)["calibration_id"] == first
    assert mean_levels(gateway)["levels"] != of_second["levels"]
    gateway.activate(second)
    assert mean_levels(gateway) == of_second


def test_a_key_sees_the_levels_and_candidates_that_it_may_ask_for(serve: Serve) -> None:
    """Its `max_alpha` is in force where it is below the usual alpha."""
    key, bounded = access(max_alpha=0.05, candidates=["adder", "speller"])
    gateway = serve(access=bounded)
    result = mean_levels(gateway, key)
    assert (result["alpha"], result["pool"]) == (0.05, ["adder", "speller"])
    assert max(each["alpha"] for each in result["levels"]) == 0.05
    assert max(each["mean_size"] for each in result["levels"]) <= 2


def test_a_level_that_would_be_refused_is_none(serve: Serve, noisy_artifact: Path) -> None:
    """Where infeasible alphas are refused, the first level is the smallest served alpha."""
    for on_infeasible, is_shown in (("reject", False), ("trivial", True)):
        routing = {"on_infeasible": on_infeasible, "alpha": 0.3}
        gateway = serve(artifact=noisy_artifact, routing=routing, calibrated=False)
        gateway.calibrate(rows=ROWS)
        feasible = [each["feasible"] for each in mean_levels(gateway)["levels"]]
        assert (False in feasible) is is_shown


def test_an_application_has_levels_of_its_rows_at_its_alpha(serve: Serve, pool: FakePool) -> None:
    """`bot` has every other row; without a name it is `default`."""
    gateway = serve(calibrated=False, applications={"bot": {"alpha": 0.25}})
    rows = as_json(ROWS)
    for row in rows[::2]:
        row["application"] = "bot"
    body = {"rows": rows, "confirm": True}
    assert gateway.post("/calibrate", ADMIN_KEY, json=body).status_code == 200
    bot = mean_levels(gateway, **{"x-racer-application": "bot"})
    default = mean_levels(gateway)
    assert (bot["group"], bot["alpha"]) == ("bot", 0.25)
    assert (default["group"], default["alpha"]) == ("default", 0.1)
    assert bot["n"] + default["n"] <= len(rows)
    assert bot["levels"] != default["levels"]
    wrong = gateway.get("/route/levels", headers={"x-racer-application": "other"})
    assert "no application 'other'" in error_message(wrong, 404)


def test_no_price_is_shown_and_nothing_is_counted(serve: Serve, pool: FakePool) -> None:
    """It is a data key's; no candidate is called."""
    gateway = serve(candidates=candidates(pool.url, price=3.0))
    before = gateway.get("/metrics").text.count("racer_set_size_count 0.0")
    assert "cost" not in gateway.get("/route/levels").text
    assert gateway.get("/metrics").text.count("racer_set_size_count 0.0") == before == 1
    assert pool.models_called() == []


def test_without_a_calibration_there_are_none(serve: Serve) -> None:
    """The error says what to do."""
    gateway = serve(calibrated=False)
    assert "POST /calibrate" in error_message(gateway.get("/route/levels"), 503)
