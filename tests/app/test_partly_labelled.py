"""Uploads of rows without labels, of one sampling rate, and with verdicts of a judge."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.applications import ACCESS
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    POOL,
    TWO,
    Command,
    Gateway,
    Restart,
    Serve,
    as_json,
    error_message,
    labelled,
    noisy,
)
from tests.kit.monitored import KEY, shadow_rows
from tests.kit.waiting import wait_until

ROWS = as_json(noisy(20_000, 120))
COUNTED = sum(any(row["correct"].values()) for row in ROWS)


def without_labels(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first ``count`` rows without their labels."""
    bare = [{"query": row["query"], "unlabelled": True} for row in rows[:count]]
    return [*bare, *rows[count:]]


def test_unlabelled_rows_count_as_misses(serve: Serve, noisy_artifact: Path) -> None:
    """They count, also those that no candidate would have answered; the evidence says how many."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    full = gateway.upload(ROWS, alpha=0.2)["evidence"]
    evidence = gateway.upload(without_labels(ROWS, 6), alpha=0.2)["evidence"]
    unanswerable = sum(not any(row["correct"].values()) for row in ROWS[:6])
    assert (full["n"], full["unlabelled"]) == (COUNTED, 0)
    assert (evidence["n"], evidence["unlabelled"]) == (COUNTED + unanswerable, 6)
    assert evidence["lambda_hat"] > full["lambda_hat"]
    assert evidence["risk_q05"] == 0.0 < full["risk_q05"]
    allowed = math.floor(0.2 * (evidence["n"] + 1)) - 1
    assert evidence["missed"] <= allowed
    certificate = gateway.decided(TWO)["certificate"]
    assert (certificate["holds"], certificate["n"]) == (True, evidence["n"])


def test_too_many_unlabelled_rows_call_every_candidate(serve: Serve) -> None:
    """The certificate says why. Were they refused, those with fewer would be the lucky ones."""
    gateway = serve(calibrated=False)
    assert "none of the 120 rows has a label" in gateway.refused(without_labels(ROWS, 120))
    found = gateway.upload(without_labels(ROWS, 40), alpha=0.2)["evidence"]
    assert (found["feasible"], found["lambda_hat"], found["unlabelled"]) == (True, None, 40)
    certificate = gateway.decided(TWO)["certificate"]
    assert certificate["holds"]
    assert certificate["reasons"] == ["unlabelled_exceeds_alpha_whole_pool"]


def test_rows_of_one_sampling_rate_have_the_exact_law(serve: Serve, noisy_artifact: Path) -> None:
    """Equal weights are no weights: no max_weight is needed, and delta is allowed."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    plain = gateway.upload(ROWS, alpha=0.2)["evidence"]
    sampled = [row | {"weight": 100} for row in ROWS]
    found = gateway.upload(sampled, alpha=0.2)["evidence"]
    for name in ("weights", "lambda_hat", "risk_q05", "risk_q95", "n"):
        assert found[name] == plain[name]
    assert gateway.upload(sampled, delta=0.1, alpha=0.2)["evidence"]["delta"] == 0.1
    assert gateway.decided(TWO)["certificate"]["guarantee"]["weights"] is None
    mixed = [*sampled, *(row | {"weight": 50} for row in as_json(noisy(30_000, 10)))]
    assert "rows with weights need max_weight" in gateway.refused(mixed)


def test_a_window_is_one_of_sampled_rows(serve: Serve) -> None:
    """Rows of a file stand for no time; the error says so, and what a time is."""
    gateway = serve(calibrated=False)
    problems = {"2026-01-31": (400, "no row has a `decision_id`"), "soon": (400, "ISO 8601")}
    for since, (status, problem) in problems.items():
        assert problem in gateway.refused(ROWS, status, since=since)


