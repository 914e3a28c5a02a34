"""A gateway that is not calibrated yet: `auto` is answered by the fallback, without a guarantee."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import artifact_watch, settings
from app.errors import SettingsError
from racer_core import artifacts
from tests.kit.accounts import configured_key
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    Gateway,
    Serve,
    configure,
    running,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

VOID = "void; not_calibrated"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The artifact is looked for ten times a second."""
    monkeypatch.setattr(artifact_watch, "EVERY_S", 0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the artifact is configured to be; nothing is there yet."""
    return tmp_path / "artifact"


@pytest.fixture
def gateway(tmp_path: Path, folder: Path, pool: FakePool) -> Iterator[Gateway]:
    """A gateway with neither artifact nor calibration."""
    with running(configure(tmp_path / "1", folder, pool.url), ENVIRONMENT) as started:
        yield started


def parts(gateway: Gateway) -> list[str]:
    """What /readyz says is missing."""
    return [each["part"] for each in gateway.ready().get("missing", [])]


# What answers -------------------------------------------------------------------------------------


def test_auto_answers_before_there_is_an_artifact(gateway: Gateway, pool: FakePool) -> None:
    """By the first candidate, through the official client, with a void certificate."""
    pool.say("adder", "seven")
    answer = gateway.openai().chat.completions.with_raw_response.create(
        model="auto", messages=user(ONE)
    )
    assert answer.headers["x-racer-guarantee"] == VOID
    assert answer.headers["x-racer-selected"] == "adder"
    completion: Any = answer.parse()
    assert (completion.model, completion.choices[0].message.content) == ("adder", "seven")
    certificate = completion.racer["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (False, ["not_calibrated"])
    assert (certificate["n"], certificate["calibration_id"]) == (0, None)
    assert certificate["lambda_hat"] is None
    assert not certificate["guarantee"]["trivial"]
    assert set(pool.models_called()) == {"adder"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "auto", "messages": user(ONE)}),
        ("/v1/chat/completions", {"model": "auto", "messages": user(ONE), "stream": True}),
        ("/v1/completions", {"model": "auto", "prompt": ONE}),
        ("/v1/responses", {"model": "auto", "input": ONE}),
        ("/route", {"query": ONE}),
        ("/route", {"query": ONE, "execute": True}),
    ],
    ids=["chat", "stream", "completion", "response", "route", "route_and_ask"],
)
@pytest.mark.parametrize("has_artifact", [False, True])
def test_every_endpoint_answers_by_the_fallback(
    serve: Serve, tmp_path: Path, artifact: Path, path: str, body: Any, has_artifact: bool
) -> None:
    """With an artifact and without one, as long as no calibration is active."""
    gateway = serve(
        calibrated=False,
        artifact=artifact if has_artifact else tmp_path / "none",
        routing={"fallback": "speller", "on_abstain": "error", "session_ttl_s": 60},
    )
    response = gateway.post(path, json=body, headers={"x-session-id": "one"})
    assert response.status_code == 200, response.text
    assert response.headers["x-racer-guarantee"] == VOID
    assert response.headers["x-racer-selected"] == "speller"
    assert '"reasons":["not_calibrated"]' in response.text


def test_a_named_pool_has_a_fallback_of_its_own(serve: Serve, folder: Path) -> None:
    """The first candidate of the pool, where the configured one is outside it."""
    gateway = serve(
        calibrated=False,
        artifact=folder,
        pools={"words": {"candidates": ["speller", "poet"], "alpha": 0.2}},
        routing={"fallback": "adder"},
    )
    racer = gateway.chat(ONE, model="auto/words")["racer"]
    assert racer["selected"] == ["speller"]
    guarantee = racer["certificate"]["guarantee"]
    assert (guarantee["alpha"], guarantee["pool"]) == (0.2, ["speller", "poet"])
    assert gateway.chat(ONE, {"candidates": ["poet"]})["racer"]["selected"] == ["poet"]
    assert "auto/words" in [each["id"] for each in gateway.get("/v1/models").json()["data"]]


def test_a_key_gets_the_candidates_that_it_may_call(
    tmp_path: Path, folder: Path, pool: FakePool
) -> None:
    """Never another one, even where the fallback is not among them."""
    key, line = configured_key("poets", candidates=["poet"])
    path = configure(tmp_path, folder, pool.url, access={"keys": [line]})
    with running(path, ENVIRONMENT) as gateway:
        body = {"model": "auto", "messages": user(ONE)}
        response = gateway.post("/v1/chat/completions", key, json=body)
        assert response.headers["x-racer-selected"] == "poet"
        pool.fail("poet", "500")
        response = gateway.post("/v1/chat/completions", key, json=body)
        assert response.status_code == 502
    assert set(pool.models_called()) == {"poet"}


@pytest.mark.parametrize("has_artifact", [False, True])
def test_the_whole_pool_votes_where_that_is_configured(
    serve: Serve, folder: Path, artifact: Path, pool: FakePool, has_artifact: bool
) -> None:
    """All are called, and the majority's answer is returned; `stacked` weights need no artifact."""
    for name, text in (("adder", "6"), ("speller", "7"), ("poet", "7")):
        pool.say(name, text)
    for aggregation, answers in (
        ({"equality": "number", "waves": "all"}, ["7"]),
        ({"equality": "semantic"}, ["6", "7"]),
    ):
        gateway = serve(
            calibrated=False,
            artifact=artifact if has_artifact else folder,
            routing={"fallback": "whole_pool"},
            aggregation=aggregation,
        )
        answer = gateway.chat(ONE)
        assert answer["racer"]["selected"] == list(POOL)
        assert answer["choices"][0]["message"]["content"] in answers
        assert answer["racer"]["certificate"]["reasons"] == ["not_calibrated"]


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_the_next_candidates_answer_where_the_fallback_fails(
    gateway: Gateway, pool: FakePool, stream: bool
) -> None:
    """One after another, until one answers; the certificate names the one that failed."""
    pool.fail("adder", "500")
    pool.fail("speller", "500")
    pool.say("poet", "a rose")
    if stream:
        events = gateway.openai().chat.completions.create(
            model="auto", messages=user(ONE), stream=True
        )
        assert "".join(each.choices[0].delta.content or "" for each in events) == "a rose"
    else:
        answer = gateway.chat(ONE)
        assert answer["model"] == "poet"
        reasons = answer["racer"]["certificate"]["reasons"]
        assert reasons == ["not_calibrated", "candidate_failed:adder"]
    assert set(pool.models_called()) == set(POOL)


def test_bounds_of_keys_and_requests_hold_as_ever(gateway: Gateway, pool: FakePool) -> None:
    """Unknown candidates and an alpha of 2 are refused, and an outage of all candidates is 502."""
    assert gateway.ask(ONE, {"candidates": ["unknown"]}).status_code == 404
    assert gateway.ask(ONE, {"alpha": 2.0}).status_code == 400
    assert gateway.chat(ONE, {"alpha": 0.3})["racer"]["certificate"]["guarantee"]["alpha"] == 0.3
    levels = gateway.post("/route/levels", json={"query": ONE}).json()
    assert (levels["levels"], levels["selected"]) == ([], ["adder"])
    for name in POOL:
        pool.fail(name, "500")
    failed = gateway.ask(ONE)
    assert (failed.status_code, failed.json()["error"]["code"]) == (502, "upstream_error")


# What is stored -----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_artifact", [False, True])
def test_a_decision_of_the_fallback_is_stored_and_judged(
    serve: Serve, folder: Path, artifact: Path, has_artifact: bool
) -> None:
    """Feedback is taken; there is nothing to verify; once calibrated it counts for no risk."""
    gateway = serve(calibrated=False, artifact=artifact if has_artifact else folder)
    decision_id = gateway.chat(ONE)["racer"]["decision_id"]
    stored = gateway.get(f"/decisions/{decision_id}").json()
    assert (stored["calibration_id"], stored["chosen_by"]) == (None, "fallback")
    assert (stored["holds"], stored["reasons"]) == (False, ["not_calibrated"])
    assert (stored["selected"], stored["served_by"]) == (["adder"], "adder")
    body = {"decision_id": decision_id, "correct": {"adder": True}}
    assert gateway.post("/feedback", json=body).status_code == 200
    verified = gateway.post(f"/decisions/{decision_id}/verify", ADMIN_KEY)
    assert verified.status_code == 404
    assert "without a threshold" in verified.json()["error"]["message"]


# What is missing ----------------------------------------------------------------------------------


def test_readyz_names_what_is_missing_and_the_next_command(gateway: Gateway, folder: Path) -> None:
    """200, for requests are answered; a metric says the same, for alerts."""
    response = gateway.get("/readyz", None)
    assert response.status_code == 200
    assert gateway.get("/readyz?calibrated=true", None).status_code == 503
    ready = response.json()
    assert (ready["status"], ready["calibration"], ready["fallback"]) == ("ready", None, "adder")
    by_part = {each["part"]: each for each in ready["missing"]}
    assert list(by_part) == ["artifact", "calibration"]
    assert str(folder) in by_part["artifact"]["reason"]
    assert "racer label" in by_part["artifact"]["next"]
    assert "racer train" in by_part["artifact"]["next"]
    assert "racer calibrate" in by_part["calibration"]["next"]
    assert gateway.metric('racer_missing{part="artifact"}') == 1
    assert gateway.metric('racer_missing{part="calibration"}') == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/calibrate", {"rows": [{"query": "one?", "correct": dict.fromkeys(POOL, True)}]}),
        ("/calibrations/cal-1/activate", {}),
        ("/calibrations/jobs", None),
    ],
)
def test_endpoints_that_need_an_artifact_say_so(gateway: Gateway, path: str, body: Any) -> None:
    """503 `no_router` with the command."""
    response = (
        gateway.get(path, ADMIN_KEY) if body is None else gateway.post(path, ADMIN_KEY, json=body)
    )
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_router"
    assert "racer train" in response.json()["error"]["message"]


