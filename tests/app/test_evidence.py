"""Evidence of a calibration: its figures against independent computations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.calibrations.answer_risk import answer_risk
from app.calibrations.evidence import ALPHAS, CURVE_ROWS, curve, evidence, shift
from app.settings.aggregation import Aggregation
from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.vote import Method, aggregate
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.learn_then_test import clopper_pearson_upper
from racer_core.calibration.options import CalibrationOptions
from racer_core.racer import Racer
from racer_core.types import CandidateAnswer, LabelledRows, Score
from tests.kit.case import Shared
from tests.kit.command_results import written
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    Command,
    Gateway,
    Serve,
    as_json,
    candidates,
    labelled,
    noisy,
)
from tests.kit.lazy import LazyModule
from tests.kit.random_answers import PRICES, answering, randoms
from tests.kit.upstream import FakePool

stats = LazyModule("scipy.stats")


# The curve ------------------------------------------------------------------------------------


def test_the_curve_is_the_cores() -> None:
    """Every alpha: threshold, mean size, mean price and abstention, counted query by query."""
    calibration = randoms(80)
    points = curve(calibration)
    sizes = [point["mean_size"] for point in points]
    assert sizes == sorted(sizes, reverse=True)
    assert [point["alpha"] for point in points] == list(ALPHAS)
    assert [point["feasible"] for point in points][:2] == [False, True]
    for point in points:
        decisions = [
            calibration.decide(name, scores.tolist(), alpha=point["alpha"])
            for name, scores in zip(calibration.fingerprints, calibration.scores, strict=True)
        ]
        price = dict(zip(POOL, PRICES, strict=True))
        costs = [sum(price[name] for name in each.selected) for each in decisions]
        lambda_hat = calibration.lambda_hat(point["alpha"], Score.GAP)
        assert point["lambda_hat"] == (lambda_hat if point["feasible"] else None)
        assert point["mean_size"] == pytest.approx(
            np.mean([len(each.selected) for each in decisions])
        )
        assert point["mean_cost"] == pytest.approx(np.mean(costs))
        assert point["risk_band"] == calibration.risk_band(point["alpha"])
        assert (0.0 if point["feasible"] else -1.0) < point["risk_band"] < 1.0
        assert point["abstain"] == pytest.approx(np.mean([each.abstained for each in decisions]))


def test_the_curve_of_many_rows_looks_at_some() -> None:
    """Thresholds are exact all the same; sizes are off by a few standard errors at most.

    The standard deviation of a size is below 1: six standard errors of 10,000 rows are 0.06, a
    false alarm in 10^8 runs.
    """
    calibration = randoms(5 * CURVE_ROWS)
    for point in curve(calibration)[::6]:
        sets = calibration.sets(
            calibration.scores, calibration.fingerprints, point["lambda_hat"], Score.GAP
        )
        assert point["lambda_hat"] == calibration.lambda_hat(point["alpha"], Score.GAP)
        assert point["mean_size"] == pytest.approx(sets.selected.sum(axis=1).mean(), abs=0.06)


def test_evidence_counts_rows_that_tie() -> None:
    """All 190 answerable rows tie: the Beta law would say 6.7 to 13.7 % where no row is missed."""
    calibration = replace(
        randoms(200),
        scores=np.tile([0.9, 0.2, 0.1], (200, 1)),
        labels=np.tile([True, False, False], (200, 1)) & (np.arange(200) >= 10)[:, None],
    )
    found = evidence(calibration)
    assert (found["n"], found["missed"], found["tied"]) == (190, 0, 190)
    assert found["risk_q05"] == 0.0
    assert found["risk_q95"] == calibration.risk_q95(0.2) < 0.06
    point = next(each for each in curve(calibration) if each["alpha"] == 0.2)
    assert point["risk_q95"] == found["risk_q95"]
    infeasible = evidence(replace(calibration, options=CalibrationOptions(alpha=1e-4)))
    assert (infeasible["missed"], infeasible["tied"], infeasible["risk_q95"]) == (None, None, 0.0)


# The final answer -----------------------------------------------------------------------------


def served(
    calibration: Calibration,
    threshold: float,
    row: int,
    answers: dict[str, str | None],
    method: Method,
) -> bool | None:
    """Whether one query's final answer is right, as the gateway would merge it; None: refused."""
    sets = calibration.sets(
        calibration.scores[[row]], calibration.fingerprints[row : row + 1], threshold, Score.PROB
    )
    called = [name for name, inside in zip(POOL, sets.selected[0], strict=True) if inside]
    if not called:
        return None
    given = [
        CandidateAnswer(
            candidate=name,
            text=answers[name] or "",
            form=None if answers[name] is None else normalise(Equality.EXACT, answers[name] or ""),
            score=float(calibration.scores[row, POOL.index(name)]),
        )
        for name in called
    ]
    merged = aggregate(given, method=method)
    readable = next(each.form for each in given if each.candidate == merged.winner) is not None
    return readable and bool(calibration.labels[row, POOL.index(merged.winner)])


