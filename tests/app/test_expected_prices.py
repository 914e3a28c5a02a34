"""Calibrations by what calls are expected to cost: the means of the rows' recorded calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.store import Store
from app.store.answer_calibrations import AnswerCalibrationStore
from tests.kit.command_results import answered, written
from tests.kit.gateway import (
    ADMIN_KEY,
    POOL,
    Command,
    Gateway,
    Serve,
    as_json,
    candidates,
    configure,
    error_message,
    noisy,
)
from tests.kit.same_answer import NAMES, calibrate, collect, configured
from tests.kit.upstream import FakePool

LISTED: Mapping[str, Mapping[str, float]] = {
    "adder": {"input": 3.0, "output": 9.0},
    "speller": {"input": 0.1, "output": 0.4, "call": 0.0001},
    "poet": {"gpu_second": 0.0005},
}


def priced(pool: FakePool, prices: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The candidates with these prices."""
    return candidates(pool.url, **{name: {"price": each} for name, each in prices.items()})


def recorded(count: int = 160) -> list[dict[str, Any]]:
    """Rows with the calls that gave their answers."""
    rng = np.random.default_rng(20261205)
    return [
        row
        | {
            "calls": {
                name: {
                    "prompt_tokens": int(rng.integers(10, 100)),
                    "completion_tokens": int(rng.integers(1, 500)),
                    "seconds": float(rng.integers(1, 4_000)) / 1_000,
                }
                for name in POOL
            }
        }
        for row in as_json(noisy(20_000, count))
    ]


