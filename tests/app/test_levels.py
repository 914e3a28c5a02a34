"""POST /route/levels: the set at every alpha, equal to /route's, without a stored decision."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.settings import key_format
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    as_json,
    candidates,
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
    key = key_format.new_key()
    entry = {
        "name": "careful",
        "hash": key_format.format_hash(key, key_format.new_salt()),
        "max_alpha": 0.05,
    }
    gateway = shared(access={"keys": [entry]}).gateway
    result = gateway.post("/route/levels", key, json={"query": ONE}).json()["levels"]
    assert max(each["alpha"] for each in result) == 0.05
    assert max(each["alpha"] for each in levels(gateway, ONE)["levels"]) == 0.5


def test_where_the_whole_pool_is_called_there_are_no_levels(shared: Shared) -> None:
    """A query of a group without rows is not routed at any alpha; the certificate says why."""
    gateway = shared(routing={"on_uncovered": "whole_pool"}, calibrated=False).gateway
    rows = [row | {"group": "a"} for row in as_json(noisy(10_000, 200))]
    gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows, "confirm": True}).raise_for_status()
    result = levels(gateway, ONE)
    assert (result["levels"], result["nonconformity"]) == ([], {})
    assert "group_uncalibrated" in result["certificate"]["reasons"]
    assert set(result["selected"]) == set(POOL)


def test_the_list_reaches_the_level_in_force(shared: Shared) -> None:
    """One above one half, too, in steps of half a percent."""
    gateway = shared(routing={"alpha": 0.7}).gateway
    steps = [round(200 * each["alpha"]) for each in levels(gateway, ONE)["levels"]]
    assert steps == list(range(1, 141))


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