@pytest.mark.parametrize("method", [Method.MAJORITY, Method.WEIGHTED, Method.LOG_ODDS])
def test_answer_risk_is_counted_vote_by_vote(method: Method) -> None:
    """All rows at the threshold that is served, merged as when serving, and the bound."""
    count = 90
    refusing = CalibrationOptions(alpha=0.2, score=Score.PROB, null_threshold=0.5)
    calibration = replace(randoms(count), options=refusing)
    rows, answers = answering(calibration)
    found = answer_risk(rows, calibration, Aggregation(method=method), None)
    assert found is not None
    threshold = calibration.lambda_hat()
    right = [served(calibration, threshold, i, answers[i], method) for i in range(count)]
    answered = [each for each in right if each is not None]
    assert (found["rows"], found["answered"]) == (count, len(answered))
    assert len(answered) < count
    assert found["errors"] == answered.count(False)
    assert found["rate"] == pytest.approx(answered.count(False) / len(answered))
    called = np.array([each is not None for each in right])
    risk = calibration.answer_risk(called, np.array(right) == True, rows.answered)  # noqa: E712
    assert risk is not None
    assert found["upper"] == risk.upper > clopper_pearson_upper(risk.errors, risk.answered)
    assert 0.05 < found["rate"] < found["upper"] < 0.9, "or the test would compare nothing"
    half = replace(rows, answered=np.arange(count) % 2 == 0)
    found = answer_risk(half, calibration, Aggregation(method=method), None)
    assert found is not None
    assert (found["rows"], found["answered"]) == (45, 45 - right[::2].count(None))


@pytest.mark.parametrize(
    "case", ["no answers", "other equality", "evaluator", "abstains", "other options"]
)
def test_evidence_without_its_conditions_is_omitted(case: str) -> None:
    """The figure is None if it would describe another configuration than the served one."""
    tau = (
        0.01 if case == "abstains" else None
    )  # refuses nearly all rows, which alpha does not allow
    calibration = replace(randoms(400), options=CalibrationOptions(alpha=0.15, null_threshold=tau))
    rows, _ = answering(calibration)
    aggregation = Aggregation()
    match case:
        case "no answers":
            rows = replace(rows, answered=np.zeros(400, bool))
        case "other equality":
            rows = replace(rows, classes=None)
        case "evaluator":
            evaluator: Any = {"candidate": "adder"}
            aggregation = Aggregation(method="weighted", weight="p_true", evaluator=evaluator)  # type: ignore[arg-type]
        case "other options":
            aggregation = Aggregation(method=Method.LOG_ODDS, options=4)
        case _:
            assert calibration.misses(0.15) >= 0
    assert answer_risk(rows, calibration, aggregation, None) is None


# Through the gateway --------------------------------------------------------------------------


@pytest.fixture
def priced(shared: Shared, noisy_artifact: Path, pool: FakePool) -> Gateway:
    """A gateway that is unsure, whose candidates have prices."""
    prices = {name: {"price": price} for name, price in zip(POOL, PRICES, strict=True)}
    gateway = shared(
        artifact=noisy_artifact,
        calibrated=False,
        group="evidence",
        candidates=candidates(pool.url, **prices),
        routing={"score": "cover"},
    ).gateway
    gateway.calibrate(rows=ROWS)
    return gateway


ROWS = noisy(20_000, 160)


def answered_rows(rows: LabelledRows) -> list[dict[str, Any]]:
    """Rows as they are uploaded, with answers; who is right says 7, the others what they like."""
    return [
        row
        | {
            "group": "odd" if i % 2 else "even",
            "answers": {n: "7" if right else f"{i} {n}" for n, right in row["correct"].items()},
        }
        for i, row in enumerate(as_json(rows))
    ]


