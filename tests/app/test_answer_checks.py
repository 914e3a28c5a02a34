"""Checkers as evidence under `same_answer`: in rounds, on samples, and when they fail."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Counter
from pydantic import ValidationError

from app.answering.evidence import EvidenceChecks
from app.errors import SettingsError
from app.judging.checker_calls import checker_code
from app.settings import Evidence, Secrets, Settings
from app.telemetry.metrics import Metrics as GatewayMetrics
from app.upstream.fleet import Fleet
from racer_core.errors import install_hint
from racer_core.sequential.verdicts import NO_VERDICT
from tests.kit.case import Metrics
from tests.kit.gateway import ADMIN_KEY, Gateway, Serve
from tests.kit.monitored import sampled
from tests.kit.same_answer import configured
from tests.kit.upstream import FakePool

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("few_fitting_rows")]
FUNCTION = {"function": "tests.kit.checkers:check", "timeout_s": 2.0}
TERMS = {"alpha": 0.03, "evidence": FUNCTION}


def made(gateway: Gateway, response: dict[str, Any]) -> dict[str, Any]:
    """The calls of a stored decision."""
    return gateway.get(f"/decisions/{response['id']}").json()["sequence"]["made"]


def outcomes(gateway: Gateway) -> dict[str, float]:
    """How many checks had which outcome."""
    metrics = Metrics.parsed(gateway.get("/metrics", ADMIN_KEY).text)
    return metrics.by("racer_evidence_total", "outcome")


def test_verdicts_are_evidence_in_rows_and_requests_and_failures_are_none(
    serve: Serve, talking: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """A function knows what is right; where it is slow, crashes or talks nonsense, all goes on."""
    gateway = serve(**configured(talking, same_answer=TERMS, watching={"shadow_rate": 1.0}))
    for number in range(60):
        gateway.chat(f"question {number}")
    sampled(gateway, 60)
    result = gateway.post("/same-answer/calibrate", ADMIN_KEY, json={}).json()
    assert result["active"], result
    checker = result["evidence"]["checker"]
    assert checker["kind"] == "function"
    assert checker["right"][5] > 0.8 > 0.2 > checker["wrong"][5]
    # One right answer is worth more than agreement among wrong ones.
    names = result["evidence"]["order"]
    for name in names:
        talking.say(name, "8")
    talking.say(names[0], "0")
    response = gateway.chat("which?")
    assert response["choices"][0]["message"]["content"] == "0"
    guarantee = response["racer"]["certificate"]["guarantee"]
    assert guarantee["evidence"] == "function"
    assert response["racer"]["certificate"]["holds"]
    called = made(gateway, response)
    assert called["verdicts"] == {name: 5 if name == names[0] else 0 for name in called["classes"]}
    checked = gateway.post(f"/decisions/{response['id']}/verify", ADMIN_KEY)
    assert checked.json()["matches"], checked.text
    # A hostile checker is no error, and each failure is counted.
    before = outcomes(gateway)
    for name, text in zip(names, ("slow", "crash", "raise", "shape", "odd"), strict=True):
        talking.say(name, text)
    response = gateway.chat("what?")
    called = made(gateway, response)
    assert set(called["verdicts"].values()) == {NO_VERDICT}
    sampled(gateway, 62)
    after = outcomes(gateway)
    assert before.keys() == {"verdict"}
    shown = gateway.get("/metrics", ADMIN_KEY).text
    assert 'racer_evidence_total{outcome="lost"} 0.0' in shown, "a rate needs the zero"
    assert caplog.text.count("same_answer.evidence: ") == 1, "a warning in five minutes"
    assert "answers without a verdict since the last warning: 1" in caplog.text
    assert (after["timeout"] >= 1, after["failed"] >= 3, after["no_verdict"] >= 1) == (True,) * 3
    # Its processes come back.
    for name in names:
        talking.say(name, "0")
    response = gateway.chat("and now?")
    assert set(made(gateway, response)["verdicts"].values()) == {5}


def test_a_checker_belongs_to_the_setup_of_the_rows(
    serve: Serve, talking: FakePool, tmp_path: Path
) -> None:
    """Rows with the verdicts of a judge calibrate nothing where it is not asked."""
    talking.rate("ada", {"0": 0.99})
    judged = {"alpha": 0.1, "evidence": {"judge": {"candidate": "ada"}}}
    watching = {"shadow_rate": 1.0}
    gateway = serve(
        folder=tmp_path / "gateway", **configured(talking, same_answer=judged, watching=watching)
    )
    for number in range(3):
        gateway.chat(f"question {number}")
    sampled(gateway, 3)
    progress = gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]
    assert progress["rows"] == 3
    assert outcomes(gateway)["verdict"] == 15
    plain = configured(talking, same_answer={"alpha": 0.1}, watching=watching)
    again = serve(folder=tmp_path / "gateway", **plain)
    assert again.get("/same-answer", ADMIN_KEY).json()["applications"][""]["rows"] == 0


ASKED: Any = SimpleNamespace(application=None, fields={"messages": []})


def says(text: str) -> Any:
    """An answer to check by its message."""
    record = {"message": {"content": text}}
    return SimpleNamespace(candidate="ada", answer=text, call_record=record)


@asynccontextmanager
async def opened(
    evidence: dict[str, Any],
    url: str = "http://127.0.0.1:9/v1",
    counter: Counter | None = None,
    **changes: Any,
) -> AsyncGenerator[EvidenceChecks]:
    """The checks of a gateway whose only candidate makes one call at a time."""
    document = {
        "schema_version": 1,
        "candidates": [{"name": "ada", "base_url": url, "concurrency": 1}],
        "aggregation": {"equality": "exact"},
        "same_answer": {"evidence": evidence},
        **changes,
    }
    settings, secrets = Settings.model_validate(document), Secrets()
    counter = counter or Counter("checks", "Checks.", ("outcome",), registry=None)
    async with (
        Fleet(settings, secrets, metrics=GatewayMetrics()) as fleet,
        EvidenceChecks(settings, secrets, fleet, counter, checker_code(settings)) as checks,
    ):
        yield checks


async def test_rows_and_requests_get_the_same_verdicts_however_many_are_checked_at_once() -> None:
    """Each check has all of its time, abandoned ones do no harm, and own faults show."""
    later = time.monotonic() + 60
    async with opened(FUNCTION) as checks:
        rows = asyncio.gather(*(checks.of_row(ASKED, says("pause")) for _ in range(8)))
        left = [
            asyncio.create_task(checks.of_request(ASKED, says("pause"), later)) for _ in range(4)
        ]
        await asyncio.sleep(0.05)
        for task in left:
            task.cancel()
        rounds: list[int | None] = []
        for size in (3, 5):
            asked = (checks.of_request(ASKED, says("pause"), later) for _ in range(size))
            rounds += await asyncio.gather(*asked)
        own = [
            await checks.of_row(ASKED, says("slow")),
            await checks.of_request(ASKED, says("slow"), later),
            await checks.of_request(ASKED, says("slow"), time.monotonic() + 0.1),
        ]
        assert await rows == rounds == [0] * 8
    assert own == [NO_VERDICT, NO_VERDICT, None]


async def test_a_request_waits_for_a_place_only_as_long_as_a_check_takes() -> None:
    """Behind two hanging checks on one place the third is lost long before its deadline."""
    later = time.monotonic() + 60
    async with opened(FUNCTION | {"timeout_s": 1.0, "concurrency": 1}) as checks:
        asked = (checks.of_request(ASKED, says("slow"), later) for _ in range(3))
        found = await asyncio.gather(*asked)
    assert found.count(None) >= 1
    assert found[0] == NO_VERDICT
    assert time.monotonic() < later


JUDGE = {"judge": {"candidate": "ada"}, "timeout_s": 2.0}
REQUEST: Any = SimpleNamespace(
    application=None, query=SimpleNamespace(text="?"), caller=SimpleNamespace(name="")
)


async def test_a_judge_that_is_down_is_a_state_and_its_wait_in_a_queue_takes_no_time(
    pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway starts, and each failure is counted; a check's time counts from its slot."""
    counter = Counter("judged", "Checks.", ("outcome",), registry=None)
    later = time.monotonic() + 60
    pool.rate("ada", {}, fault="503")
    async with opened(JUDGE, pool.url, counter) as checks:
        assert await checks.of_row(REQUEST, says("down")) == NO_VERDICT
        pool.rate("ada", {}, logprobs=False)
        assert await checks.of_request(REQUEST, says("bare"), later) == NO_VERDICT
        pool.rate("ada", {}, delay_s=30)
        assert await checks.of_row(REQUEST, says("slow")) == NO_VERDICT
        pool.rate("ada", {"0": 0.99}, delay_s=0.4)  # of six the last waits for 2 s
        rows = [checks.of_row(REQUEST, says("0")) for _ in range(2)]
        rounds = [checks.of_request(REQUEST, says("0"), later) for _ in range(4)]
        early = checks.of_request(REQUEST, says("0"), time.monotonic() + 0.6)
        assert await asyncio.gather(*rows, *rounds, early) == [*[5] * 6, None]
    async with opened(JUDGE, pool.url, counter, limits={"buffered_bytes": 1}) as checks:
        assert await checks.of_row(REQUEST, says("0")) is None
    assert "same_answer.evidence.judge: ada is overloaded" in caplog.text
    (metric,) = counter.collect()
    counts = {
        each.labels["outcome"]: each.value for each in metric.samples if each.name == "judged_total"
    }
    assert counts == {"failed": 2, "timeout": 1, "verdict": 6, "lost": 2}


