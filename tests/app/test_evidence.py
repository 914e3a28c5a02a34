"""Evidence of a calibration and its limit on wrong answers, against independent computations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.calibrations.answer_risk import answer_risk, limit_answers
from app.calibrations.columns import RowColumns
from app.calibrations.evidence import ALPHAS, CURVE_ROWS, curve, evidence, shift
from app.settings.aggregation import Aggregation
from app.store.calibration_record import CalibrationRecord, Population
from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.vote import Method, aggregate
from racer_core.calibration.answer_limit import AnswerLimit
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.learn_then_test import clopper_pearson_upper
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.errors import InputError
from racer_core.racer import Racer
from racer_core.types import CandidateAnswer, LabelledRows, Score
from tests.core.laws import assert_at_most
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


@pytest.mark.parametrize("case", ["no answers", "other equality", "evaluator", "other options"])
def test_evidence_without_its_conditions_is_omitted(case: str) -> None:
    """The figure is None if it would describe another configuration than the served one."""
    calibration = replace(randoms(400), options=CalibrationOptions(alpha=0.15))
    rows, _ = answering(calibration)
    aggregation = Aggregation()
    match case:
        case "no answers":
            rows = replace(rows, answered=np.zeros(400, bool))
        case "other equality":
            rows = replace(rows, answers=None)
        case "evaluator":
            evaluator: Any = {"candidate": "adder"}
            aggregation = Aggregation(method="weighted", weight="p_true", evaluator=evaluator)  # type: ignore[arg-type]
        case _:
            aggregation = Aggregation(method=Method.LOG_ODDS, options=4)
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
    options = CalibrationOptions(
        score=Score.COVER, null_threshold=tau, smoothing_salt=SMOOTHING_SALT
    )
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
    before = {"score": "gap", "lambda_hat": 0.2, "mean_size": 2.0, "feasible": True}
    after = before | {"lambda_hat": 0.1, "mean_size": 2.5}
    found = shift("cal-1", before, after)
    assert (found["lambda_change"], found["size_change"]) == (-0.5, 0.25)
    assert (found["active_id"], found["largest"]) == ("cal-1", 0.5)
    assert shift("", before | {"lambda_hat": None}, after)["lambda_change"] is None
    assert shift("", before | {"lambda_hat": 0.0}, after)["largest"] == 0.25
    assert shift("", before | {"score": "cover"}, after)["lambda_change"] is None


def test_a_large_change_is_active_at_once_and_raises_an_alert(
    serve: Serve, noisy_artifact: Path
) -> None:
    """A quarter more calls at the same alpha: in the answer, in `GET /drift` and in the metric."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    first = gateway.calibrate(rows=noisy(20_000, 200, flipped=0.05))
    assert "shift" not in first["evidence"]
    assert gateway.metric("racer_calibration_shift") == 0
    other = noisy(30_000, 200, flipped=0.5)
    dry = gateway.calibrate(rows=other, dry_run=True)
    second = gateway.calibrate(rows=other)
    found = second["evidence"]["shift"]
    assert found == dry["evidence"]["shift"]
    assert found["alert"].startswith(f"the mean set changes from {found['mean_size']:.3g} to ")
    assert (gateway.active(), second["active"]) == (second["id"], True)
    assert gateway.get("/drift", ADMIN_KEY).json()["shift"] == found
    assert gateway.metric("racer_calibration_shift") == found["size_change"] > 0.25
    assert gateway.calibrate(rows=other, alpha=0.15)["evidence"]["shift"]["alert"] is None


def test_a_rollback_voids_certificates_until_rows_are_uploaded(serve: Serve) -> None:
    """Also of a query whose decision was cached while the certificate held."""
    gateway = serve(calibrated=False)
    first = gateway.calibrate()["id"]
    assert gateway.route(ONE)["certificate"]["holds"]
    second = gateway.calibrate(rows=labelled(20_000, 400))["id"]
    answer = gateway.activate(first, expected_active_id=second).json()
    assert (answer["active"], answer["chosen"]) == (True, True)
    certificate = gateway.route(ONE)["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (False, ["chosen_by_figures"])
    assert gateway.get(f"/calibrations/{first}", ADMIN_KEY).json()["chosen"]
    gateway.calibrate(rows=labelled(30_000, 400))
    assert gateway.route(ONE)["certificate"]["reasons"] == []


def test_two_rows_are_refused(serve: Serve, racer: Command, tmp_path: Path) -> None:
    """Exit code 1 and what to do next; nothing is stored, and the active calibration stays."""
    gateway = serve()
    before = gateway.get("/calibrations", ADMIN_KEY).json()["data"], gateway.ready()
    file = written(tmp_path / "rows.jsonl", labelled(30_000, 2))
    code, _, message = racer("calibrate", file, "--url", gateway.url, "--key", ADMIN_KEY)
    assert code == 1
    assert "add rows or choose a larger alpha" in " ".join(message.split())
    refused = gateway.post("/calibrate", ADMIN_KEY, json={"rows": as_json(labelled(30_000, 2))})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "infeasible_alpha")
    assert (gateway.get("/calibrations", ADMIN_KEY).json()["data"], gateway.ready()) == before


