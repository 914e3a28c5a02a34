"""Rows with qualities and weights through the gateway: formats, thresholds, certificates, risk."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.monitoring.drift import statistics
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.racer import Racer
from racer_core.types import LabelledRows, RiskTarget, Score
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    TWO,
    Command,
    Gateway,
    Serve,
    error_message,
    noisy,
)

GRADED = {"risk_target": "quality"}


def graded(rows: LabelledRows) -> LabelledRows:
    """The rows with qualities: 0.5 and more for right candidates, less for the others."""
    rng = np.random.default_rng(1)

    def grades(correct: frozenset[str]) -> tuple[float, ...]:
        draws = np.round(rng.random(len(POOL)) * 0.499, 6)
        return tuple(
            float(round(0.5 * (name in correct) + draw, 6))
            for name, draw in zip(POOL, draws, strict=True)
        )

    found = tuple(replace(row, quality=grades(row.correct)) for row in rows.rows)
    return replace(rows, rows=found)


def weighted(rows: LabelledRows) -> LabelledRows:
    """Every third row counts thrice."""
    found = tuple(
        replace(row, weight=3.0 if i % 3 == 0 else 1.0) for i, row in enumerate(rows.rows)
    )
    return replace(rows, rows=found)


ROWS = graded(noisy(20_000, 150))


@pytest.fixture
def gateway(shared: Shared, noisy_artifact: Path) -> Gateway:
    """A gateway with a noisy router, calibrated on qualities at alpha 0.2."""
    routing = {"score": "cover", "alpha": 0.2}
    case = shared(artifact=noisy_artifact, calibrated=False, group="graded", routing=routing)
    return case.gateway.once(lines(ROWS), alpha=0.2, risk_target="quality")


def core(artifact: Path, rows: LabelledRows, **options: Any) -> Calibration:
    """The core's own calibration of the rows."""
    racer = Racer.load(artifact)
    tau = racer.artifact.null_threshold
    return racer.calibrate(
        rows,
        options=CalibrationOptions(
            score=Score.COVER, null_threshold=tau, smoothing_salt=SMOOTHING_SALT, **options
        ),
    )


def upload(gateway: Gateway, content: bytes, name: str, **query: Any) -> dict[str, Any]:
    """The answer to an upload that is accepted."""
    response = gateway.post("/calibrate", ADMIN_KEY, files={"file": (name, content)}, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def lines(rows: LabelledRows, *, correct: bool = False) -> list[dict[str, Any]]:
    """Rows as an operator writes them."""
    return [
        {"query": row.query, "weight": row.weight}
        | ({} if row.quality is None else {"quality": dict(zip(POOL, row.quality, strict=True))})
        | ({"correct": {name: name in row.correct for name in POOL}} if correct else {})
        for row in rows.rows
    ]


def as_lines(rows: LabelledRows, **options: Any) -> bytes:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in lines(rows, **options)).encode()