# What is taken while it runs ----------------------------------------------------------------------


def test_artifact_and_calibration_are_taken_while_it_runs(
    gateway: Gateway, folder: Path, artifact: Path
) -> None:
    """The same process goes from the fallback to a certificate, and answers all the time."""
    assert gateway.chat(ONE)["racer"]["certificate"]["reasons"] == ["not_calibrated"]
    shutil.copytree(artifact, folder)
    assert until(lambda: parts(gateway) == ["calibration"], 30)
    assert gateway.chat(ONE)["racer"]["certificate"]["reasons"] == ["not_calibrated"]
    identity = gateway.calibrate()["id"]
    racer = gateway.chat(ONE)["racer"]
    assert (racer["certificate"]["holds"], racer["selected"]) == (True, ["adder"])
    for path in ("/readyz", "/readyz?calibrated=true"):
        ready = gateway.get(path, None)
        assert ready.status_code == 200
        assert ready.json() == {
            "status": "ready",
            "calibration": identity,
            "promise": "set",
            "holds": True,
            "reasons": [],
            "standing": f"certificates of {identity} hold (promise set)",
            "artifact": artifacts.digest(folder),
            "level": {"alpha": 0.1, "bound": {"value": 0.1, "confidence": None}},
        }
    assert gateway.metric('racer_missing{part="artifact"}') == 0
    assert gateway.metric('racer_missing{part="calibration"}') == 0