# A limit on wrong answers -------------------------------------------------------------------------


def agreeing(count: int, rate: float, seed: int) -> tuple[RowColumns, Calibration]:
    """Rows whose candidates give one answer: wrong at this rate, whatever is called."""
    plain = randoms(count, seed=seed)
    right = np.random.default_rng(seed).random(count) >= rate
    calibration = replace(
        plain,
        labels=np.repeat(right[:, None], len(POOL), axis=1),
        options=CalibrationOptions(alpha=0.3, score=Score.PROB),
    )
    return answering(calibration, spread=1, silent=0.0)[0], calibration


def test_a_limit_at_the_true_rate_is_seldom_certified() -> None:
    """Any certificate is wrong here: at most delta of 12 calibrations; the false alarm is 1e-6.

    6 of 12 are allowed. The law of ``passing`` at the boundary is in the core's tests.
    """
    certified = 0
    for seed in range(12):
        _, calibration, _ = limit_answers(*agreeing(100, 0.3, seed), Aggregation(), None, 0.3)
        certified += calibration.answer_limit is not None
    assert_at_most(certified, 12, 0.05, 1e-6)


def test_rows_that_test_a_limit_choose_neither_tau_nor_the_grid() -> None:
    """The tested half is nearly always right, so that every threshold passes: the same ones."""
    plain = randoms(400)
    noisy_fit = plain.scores + 0.4 * np.random.default_rng(9).random(plain.scores.shape)
    labels = noisy_fit == noisy_fit.max(axis=1, keepdims=True)  # one is right
    labels &= plain.scores.max(axis=1, keepdims=True) > 0.6
    options = CalibrationOptions(alpha=0.3, score=Score.GAP)
    plain = replace(plain, labels=labels, options=options)
    rows = answering(plain, silent=0.0)[0]
    tested = limit_answers(rows, plain, Aggregation(), None, 0.9)[1].fingerprints
    second = np.flatnonzero([each in tested for each in plain.fingerprints])
    assert second.size == 200
    found = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        scores, labels = plain.scores.copy(), plain.labels.copy()
        scores[second] = scores[rng.permutation(second)] * (1.0 - 0.1 * seed)
        labels[second] = rng.random((200, 1)) < 0.99
        each = replace(plain, scores=scores, labels=labels)
        rows = answering(each, silent=0.0)[0]
        _, served, evidence = limit_answers(rows, each, Aggregation(), None, 0.25)
        assert served.answer_limit is not None
        assert evidence["passed"] == evidence["tested"] > 5
        found.append((served.answer_limit.thresholds, evidence["null_threshold"]))
    assert found[0] == found[1]
    assert found[0][1] is not None


def test_the_next_larger_threshold_that_passed_is_served() -> None:
    """It covers more, so the miss promise stays; none larger: lambda_hat, without a limit."""
    calibration = replace(randoms(200), options=CalibrationOptions(alpha=0.2, score=Score.PROB))
    raw = calibration.lambda_hat(0.2)
    limit = AnswerLimit(
        answer_risk_max=0.3, delta=0.05, thresholds=(raw / 2, raw + 0.01, raw + 0.02), vote="v"
    )
    served = replace(calibration, answer_limit=limit)
    assert served.lambda_hat(0.2) == raw + 0.01
    assert 0.0 < (served.risk_q95(0.2) or 0.0) <= (calibration.risk_q95(0.2) or 0.0)
    small = calibration.lambda_hat(0.01)
    assert served.lambda_hat(0.01) == small
    other = Score.GAP
    assert served.lambda_hat(0.2, other) == calibration.lambda_hat(0.2, other)
    for part in (served.restrict(POOL[:2]), served.take([0, 1, 2])):
        assert part.answer_limit is None

    def certified(alpha: float, score: Score | None = None) -> float | None:
        decision = served.decide(b"query", [0.5, 0.4, 0.3], alpha=alpha, score=score)
        return served.certify(decision).as_json()["guarantee"]["answer_risk_max"]

    assert certified(0.2) == 0.3
    assert certified(0.01) is None
    assert certified(0.2, other) is None
    decision = served.decide(b"query", [0.5, 0.4, 0.3], alpha=0.2)
    void = served.certify(decision, reasons=["stale:risk"])
    assert void.as_json()["guarantee"]["answer_risk_max"] is None
    assert not limit.holds_at(raw + 0.01, "another vote")