def expected(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The mean cost of each candidate's calls, by hand."""

    def mean(name: str, field: str) -> float:
        return float(np.mean([row["calls"][name][field] for row in rows]))

    tokens = {name: (mean(name, "prompt_tokens"), mean(name, "completion_tokens")) for name in POOL}
    return {
        "adder": (3.0 * tokens["adder"][0] + 9.0 * tokens["adder"][1]) / 1e6,
        "speller": (0.1 * tokens["speller"][0] + 0.4 * tokens["speller"][1]) / 1e6 + 0.0001,
        "poet": 0.0005 * mean("poet", "seconds"),
    }


def upload(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> Any:
    """Calibrate, whatever comes of it."""
    body = {"rows": rows, **options}
    return gateway.post("/calibrate", ADMIN_KEY, json=body)


def levels(gateway: Gateway, query: str) -> list[dict[str, Any]]:
    """The sets at every alpha."""
    return gateway.post("/route/levels", json={"query": query, "alpha": 0.2}).json()["levels"]


def test_tokens_and_seconds_are_prices_of_calls_to_a_calibration(
    serve: Serve, pool: FakePool, noisy_artifact: Path
) -> None:
    """As if each candidate had the mean cost of its recorded calls as the price of a call."""
    rows, routing = recorded(), {"score": "cover_cost"}
    usual: dict[str, Any] = {"calibrated": False, "artifact": noisy_artifact, "routing": routing}
    listed = serve(**usual, candidates=priced(pool, LISTED))
    plain = serve(**usual, candidates=priced(pool, expected(rows)))
    both = [upload(gateway, rows) for gateway in (listed, plain)]
    assert [response.status_code for response in both] == [200, 200], [each.text for each in both]
    one, other = (response.json()["evidence"] for response in both)
    assert one["prices"]["of_calls"] == pytest.approx(expected(rows))
    assert one["prices"]["currency"] == "USD"
    assert one["prices"]["usage"]["adder"]["input_tokens"] == pytest.approx(
        np.mean([row["calls"]["adder"]["prompt_tokens"] for row in rows])
    )
    assert one["mean_cost"] == pytest.approx(other["mean_cost"])
    for number in range(8):
        query = f"What is {number} plus {number + 1}?"
        sets = [[each["selected"] for each in levels(g, query)] for g in (listed, plain)]
        assert sets[0] == sets[1]
        assert listed.route(query)["selected"] == plain.route(query)["selected"]


def test_a_calibration_keeps_the_prices_that_it_was_made_with(
    serve: Serve, pool: FakePool, noisy_artifact: Path
) -> None:
    """A reload changes what requests cost, and no statement of the calibration."""
    gateway = serve(
        calibrated=False, artifact=noisy_artifact, candidates=priced(pool, LISTED),
        routing={"score": "cover_cost"},
    )  # fmt: skip
    assert upload(gateway, recorded()).status_code == 200
    before = levels(gateway, "What is 3 plus 4?")
    assert any(each["cost_share"] not in (0.0, 1.0) for each in before)
    assert gateway.config is not None
    text = gateway.config.read_text(encoding="utf-8")
    gateway.config.write_text(text.replace("input: 3.0", "input: 300.0"), encoding="utf-8")
    reloaded = gateway.post("/admin/reload", ADMIN_KEY)
    assert reloaded.json()["changed"] == ["candidates.adder.price.input"]
    assert levels(gateway, "What is 3 plus 4?") == before


def test_rows_without_calls_have_no_prices(
    serve: Serve, pool: FakePool, noisy_artifact: Path
) -> None:
    """Only the score that weighs candidates by cost needs them."""
    gateway = serve(calibrated=False, artifact=noisy_artifact, candidates=priced(pool, LISTED))
    refused = upload(gateway, as_json(noisy(20_000, 160)), score="cover_cost")
    assert "send rows with `calls`" in error_message(refused, 422)
    taken = upload(gateway, as_json(noisy(20_000, 160)), score="cover")
    assert taken.status_code == 200, taken.text
    assert not {"prices", "mean_cost"} & taken.json()["evidence"].keys()


def test_what_is_not_called_is_estimated_by_the_rows(
    serve: Serve, pool: FakePool, noisy_artifact: Path
) -> None:
    """A candidate that has not answered yet is expected to write as much as on the rows."""
    rows = recorded()
    gateway = serve(calibrated=False, artifact=noisy_artifact, candidates=priced(pool, LISTED))
    assert upload(gateway, rows, score="static").status_code == 200
    answer = gateway.chat("What is 3 plus 4?", {"alpha": 0.4})["racer"]
    (called,) = answer["selected"]
    other = {"adder": "speller", "speller": "adder"}[called]
    written = round(np.mean([row["calls"][other]["completion_tokens"] for row in rows]))
    price = LISTED[other]
    guess = (10 * price["input"] + written * price["output"]) / 1e6 + price.get("call", 0.0)
    seconds = float(np.mean([row["calls"]["poet"]["seconds"] for row in rows]))
    everyone = answer["cost"]["alternatives"]["everyone"]
    own = answer["cost"]["cost"]
    assert everyone["cost"] == pytest.approx(own + guess + 0.0005 * seconds, rel=1e-6)


@pytest.mark.usefixtures("few_fitting_rows")
def test_the_promise_same_answer_expects_what_calls_used(
    serve: Serve, talking: FakePool, tmp_path: Path
) -> None:
    """Of the answers since the start; a gateway that has just started must wait for them."""
    listed = {name: {"input": 1.0, "output": 4.0} for name in NAMES}
    listed["eve"] = {"input": 10.0, "output": 40.0}
    given = configured(
        talking, same_answer={"alpha": 0.1, "reference": "eve"}, watching={"shadow_rate": 1.0}
    )
    for each in given["candidates"]:
        each["price"] = listed[each["name"]]
    folder = tmp_path / "gateway"
    first = serve(folder=folder, **given)
    collect(first, 40)
    result = calibrate(first)
    with Store(first.settings.store) as store:
        record = AnswerCalibrationStore(store).record(result["id"])
    # Scripted: ten tokens of a prompt, and one for each of the answer's letters, a digit.
    assert record.prices == pytest.approx(dict.fromkeys(NAMES, 14e-6) | {"eve": 140e-6})
    again = serve(folder=folder, **given)
    refused = again.post("/same-answer/calibrate", ADMIN_KEY, json={})
    assert "is not known yet" in error_message(refused, 400)


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    """Rows with answers and calls."""
    rows = answered(noisy(30_000, 300))
    path = written(tmp_path / "validation.jsonl", rows)
    calls = [each["calls"] for each in recorded(300)]
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    merged = [line | {"calls": call} for line, call in zip(lines, calls, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in merged), encoding="utf-8")
    return path


def test_tune_shows_the_frontier_and_writes_the_point_that_is_named(
    racer: Command, tmp_path: Path, noisy_artifact: Path, validation: Path, pool: FakePool
) -> None:
    """A table and a plot of cost, risk and accuracy; `--at` writes another point of it."""
    config = configure(tmp_path, noisy_artifact, pool.url, candidates=priced(pool, LISTED))
    arguments = ["tune", "--config", config, "--validation", validation]
    code, out, stderr = racer(*arguments)
    assert code == 0, stderr
    assert "cost (USD)" in out
    assert "accuracy over USD a query" in out
    code, out, stderr = racer(*arguments, "--json")
    found = json.loads(out)
    alphas = list(dict.fromkeys(trial["alpha"] for trial in found["trials"]))
    assert set(found["frontier"]) <= set(alphas)
    other = next(alpha for alpha in alphas if alpha != found["chosen"]["alpha"])
    code, out, stderr = racer(*arguments, "--at", other, "--write", "--json")
    assert code == 0, stderr
    assert json.loads(out)["chosen"]["alpha"] == other
    assert f"alpha: {other:g}" in config.read_text(encoding="utf-8")
    code, _, stderr = racer(*arguments, "--at", 0.123)
    assert code == 1
    assert "no point is at alpha 0.123; there are points at 0.01, " in stderr


def test_tune_refuses_prices_that_its_rows_do_not_tell(
    racer: Command, tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """By the token, and without recorded calls; sizes can be compared all the same."""
    config = configure(tmp_path, noisy_artifact, pool.url, candidates=priced(pool, LISTED))
    rows = written(tmp_path / "validation.jsonl", answered(noisy(30_000, 300)))
    arguments = ["tune", "--config", config, "--validation", rows]
    code, _, stderr = racer(*arguments)
    assert code == 2
    assert "what a call costs is not known" in stderr
    code, out, stderr = racer(*arguments, "--objective", "size")
    assert code == 0, stderr
    assert "accuracy over calls a query" in out


def test_evaluate_takes_price_lists(racer: Command, validation: Path) -> None:
    """The same prices as in a configuration, by the rows' calls."""
    arguments = ["evaluate", "--data", validation, "--encoder", "char-ngrams", "--splits", 1,
                 "--alpha", 0.2, "--json"]  # fmt: skip
    prices = [f"--price={name}={json.dumps(price)}" for name, price in LISTED.items()]
    code, out, stderr = racer(*arguments, *prices)
    assert code == 0, stderr
    found = dict(zip(json.loads(out)["pool"], json.loads(out)["protocol"]["prices"], strict=True))
    assert found == pytest.approx(expected(recorded(300)))