def test_requests_in_flight_survive_the_swap(
    gateway: Gateway, folder: Path, artifact: Path, pool: FakePool
) -> None:
    """A stream that began under the fallback ends under it."""
    pool.say("adder", "seven " * 20)
    stream = gateway.openai().chat.completions.create(model="auto", messages=user(ONE), stream=True)
    first = next(iter(stream))
    shutil.copytree(artifact, folder)
    assert until(lambda: parts(gateway) == ["calibration"], 30)
    rest = "".join(each.choices[0].delta.content or "" for each in stream)
    assert (first.choices[0].delta.content or "") + rest == "seven " * 20


def test_a_broken_artifact_is_refused_and_harms_nothing(
    gateway: Gateway, folder: Path, artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A clear log line and detail; requests are answered as before; a good one is then taken."""
    folder.mkdir()
    shutil.copy(artifact / "router.safetensors", folder)
    manifest = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))
    manifest["candidates"].reverse()  # trained for another pool
    with caplog.at_level(logging.ERROR):
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        assert until(lambda: "was trained for the pool" in gateway.get("/readyz").text, 30)
    refused = [each for each in caplog.records if "was trained for the pool" in each.getMessage()]
    assert len(refused) == 1
    assert gateway.get("/readyz").status_code == 200
    assert gateway.chat(ONE)["racer"]["certificate"]["reasons"] == ["not_calibrated"]
    shutil.copy(artifact / "manifest.json", folder)
    assert until(lambda: parts(gateway) == ["calibration"], 30)


def test_a_changed_artifact_needs_a_restart_and_says_so(
    gateway: Gateway, folder: Path, artifact: Path, noisy_artifact: Path
) -> None:
    """The router that the calibration was made for goes on deciding."""
    shutil.copytree(artifact, folder)
    assert until(lambda: parts(gateway) == ["calibration"], 30)
    gateway.calibrate()
    decided = gateway.decided(ONE)
    for each in noisy_artifact.iterdir():
        shutil.copy(each, folder)
    assert until(lambda: "restart" in gateway.get("/readyz").text, 30)
    assert gateway.get("/readyz").status_code == 200
    assert gateway.decided(ONE) == decided
    for each in artifact.iterdir():
        shutil.copy(each, folder)
    assert until(lambda: "restart" not in gateway.get("/readyz").text, 30)


# The setting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routing": {"fallback": "nobody"}}, "routing.fallback: 'nobody' is no candidate"),
        ({"candidates": [{"name": "whole_pool", "base_url": "http://x/v1"}]}, "reserved"),
    ],
)
def test_a_fallback_that_does_not_exist_stops_the_start(
    tmp_path: Path, folder: Path, changes: dict[str, Any], message: str
) -> None:
    """With the name of the setting."""
    path = configure(tmp_path, folder, "http://127.0.0.1:1/v1", **changes)
    with pytest.raises(SettingsError, match=message):
        settings.load(path, ENVIRONMENT)
