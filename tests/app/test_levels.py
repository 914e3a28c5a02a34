"""/route/levels: the set at every alpha, of a query (POST) and as a mean over the rows (GET)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.accounts import configured_key
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    Serve,
    as_json,
    candidates,
    error_message,
    noisy,
)
from tests.kit.upstream import FakePool

PRICED = {"adder": 1.0, "speller": 2.0, "poet": 5.0}


def levels(gateway: Gateway, query: str, **options: object) -> dict:
    """The answer, with the status checked."""
    response = gateway.post("/route/levels", json={"query": query, **options})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("score", ["gap", "prob", "cover"])
@pytest.mark.parametrize("query", [ONE, TWO, UNANSWERABLE])
def test_a_level_is_what_route_decides_there(
    shared: Shared, noisy_artifact, score: str, query: str
) -> None:
    """Threshold and set; a candidate is inside where its nonconformity is not above lambda_hat."""
    gateway = shared(artifact=noisy_artifact, calibrated=False, group="uploads").gateway
    gateway.calibrate(rows=noisy(10_000, 200))
    result = levels(gateway, query, score=score)
    assert len({each["lambda_hat"] for each in result["levels"]}) > 3
    for each in result["levels"][::9]:
        there = gateway.route(query, score=score, alpha=each["alpha"])
        assert each["selected"] == there["selected"], each["alpha"]
        assert each["lambda_hat"] == there["certificate"]["lambda_hat"]
        assert each["abstained"] == there["abstained"]
        if each["lambda_hat"] is None:
            assert set(each["selected"]) == set(POOL)
        elif each["selected"]:
            fit = result["nonconformity"]
            inside = {name for name in POOL if fit[name] <= each["lambda_hat"]}
            assert set(each["selected"]) == inside


def test_levels_are_nested_and_the_one_in_force_is_among_them(shared: Shared) -> None:
    """A larger alpha adds no candidate, until it abstains; 0.033 is on no grid."""
    gateway = shared(routing={"alpha": 0.033}, calibrated=False, group="uploads").gateway
    gateway.calibrate(rows=noisy(10_000, 200))
    asked = levels(gateway, TWO, alpha=0.3)
    assert asked["certificate"]["guarantee"]["alpha"] == 0.3
    result = levels(gateway, TWO)
    alphas = [each["alpha"] for each in result["levels"]]
    assert alphas == sorted(alphas)
    assert (0.033 in alphas, min(alphas), max(alphas)) == (True, 0.005, 0.5)
    large = shared(routing={"alpha": 0.7}).gateway  # the list reaches it
    steps = [round(200 * each["alpha"]) for each in levels(large, ONE)["levels"]]
    assert steps == list(range(1, 141))
    sets = [set(each["selected"]) for each in result["levels"]]
    assert all(later <= before for before, later in pairwise(sets))


def test_looking_leaves_no_trace(gateway: Gateway, pool: FakePool) -> None:
    """No candidate is called; no decision is remembered, and the set sizes count none."""

    def counted() -> list[str]:
        lines = gateway.get("/metrics").text.splitlines()
        return [line for line in lines if line.startswith(("racer_set_size", "racer_overhead"))]

    before = counted()
    result = levels(gateway, ONE)
    assert counted() == before
    assert "decision_id" not in result
    assert pool.models_called() == []


def test_prices_are_returned_as_shares_only(shared: Shared, pool: FakePool) -> None:
    """Which is what a data key needs to know."""
    priced = candidates(pool.url, **{name: {"price": price} for name, price in PRICED.items()})
    gateway = shared(candidates=priced).gateway
    for each in levels(gateway, TWO)["levels"]:
        share = sum(PRICED[name] for name in each["selected"]) / 8.0
        assert each["cost_share"] == pytest.approx(share)
    assert "price" not in gateway.post("/route/levels", json={"query": TWO}).text


def test_a_key_sees_no_level_that_it_may_not_ask_for(shared: Shared) -> None:
    """Its `max_alpha` ends the list."""
    key, entry = configured_key("careful", max_alpha=0.05)
    gateway = shared(access={"keys": [entry]}).gateway
    result = gateway.post("/route/levels", key, json={"query": ONE}).json()["levels"]
    assert max(each["alpha"] for each in result) == 0.05
    assert max(each["alpha"] for each in levels(gateway, ONE)["levels"]) == 0.5


def test_where_the_whole_pool_is_called_there_are_no_levels(shared: Shared) -> None:
    """A query of a group without rows is not routed at any alpha; the certificate says why."""
    gateway = shared(routing={"on_uncovered": "whole_pool"}, calibrated=False).gateway
    rows = [row | {"group": "a"} for row in as_json(noisy(10_000, 200))]
    gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows}).raise_for_status()
    result = levels(gateway, ONE)
    assert (result["levels"], result["nonconformity"]) == ([], {})
    assert "group_uncalibrated" in result["certificate"]["reasons"]
    assert set(result["selected"]) == set(POOL)


def test_a_level_that_would_be_refused_is_none(shared: Shared, noisy_artifact) -> None:
    """Where infeasible alphas are refused, the first level is the smallest served alpha."""
    routing = {"on_infeasible": "reject", "alpha": 0.3}
    gateway = shared(
        artifact=noisy_artifact, routing=routing, calibrated=False, group="uploads"
    ).gateway
    gateway.calibrate(rows=noisy(10_000, 120))
    result = levels(gateway, TWO)["levels"]
    first = result[0]["alpha"]
    assert 0.005 < first < 0.3
    assert all(each["lambda_hat"] is not None for each in result)
    refused = gateway.post("/route", json={"query": TWO, "alpha": first - 0.005})
    assert refused.json()["error"]["code"] == "infeasible_alpha"
    assert gateway.route(TWO, alpha=first)["selected"] == result[0]["selected"]


def test_a_level_calls_no_more_than_may_be_called(shared: Shared) -> None:
    """As `limits.fan_out` says, of which every set here keeps its best."""
    gateway = shared(limits={"fan_out": 1}).gateway
    for each in levels(gateway, TWO)["levels"][::20]:
        assert each["selected"] == gateway.route(TWO, alpha=each["alpha"])["selected"]
        assert len(each["selected"]) <= 1


@pytest.mark.parametrize("body", [{"query": " "}, {"query": ONE, "alpha": 1.5}, {}])
def test_levels_refuses_an_invalid_body(gateway: Gateway, body: dict) -> None:
    """A query of white space alone, no risk level, no query."""
    assert gateway.post("/route/levels", json=body).status_code in (400, 422)


# Means over the rows ---------------------------------------------------------------------------


ROWS = noisy(10_000, 120)


def mean_levels(gateway: Gateway, key: str = DATA_KEY, **headers: str) -> dict[str, Any]:
    """The answer, with the status checked."""
    response = gateway.get("/route/levels", key, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


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
    """Of a request that chooses this alpha, unless it was declared."""
    gateway = serve(artifact=noisy_artifact, calibrated=False, routing={"levels": []})
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
    key, line = configured_key("bounded", max_alpha=0.05, candidates=["adder", "speller"])
    gateway = serve(access={"keys": [line]})
    result = mean_levels(gateway, key)
    assert (result["alpha"], result["pool"]) == (0.05, ["adder", "speller"])
    assert max(each["alpha"] for each in result["levels"]) == 0.05
    assert max(each["mean_size"] for each in result["levels"]) <= 2


def test_a_mean_level_that_would_be_refused_is_none(serve: Serve, noisy_artifact: Path) -> None:
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
    body = {"rows": rows}
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