def test_each_population_has_the_weights_of_its_own_rate(
    restart: Restart, noisy_artifact: Path
) -> None:
    """Each application is sampled at a rate of its own; the record keeps the options of each."""
    applications = {"bot": {"keys": ["bot"], "premise": "drawn"}}
    requests = [
        {
            "request": {"messages": [{"role": "user", "content": row["query"]}]},
            "correct": row["correct"],
            "application": "bot",
            "weight": 20 + 20 * (place % 2),
        }
        for place, row in enumerate(as_json(noisy(30_000, 100)))
    ]
    with restart(
        artifact=noisy_artifact, applications=applications, access=ACCESS, routing={"alpha": 0.2}
    ) as gateway:
        sampled = [row | {"weight": 100} for row in ROWS]
        both = gateway.upload([*sampled, *requests], max_weight=100, alpha=0.2)
        assert both["evidence"]["weights"]["max_weight"] == 100
        requests = [row | {"weight": 20} for row in requests]
        evidence = gateway.upload([*sampled, *requests], alpha=0.2)["evidence"]
        assert evidence["weights"] is None
        parts = evidence["applications"]
    with restart(
        artifact=noisy_artifact, applications=applications, access=ACCESS, routing={"alpha": 0.2}
    ) as gateway:
        certificate = gateway.decided(TWO, candidates=None)["certificate"]
        assert certificate["guarantee"]["weights"] is None
        assert certificate["lambda_hat"] == evidence["lambda_hat"]
        assert {each["application"] for each in parts} == {"bot", "default"}


# A judge's verdicts ----------------------------------------------------------------------------


ALPHA, DELTA, PEOPLE = 0.2, 0.1, 120


def judged(count: int = 500, people: int = PEOPLE, wrong: float = 0.05) -> list[dict[str, Any]]:
    """Noisy rows with verdicts, a share of them wrong; the first ones keep their labels."""
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for place, row in enumerate(as_json(noisy(30_000, count))):
        wrongly = rng.random(len(POOL)) < wrong
        verdicts = {
            name: bool(row["correct"][name] ^ flip)
            for name, flip in zip(POOL, wrongly, strict=True)
        }
        labels = {"correct": row["correct"]} if place < people else {}
        rows.append({"query": row["query"], "judged": verdicts, **labels})
    return rows