def calibrated(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Upload rows and return the answer."""
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows, **options})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_dry_run_shows_what_could_be_chosen(priced: Gateway, noisy_artifact: Path) -> None:
    """Curve, groups and answer risk beside the evidence; nothing is kept."""
    before = priced.get("/calibrations", ADMIN_KEY).json()
    rows = answered_rows(ROWS)
    near = [row | {"query": f" {row['query'].upper()}"} for row in rows[:7]]
    copied = calibrated(priced, rows + rows[:5] + near, dry_run=True)["evidence"]
    counts = (copied["rows"], copied["duplicates"], copied["near_duplicates"])
    assert counts == (172, 5, 7), "repeats belong to a sample of traffic"
    evidence = calibrated(priced, rows, dry_run=True)["evidence"]
    assert priced.get("/calibrations", ADMIN_KEY).json() == before
    racer = Racer.load(noisy_artifact)
    tau = racer.artifact.null_threshold
    options = CalibrationOptions(score=Score.COVER, null_threshold=tau)
    core = racer.calibrate(ROWS, options=options, prices=PRICES)
    for point in evidence["curve"]:
        if point["feasible"]:
            assert point["lambda_hat"] == core.lambda_hat(point["alpha"], Score.COVER)
    here = next(point for point in evidence["curve"] if point["alpha"] == 0.1)
    assert here["mean_size"] == evidence["mean_size"]
    assert here["mean_cost"] == evidence["mean_cost"]
    groups = {each["group"]: each for each in evidence["groups"]}
    assert {name: each["rows"] for name, each in groups.items()} == {"odd": 80, "even": 80}
    for name, start in (("even", 0), ("odd", 1)):
        own = racer.calibrate(replace(ROWS, rows=ROWS.rows[start::2]), options=options)
        assert groups[name]["n"] == own.n
        assert groups[name]["lambda_hat"] == own.lambda_hat(0.1, Score.COVER)
    assert evidence["answer_risk"]["rows"] == 160


def test_a_calibration_keeps_its_answer_risk(priced: Gateway) -> None:
    """It stands in the record, with where the rows came from; what a dry run adds does not."""
    result = calibrated(priced, answered_rows(ROWS))
    stored = priced.get(f"/calibrations/{result['id']}", ADMIN_KEY).json()["evidence"]
    assert stored == result["evidence"]
    risk = stored["answer_risk"]
    assert 0 < risk["errors"] < risk["answered"] <= risk["rows"] == 160
    assert clopper_pearson_upper(risk["errors"], risk["answered"]) < risk["upper"] < 1.0
    assert stored["source"]["key"] == "admin"
    assert len(stored["source"]["sha256"]) == 64
    assert not {"curve", "groups"} & set(stored)
    assert "7" not in json.dumps(stored["source"]["key"])


# How far from the active one ------------------------------------------------------------------


def test_the_shift_is_relative() -> None:
    """Of mean size and threshold; what was 0 or infeasible, or another score's, is no base."""
    before = {"score": "gap", "lambda_hat": 0.2, "mean_size": 2.0}
    after = {"score": "gap", "lambda_hat": 0.1, "mean_size": 2.5}
    found = shift("cal-1", before, after)
    assert (found["lambda_change"], found["size_change"]) == (-0.5, 0.25)
    assert (found["active_id"], found["largest"]) == ("cal-1", 0.5)
    assert shift("", before | {"lambda_hat": None}, after)["lambda_change"] is None
    assert shift("", before | {"lambda_hat": 0.0}, after)["largest"] == 0.25
    assert shift("", before | {"score": "cover"}, after)["lambda_change"] is None


def test_a_large_change_needs_confirmation(serve: Serve, noisy_artifact: Path) -> None:
    """A quarter more calls at the same alpha, or more than ``max_shift``; nothing is changed."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)

    def upload(body: dict[str, Any]) -> Any:
        return gateway.post("/calibrate", ADMIN_KEY, json=body)

    response = upload({"rows": as_json(labelled(10_000, 2))})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "confirm_needed")
    assert gateway.route(ONE)["certificate"]["reasons"] == ["not_calibrated"]
    first = gateway.calibrate(rows=noisy(20_000, 200, flipped=0.05), max_shift=0.01)
    assert "shift" not in first["evidence"]
    before = gateway.get("/calibrations", ADMIN_KEY).json()["data"], gateway.ready()
    other = {"rows": as_json(noisy(30_000, 200, flipped=0.5))}
    dry = upload(other | {"dry_run": True}).json()
    assert dry["evidence"]["shift"]["active_id"] == first["id"]
    assert abs(dry["evidence"]["shift"]["size_change"]) > 0.25
    for limit in ({}, {"max_shift": 50.0}, {"max_shift": 0.05}):
        response = upload(other | limit)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (409, "confirm_needed")
        assert f"{first['evidence']['mean_size']:.3g}" in error["message"]
        assert error["message"].startswith(dry["refusal"]) == (limit != {"max_shift": 0.05})
        proposed = gateway.get("/calibrations", ADMIN_KEY).json()["data"][0]
        assert proposed["id"] in error["message"]
        assert proposed["evidence"]["refused"] in error["message"]
        assert not proposed["active"]
    assert "without max_shift" in error["message"]
    kept = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
    assert (kept[3:], gateway.ready()) == before
    for value in (0, -1, "x"):
        refused = upload(other | {"max_shift": value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "max_shift")
    confirmed = {"max_shift": 50.0, "confirm": True}
    for harmless in ({"dry_run": True}, {"activate": False}, confirmed):
        answer = upload(other | harmless)
        assert answer.status_code == 200, answer.text
    assert answer.json()["active"] is True
    assert upload(other | {"alpha": 0.15}).status_code == 200, "another promise"


def refused_at(gateway: Gateway) -> float:
    """The time of the newest refused calibration, as Prometheus reads it."""
    name = "racer_calibration_refused_timestamp_seconds "
    (line,) = (one for one in gateway.get("/metrics").text.splitlines() if one.startswith(name))
    return float(line.removeprefix(name))


def test_two_rows_are_refused_and_forced(serve: Serve, racer: Command, tmp_path: Path) -> None:
    """Exit code 1 and what to do next; the active calibration stays, unless by ``--force``."""
    gateway = serve()
    before = gateway.ready()["calibration"]
    assert refused_at(gateway) == 0
    file = written(tmp_path / "rows.jsonl", labelled(30_000, 2))
    arguments = ["calibrate", file, "--url", gateway.url, "--key", ADMIN_KEY]
    code, _, message = racer(*arguments)
    assert code == 1
    assert "no finite threshold" in message
    assert "--force" in " ".join(message.split())
    assert gateway.ready()["calibration"] == before
    assert refused_at(gateway) > 0
    proposed = gateway.get("/calibrations", ADMIN_KEY).json()["data"][0]["id"]
    path = f"/calibrations/{proposed}/activate"
    response = gateway.post(path, ADMIN_KEY)
    assert response.json()["error"]["code"] == "confirm_needed"
    assert gateway.post(path, ADMIN_KEY, json={"confirm": True}).status_code == 200
    assert gateway.ready()["calibration"] == proposed
    assert racer(*arguments, "--force")[0] == 0


def test_activation_by_id_needs_the_same_confirmation(serve: Serve, noisy_artifact: Path) -> None:
    """Forward as back: the shift is that from what is active now, not from what was then."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    first = gateway.calibrate(rows=noisy(20_000, 200, flipped=0.05))["id"]
    other = {"rows": as_json(noisy(30_000, 200, flipped=0.5)), "activate": False}
    second = gateway.post("/calibrate", ADMIN_KEY, json=other).json()["id"]
    near = {"rows": as_json(noisy(40_000, 200, flipped=0.05)), "activate": False}
    third = gateway.post("/calibrate", ADMIN_KEY, json=near).json()["id"]

    def activate(name: str, **body: Any) -> Any:
        return gateway.post(f"/calibrations/{name}/activate", ADMIN_KEY, json=body)

    def refuse(name: str) -> None:
        before = gateway.ready()["calibration"]
        response = activate(name)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (409, "confirm_needed"), error
        assert "mean set size" in error["message"]
        assert gateway.ready()["calibration"] == before

    refuse(second)
    assert activate(third).status_code == 200, "of about the same size"
    assert activate(second, confirm=True).status_code == 200
    refuse(first)
    refuse(third)
    assert activate(second).status_code == 200, "no shift from itself"
    assert activate(first, confirm=True).status_code == 200