def as_csv(rows: LabelledRows) -> bytes:
    """A column ``quality:NAME`` for each candidate."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["query", "weight", *(f"quality:{name}" for name in POOL)])
    writer.writerows([row.query, row.weight, *(row.quality or ())] for row in rows.rows)
    return text.getvalue().encode()


@pytest.mark.parametrize(("write", "name"), [(as_lines, "rows.jsonl"), (as_csv, "rows.csv")])
def test_qualities_and_weights_are_read_from_every_format(
    gateway: Gateway, noisy_artifact: Path, write: Any, name: str
) -> None:
    """Without ``correct``: the threshold of the core, its mean shortfall and effective rows."""
    rows = weighted(ROWS)
    options = {"alpha": 0.2, "max_weight": 3.0}
    found = upload(gateway, write(rows), name, dry_run=True, **options, **GRADED)["evidence"]
    expected = core(noisy_artifact, rows, risk_target=RiskTarget.QUALITY, **options)
    assert found["lambda_hat"] == expected.lambda_hat(0.2, Score.COVER)
    curve = expected.loss_curve(Score.COVER)
    assert found["mean_shortfall"] == curve.mean_loss(found["lambda_hat"]) > 0.0
    assert found["weights"] == {
        "max_weight": 3.0,
        "effective_n": pytest.approx(expected.effective_n),
    }
    assert (found["n"], found["risk_q05"], found["risk_q95"]) == (150, None, None)


def test_readiness_knows_that_a_level_picked_later_holds_nothing(
    serve: Serve, noisy_artifact: Path
) -> None:
    """Graded rows have no band: what `/readyz` says is what certificates say."""
    gateway = serve(artifact=noisy_artifact, calibrated=False, routing={"alpha": 0.1})
    gateway.upload(lines(ROWS), alpha=0.2, risk_target="quality")
    ready, certificate = gateway.ready(), gateway.route(TWO)["certificate"]
    assert (ready["holds"], certificate["holds"]) == (False, False)
    assert ready["reasons"] == ["alpha_picked"]
    assert "alpha_picked" in ready["standing"]


def test_the_certificate_states_quality_and_any_alpha_has_its_threshold(
    gateway: Gateway, noisy_artifact: Path, racer: Command
) -> None:
    """Per request, for a smaller pool too; and `racer verify` finds the decision again."""
    expected = core(noisy_artifact, ROWS, risk_target=RiskTarget.QUALITY)
    for alpha, names in ((0.1, POOL), (0.2, POOL), (0.2, POOL[:2])):
        decision = gateway.route(TWO, alpha=alpha, candidates=list(names))
        certificate = decision["certificate"]
        assert certificate["guarantee"]["risk_target"] == "quality"
        assert certificate["guarantee"]["weights"] is None
        assert certificate["holds"]
        threshold = expected.restrict(names).lambda_hat(alpha, Score.COVER)
        assert certificate["lambda_hat"] == threshold
        decision_id = decision["decision_id"]
        code, out, _ = racer(
            "verify", decision_id, "--url", gateway.url, "--key", ADMIN_KEY, "--json"
        )
        assert (code, json.loads(out)["matches"]) == (0, True)


def test_known_weights_stand_in_the_certificate(gateway: Gateway) -> None:
    """And no point of a law that does not hold; `max_weight` widens the sets."""
    content = as_lines(weighted(ROWS), correct=True)
    narrow, wide = (
        upload(gateway, content, "rows.jsonl", alpha=0.1, max_weight=each) for each in (3.0, 6.0)
    )
    assert narrow["evidence"]["lambda_hat"] <= wide["evidence"]["lambda_hat"]
    assert wide["evidence"]["weights"]["max_weight"] == 6.0
    assert wide["evidence"]["answer_risk"] is None
    try:
        assert gateway.route(ONE)["certificate"]["guarantee"]["weights"] == "known"
        risk = gateway.get("/drift", ADMIN_KEY).json()
        assert risk["risk_q95"] is None
    finally:
        upload(gateway, as_lines(ROWS), "rows.jsonl", alpha=0.2, **GRADED)


@pytest.mark.parametrize("options", [GRADED, {}])
def test_no_alarm_tests_a_law_that_does_not_hold(
    noisy_artifact: Path, options: dict[str, Any]
) -> None:
    """Graded or weighted rows have no streams of judged queries; plain rows have both."""
    target = {"risk_target": RiskTarget.QUALITY} if options else {"max_weight": 3.0}
    rows = ROWS if options else weighted(ROWS)
    state, plain = (
        statistics.new_drift_state(each, 0.01, np.random.default_rng(0))
        for each in (
            core(noisy_artifact, rows, alpha=0.2, **target),
            core(noisy_artifact, noisy(20_000, 150), alpha=0.2),
        )
    )
    # Weights declare that queries differ from the rows, so only the sizes of their sets remain.
    by_rows = () if options else set(statistics.UNLABELLED) - {statistics.SET_SIZE}
    assert set(plain.streams) - set(state.streams) == {*statistics.JUDGED, *by_rows}


def test_verdicts_say_nothing_about_quality(gateway: Gateway) -> None:
    """Feedback is right or wrong: the shortfall stays anywhere in [0, 1]."""
    answer = gateway.chat(ONE)
    called = {name: True for name in answer["racer"]["selected"]}
    body = {"decision_id": answer["id"], "correct": called}
    assert gateway.post("/feedback", json=body).status_code == 200
    feedback = gateway.get("/drift", ADMIN_KEY).json()["feedback"]
    assert (feedback["lower"], feedback["upper"], feedback["identified"]) == (0.0, 1.0, 0)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"quality": {"adder": 0.5, "speller": 0.1}}, GRADED, "no number for 'poet'"),
        ({"quality": {"adder": 0.5, "speller": 0.1, "poet": 1.1}}, GRADED, "outside [0, 1]"),
        ({"quality": None, "correct": dict.fromkeys(POOL, True)}, GRADED, "rows have no quality"),
        ({"weight": 0}, GRADED, '"weight" must be above 0'),
        ({"weight": 10**400}, GRADED, '"weight" must be above 0 and finite'),
        ({"weight": "2"}, GRADED, '"weight" must be a number'),
        ({"weight": 1e9}, GRADED | {"max_weight": 1e9}, "effective rows"),
        ({"weight": 9}, GRADED, "need max_weight"),
        ({"weight": 9}, {"max_weight": 5}, "above max_weight"),
        ({"weight": 9}, {"delta": 0.1}, "equal weight"),
        ({}, GRADED | {"r": 2}, "r counts right candidates"),
        ({}, {"max_weight": 5}, "max_weight needs rows with weights"),
    ],
)
def test_rows_that_cannot_be_graded_or_weighted_are_refused(
    gateway: Gateway, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    """One clear error; nothing changes."""
    rows = lines(ROWS)
    rows[3] = rows[3] | change
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    before = gateway.ready()
    response = gateway.post(
        "/calibrate", ADMIN_KEY, files={"file": ("rows.jsonl", content)}, params=options
    )
    assert message in error_message(response, 422)
    assert gateway.ready() == before