def judged_upload(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> Any:
    """POST /calibrate."""
    body = {"rows": rows, "alpha": ALPHA, "delta": DELTA, **options}
    return gateway.post("/calibrate", ADMIN_KEY, json=body)


def test_verdicts_are_corrected_by_labels(serve: Serve, noisy_artifact: Path) -> None:
    """The threshold is that of the stored record, also after a restart; the certificate says how.

    A request's own alpha and a smaller pool have thresholds, too.
    """
    gateway = serve(calibrated=False, artifact=noisy_artifact, routing={"alpha": ALPHA})
    response = judged_upload(gateway, judged())
    assert response.status_code == 200, response.text
    evidence = response.json()["evidence"]
    judge = evidence["judge"]
    assert (judge["rows"], judge["human_rows"]) == (500, PEOPLE)
    assert 0.0 < judge["weight"] <= 1.0
    assert judge["error"] == pytest.approx(dict.fromkeys(POOL, 0.05), abs=0.06)
    assert (evidence["feasible"], evidence["unlabelled"], evidence["risk_q95"]) == (True, 0, None)
    certificate = gateway.decided(TWO)["certificate"]
    assert certificate["holds"] is True
    assert certificate["lambda_hat"] == evidence["lambda_hat"]
    guarantee = certificate["guarantee"]
    assert (guarantee["labels"], guarantee["delta"]) == ("judge_corrected", DELTA)
    other = gateway.decided(TWO, alpha=0.3)["certificate"]
    assert other["guarantee"]["alpha_basis"] == "assumed"
    assert other["lambda_hat"] <= evidence["lambda_hat"]


def test_rows_without_verdict_and_label_count_as_missed(serve: Serve, noisy_artifact: Path) -> None:
    """The evidence says how many, and the threshold is larger."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    full = judged_upload(gateway, judged(), dry_run=True).json()["evidence"]
    rows = judged()
    for row in rows[300:325]:
        del row["judged"]
        row["unlabelled"] = True
    evidence = judged_upload(gateway, rows, dry_run=True).json()["evidence"]
    assert (evidence["unlabelled"], evidence["judge"]["rows"]) == (25, 475)
    assert evidence["lambda_hat"] is None or evidence["lambda_hat"] > full["lambda_hat"]


def test_samples_that_a_judge_and_people_read_calibrate(serve: Serve, racer: Command) -> None:
    """From traffic over verdicts and some labels to a corrected threshold, by `--from-shadow`."""
    watching = {"shadow_rate": 1.0, "store_requests": True}
    environment = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
    gateway = serve(watching=watching, environment=environment, routing={"alpha": 0.4})
    rows, decisions = labelled(20_000, 60), list[str]()
    for row in rows.rows:
        decisions.append(gateway.chat(row.query)["id"])
    wait_until(lambda: len(shadow_rows(gateway)) == len(decisions))
    offered = sorted(decisions, key=lambda name: name[-20:])
    labelled_first = {*offered[:30], offered[40]}  # people skipped some before the last one
    for row, decision in zip(rows.rows, decisions, strict=True):
        correct = {name: name in row.correct for name in rows.pool}
        verdict = {"decision_id": decision, "correct": correct}
        judgement = verdict | {"judge": "j"}
        assert gateway.post("/shadow/judgements", ADMIN_KEY, json=judgement).status_code == 200
        if decision in labelled_first:
            assert gateway.post("/feedback", ADMIN_KEY, json=verdict).status_code == 200
    at = ("--from-shadow", "--url", gateway.url, "--key", ADMIN_KEY, "--json")
    code, out, err = racer("calibrate", *at, "--alpha", "0.4", "--delta", "0.2")
    assert code == 0, err
    evidence = json.loads(out)["evidence"]
    assert (evidence["judge"]["rows"], evidence["judge"]["human_rows"]) == (60, 30)
    assert (evidence["unlabelled"], evidence["feasible"]) == (0, True)
    assert set(evidence["judge"]["error"].values()) == {0.0}
    assert evidence["judge"]["name"] == "j"
    words = "verdicts of the judge j, corrected by labels. Labels left out: 1,"
    assert words in " ".join(err.split())
    fixed = ("--alpha", "0.4", "--delta", "0.2", "--labels")
    code, out, err = racer("calibrate", *at, *fixed, "20")
    assert (code, json.loads(out)["evidence"]["judge"]["human_rows"]) == (0, 20), err
    code, out, err = racer("calibrate", *at, *fixed, "35")
    assert (code, "row 31 has no label" in " ".join(err.split())) == (1, True)
    code, out, err = racer("calibrate", *at, "--alpha", "0.4")
    assert (code, "labels alone; with --delta" in " ".join(err.split())) == (0, True)
    evidence = json.loads(out)["evidence"]
    assert (evidence["unlabelled"], evidence["judge"]) == (29, None)


def test_bad_verdicts_are_refused_with_one_clear_error_each(
    serve: Serve, noisy_artifact: Path
) -> None:
    """Nothing is stored of any of them."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    unjudged = judged()
    del unjudged[6]["judged"]
    weighted = [{**row, "weight": 1.0 + place} for place, row in enumerate(judged())]
    swapped = [
        {**row, "judged": {name: not each for name, each in row["judged"].items()}}
        for row in judged()
    ]
    other = [{**row, "judged": {"stranger": True}} for row in judged(10)]
    two = [{**row, "judge": f"j{place // 7}"} for place, row in enumerate(judged(10))]
    for rows, options, message in (
        (judged(), {"delta": None}, "need delta"),
        (judged(people=0), {}, "corrected by people's labels"),
        (unjudged, {}, 'row 7: "correct" stands without "judged"'),
        (weighted, {"max_weight": 1e6}, "cannot have weights"),
        (swapped, {}, "below chance"),
        (other, {}, "each candidate of the pool"),
        (two, {}, "row 8: the verdicts are of the judge 'j1', and those of earlier rows of 'j0'"),
        (unjudged, {}, 'or give the row "unlabelled": true instead of "correct"'),
        (judged(), {"risk_target": "quality"}, "quality"),
        (judged(), {"answer_risk_max": 0.3}, "answer_risk_max"),
    ):
        response = judged_upload(gateway, rows, **options)
        assert message in error_message(response, response.status_code)
        assert response.status_code in (400, 422)
    assert gateway.get("/calibrations", ADMIN_KEY).json()["data"] == []