def test_the_limit_survives_the_store() -> None:
    """Encoded with the record; a record from before has none."""
    limit = AnswerLimit(answer_risk_max=0.3, delta=0.05, thresholds=(0.1, 0.2), vote="v")
    calibration = replace(randoms(30), answer_limit=limit)
    population = Population(calibration=calibration, conditions=("",) * len(POOL))
    later = replace(population, later=True, calibration=replace(calibration, answer_limit=None))
    record = CalibrationRecord(
        id="cal-1", created_at="", artifact="", populations=(population, later), evidence={}
    )
    read = CalibrationRecord.decoded("cal-1", "", "", *record.encoded())
    assert [each.calibration.answer_limit for each in read.populations] == [limit, None]


def test_rows_that_cannot_test_a_limit_are_refused() -> None:
    """Every row needs answers, and groups have thresholds that nothing tested."""
    calibration = randoms(100)
    rows, _ = answering(calibration)
    for broken, of, message in (
        (replace(rows, answers=None), calibration, "in every row"),
        (replace(rows, answered=np.arange(100) > 0), calibration, "in every row"),
        (rows, replace(calibration, groups=("a",) * 100), "without groups"),
    ):
        with pytest.raises(InputError, match=message):
            limit_answers(broken, of, Aggregation(), None, 0.3)


def answered(count: int, first: int = 40_000) -> list[dict[str, Any]]:
    """Rows with answers: those who are right say 7, the others differ."""
    return [
        row | {"answers": {n: "7" if ok else f"{i} {n}" for n, ok in row["correct"].items()}}
        for i, row in enumerate(as_json(noisy(first, count)))
    ]


def test_a_limit_is_served_and_an_infeasible_one_is_a_clear_answer(
    serve: Serve, noisy_artifact: Path
) -> None:
    """The evidence has the smallest feasible limit, for other rows.

    A calibration without the limit is active: had the one before stayed, the calibrations that keep
    a limit would be chosen by their answers.
    """
    gateway = serve(artifact=noisy_artifact, calibrated=False, routing={"score": "cover"})
    body = {"rows": answered(600), "alpha": 0.3, "answer_risk_max": 0.001}
    without = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert without.status_code == 200, without.text
    found = without.json()["evidence"]["answer_limit"]
    assert (found["passed"], found["answer_risk_max"] < found["smallest"]) == (0, True)
    assert (gateway.active(), without.json()["active"]) == (without.json()["id"], True)
    certificate = gateway.route(ONE)["certificate"]
    assert (certificate["holds"], certificate["guarantee"]["answer_risk_max"]) == (True, None)
    for picked in ({"answer_risk_max": 0.9}, {"alpha": 0.4}):
        again = gateway.post("/calibrate", ADMIN_KEY, json=body | picked)
        assert again.status_code == 422, again.text
        assert "chosen after these rows were seen" in again.json()["error"]["message"]
    plain = {"rows": body["rows"], "alpha": 0.4, "dry_run": True}
    shown = gateway.post("/calibrate", ADMIN_KEY, json=plain).json()["evidence"]
    assert shown["alpha_basis"] == "band"
    body = {"rows": answered(600, 50_000), "alpha": 0.3, "answer_risk_max": 0.9}
    again = gateway.post("/calibrate", ADMIN_KEY, json=body | {"dry_run": True})
    assert again.status_code == 200, again.text
    stored = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert stored.status_code == 200, stored.text
    evidence = stored.json()["evidence"]
    assert (evidence["rows"], evidence["answer_limit"]["first_half"]) == (300, 300)
    assert evidence["answer_risk"]["upper"] == 0.9
    terms = gateway.route(ONE)["certificate"]["guarantee"]
    assert (terms["answer_risk_max"], terms["answer_risk_delta"]) == (0.9, 0.05)
    for options in ({"alpha": 0.001}, {"candidates": list(POOL[:2])}, {"score": "gap"}):
        other = gateway.route(ONE, **options)["certificate"]["guarantee"]
        assert other["answer_risk_max"] is None, options