@pytest.mark.parametrize(
    ("evidence", "fault", "message"),
    [
        (JUDGE, None, "judge: .* serve it with vLLM, or use another checker"),
        (JUDGE, "404", "judge: .* check its `base_url` and `model`"),
        ({"function": "no.such:check"}, None, "correct `same_answer.evidence.function`"),
        ({"json_schema": "request"}, None, "; " + re.escape(install_hint("label"))),
    ],
)
async def test_a_checker_that_is_configured_wrongly_stops_the_start(
    evidence: dict[str, Any],
    fault: str | None,
    message: str,
    pool: FakePool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names the setting, and what to do."""
    pool.rate("ada", {}, logprobs=False, fault=fault)
    (tmp_path / "jsonschema.py").write_text("raise ImportError('as if it were not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SettingsError, match=f"same_answer.evidence.*{message}"):
        async with opened(evidence, pool.url):
            pass


SCHEMA = {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer"}}}


def test_answers_meet_a_schema_or_not() -> None:
    """The configured one, or that of the request, in chat and in responses."""
    from app.tools.labelling import schema_check

    texts = {"good": '{"sum": 3}', "bad": '{"sum": "3"}', "prose": "three", "call": None}
    answers = {name: {"role": "assistant", "content": text} for name, text in texts.items()}
    wanted = {"good": True, "bad": False, "prose": False, "call": None}
    chat = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    responses = {"text": {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}}}
    for schema, request in ((SCHEMA, {}), ("request", chat), ("request", responses)):
        document = {"schema": schema, "request": request, "answers": answers}
        assert schema_check.check(document)["correct"] == wanted
    for schema, request in (
        ("request", {}),
        ("request", {"response_format": "x", "text": []}),
        ({"type": "no such type"}, {}),
        ({"$ref": "http://127.0.0.1:9/x"}, {}),
    ):
        document = {"schema": schema, "request": request, "answers": {"good": answers["good"]}}
        assert schema_check.check(document)["correct"] == {"good": None}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "needs one of"),
        ({"url": "http://127.0.0.1:9/x", "json_schema": "request"}, "needs one of"),
        ({"json_schema": "other"}, "request"),
        ({"judge": {"candidate": "ada", "timeout_s": 9}}, "timeout_s"),
    ],
)
def test_a_checker_is_of_one_kind(wrong: dict[str, Any], message: str) -> None:
    """Two would have to be weighed against each other."""
    with pytest.raises(ValidationError, match=message):
        Evidence.model_validate(wrong)
