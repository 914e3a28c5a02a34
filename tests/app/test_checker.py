"""Checkers of applications: what they are sent, what they may answer, and how they may fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from pydantic import SecretStr

from app import settings
from app.errors import SettingsError, StoreFull
from app.judging.checker_calls import checker_code
from app.monitoring.samples import checker
from app.monitoring.samples.checker import ATTEMPTS, Checkers
from app.monitoring.samples.rechecks import Rechecks
from app.monitoring.samples.record import SampledDecision, SampledExchange
from app.settings import Secrets, Settings
from racer_core.types import CallRecord
from tests.kit.waiting import eventually

pytestmark = pytest.mark.anyio
ANSWERS: dict[str, str | None] = {"adder": "42", "speller": "forty-two", "poet": None}
RIGHT = {"adder": True, "speller": False}
CALLS: Mapping[str, CallRecord] = {"adder": {"finish_reason": "stop"}}
QUIET_S = 0.05
EXCHANGE = SampledExchange(
    request={"messages": []}, path="chat/completions", answers=ANSWERS, calls=CALLS
)
STOPPED = web.AppKey("stopped", asyncio.Event)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def configured(**checked: Any) -> Settings:
    """Two applications, of which `support` has a checker."""
    candidates = [{"name": name, "base_url": "http://127.0.0.1:9"} for name in ANSWERS]
    return Settings.model_validate(
        {
            "schema_version": 1,
            "artifact": "artifact",
            "candidates": candidates,
            "applications": {"support": {"checker": checked}, "agent": {}},
            "watching": {"shadow_rate": 0.5},
        }
    )


@dataclass
class Scene:
    """Open checkers, and what came of the samples."""

    checkers: Checkers
    checks: Counter
    recorded: dict[str, Mapping[str, bool]]
    clock: list[float]

    def submit(
        self,
        name: str = "d1",
        content: str = "Sum?",
        *,
        application: str | None = "support",
        answers: Mapping[str, str | None] = ANSWERS,
        calls: Mapping[str, CallRecord] = CALLS,
    ) -> None:
        """Submit a sample."""
        exchange = SampledExchange(
            request={"messages": [{"role": "user", "content": content}]},
            path="chat/completions",
            answers=answers,
            calls=calls,
        )
        self.checkers.submit(name, application, exchange)

    def outcomes(self) -> dict[str, int]:
        """How many samples had which outcome."""
        return {
            sample.labels["outcome"]: int(sample.value)
            for metric in self.checks.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.value
        }

    async def ended(self, count: int = 1) -> dict[str, int]:
        """The outcomes, once this many samples have one."""
        await eventually(lambda: sum(self.outcomes().values()) == count, 60)
        return self.outcomes()


@asynccontextmanager
async def opened(
    configuration: Settings, *, secrets: Secrets | None = None, fault: Exception | None = None
) -> AsyncGenerator[Scene]:
    """Checkers whose verdicts are kept, or cannot be stored."""
    recorded: dict[str, Mapping[str, bool]] = {}
    clock = [0.0]

    async def record(decision_id: str, correct: Mapping[str, bool]) -> None:
        if fault is not None:
            raise fault
        recorded[decision_id] = correct

    checks = Counter("checks", "Checks", ("application", "outcome"), registry=CollectorRegistry())
    checkers = Checkers(
        configuration,
        secrets or Secrets(),
        checker_code(configuration),
        record=record,
        checks=checks,
        pause_s=0.001,
        clock=lambda: clock[0],
    )
    async with checkers:
        yield Scene(checkers, checks, recorded, clock)


@dataclass
class Server:
    """A checker at a URL.

    Attributes:
        answers: How it answers, in turn; the last for all further requests.
    """

    url: str
    answers: list[Answer]
    documents: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])


@asynccontextmanager
async def served(*answers: Answer) -> AsyncGenerator[Server]:
    """A server that answers so."""
    stopped = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        server.documents.append(await request.json())
        server.headers.append(request.headers)
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        return await answer(request)

    application = web.Application()
    application[STOPPED] = stopped
    application.router.add_post("/check/support", handle)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    server = Server(f"http://{host}:{port}/check/support", list(answers))
    try:
        yield server
    finally:
        stopped.set()
        await runner.cleanup()


def says(document: object, status: int = 200, **options: Any) -> Answer:
    """Answers with this JSON."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(document, status=status, **options)

    return answer


async def hang(request: web.Request) -> web.StreamResponse:
    """Does not answer before the server ends."""
    await request.app[STOPPED].wait()
    return web.Response()


async def test_a_url_is_sent_request_and_answers_and_labels_them() -> None:
    """Tool calls are messages as on the wire; a candidate without an answer is not judged."""
    calls = json.dumps([{"arguments": {"a": 1}, "name": "add"}])
    secrets = Secrets(checker_key=SecretStr("the-token"))
    async with (
        served(says({"correct": RIGHT, "why": "tests"})) as server,
        opened(configured(url=server.url), secrets=secrets) as made,
    ):
        made.submit(answers={**ANSWERS, "adder": calls}, calls={"adder": {"tool_calls": 1}})
        assert await made.ended() == {"ok": 1}
    assert made.recorded == {"d1": RIGHT}
    called = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert server.documents == [
        {
            "decision_id": "d1",
            "application": "support",
            "request": {"messages": [{"role": "user", "content": "Sum?"}]},
            "answers": {
                "adder": {"role": "assistant", "content": None, "tool_calls": [called]},
                "speller": {"role": "assistant", "content": "forty-two"},
            },
        }
    ]
    assert server.headers[0]["authorization"] == "Bearer the-token"


async def test_samples_without_a_checker_or_an_answer_are_not_checked() -> None:
    """Other samples wait for other labels; without an answer there is nothing to be judged."""
    async with served(hang) as server, opened(configured(url=server.url)) as made:
        for application in ("agent", "default", None):
            made.submit(application=application)
        made.submit(answers=dict.fromkeys(ANSWERS))
        await asyncio.sleep(QUIET_S)
        assert (made.outcomes(), server.documents) == ({}, [])


LIES: list[tuple[object, str]] = [
    ([True], "answered no JSON object"),
    ({"verdicts": {}}, "answered no object"),
    ({"correct": ["adder"]}, "answered no object"),
    ({"correct": {**RIGHT, "oracle": True}}, "'oracle', which is none"),
    ({"correct": {**RIGHT, "poet": True}}, "'poet', which is none"),
    ({"correct": {"adder": True}}, "no verdict on 'speller'"),
    ({"correct": {**RIGHT, "adder": 1}}, "neither true nor false"),
    ({"correct": {**RIGHT, "adder": None}}, "neither true nor false"),
]


async def test_an_answer_of_another_schema_labels_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is asked once, and one warning says what is wrong; the next sample is labelled."""
    for document, words in LIES:
        caplog.clear()
        async with (
            served(says(document), says({"correct": RIGHT})) as server,
            opened(configured(url=server.url)) as made,
        ):
            made.submit()
            assert await made.ended() == {"upstream_invalid_response": 1}
            made.submit("d2")
            await made.ended(2)
            assert set(made.recorded) == {"d2"}
            assert len(server.documents) == 2
        (warning,) = caplog.messages
        assert warning.startswith("applications.support.checker: the checker of support")
        assert words in warning


async def test_a_check_that_is_lost_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """The sample stays without a label; the time limit is the check's, not its next byte's."""

    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                await answer.write(b" ")
                await asyncio.sleep(0.01)
        return answer

    async with served(trickle) as slow, served(says({"correct": RIGHT})) as right:
        for url, fault, outcome, words in (
            ("http://127.0.0.1:9/check", None, "upstream_unavailable", "cannot be reached"),
            (right.url, StoreFull("no room"), "not_recorded", "cannot be stored: no room"),
            (slow.url, None, "upstream_timeout", "in time"),
        ):
            timeout_s = 0.1 if url == slow.url else 10
            async with opened(configured(url=url, timeout_s=timeout_s), fault=fault) as made:
                made.submit()
                assert await made.ended() == {outcome: 1}
            assert words in caplog.text


async def test_a_checker_that_hangs_times_out_once_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A timeout is not tried again; after five minutes there is another warning."""
    async with served(hang) as server, opened(configured(url=server.url, timeout_s=0.2)) as made:
        for number in range(5):
            made.submit(f"d{number}")
        assert await made.ended(5) == {"upstream_timeout": 5}
        assert len(server.documents) == 5
        made.clock[0] = 301
        made.submit("d5")
        await made.ended(6)
        assert made.recorded == {}
    assert len(caplog.messages) == 2
    assert "did not answer in time" in caplog.messages[0]
    assert caplog.messages[1].endswith("since the last warning: 5")


async def test_a_checker_that_fails_is_asked_three_times_at_most() -> None:
    """The third answer still counts; a refusal of the key is not tried again."""
    async with (
        served(says({}, 500), says({}, 503), says({"correct": RIGHT}), says({}, 500)) as server,
        opened(configured(url=server.url)) as made,
    ):
        made.submit()
        assert await made.ended() == {"ok": 1}
        made.submit("d2")
        assert await made.ended(2) == {"ok": 1, "upstream_error": 1}
        assert len(server.documents) == 2 * ATTEMPTS
        server.answers = [says({}, 401)]
        made.submit("d3")
        assert (await made.ended(3))["upstream_auth_error"] == 1
        assert len(server.documents) == 2 * ATTEMPTS + 1


async def test_finishing_waits_within_its_limit_and_the_queue_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checker that hangs holds a bounded number of requests; submitting never waits."""
    monkeypatch.setattr(checker, "MAX_WAITING", 8)
    monkeypatch.setattr(checker, "MAX_WAITING_BYTES", 5_000)
    async with served(says({"correct": RIGHT})) as server:
        async with opened(configured(url=server.url, timeout_s=60)) as made:
            for number in range(8):
                made.submit(f"d{number}")
            await made.checkers.finish(20)
            assert made.outcomes() == {"ok": 8}
            server.answers = [hang]
            for number in range(10):
                made.submit(f"e{number}")
            assert made.outcomes() == {"ok": 8, "dropped": 2}
            made.submit("large", "x" * 5_000)
            assert made.outcomes() == {"ok": 8, "dropped": 3}
            await made.checkers.finish(0.01)
        assert made.outcomes() == {"ok": 8, "dropped": 3, "stopped": 8}


async def test_a_lost_check_is_made_again_once_at_a_time() -> None:
    """After a restart, and later after twice the time; a labelled sample no more."""

    class Waiting:
        """Two samples that wait until verdicts are recorded; the second cannot be decrypted."""

        def __init__(self, recorded: Mapping[str, Any]) -> None:
            self.recorded = recorded

        async def unlabelled(self, application: str, before: str) -> list[str]:
            assert application == "support"
            assert before < datetime.now(UTC).isoformat()
            return [each for each in ("d1", "d2") if each not in self.recorded]

        async def get(self, decision_id: str) -> SampledDecision:
            sample = SimpleNamespace(exchange=EXCHANGE if decision_id == "d1" else None)
            return cast("SampledDecision", SimpleNamespace(sample=sample))

    async with (
        served(says({}, 401), says({}, 401), says({"correct": RIGHT})) as server,
        opened(configured(url=server.url)) as made,
    ):
        waiting, clock = Waiting(made.recorded), made.clock
        rechecks = Rechecks(waiting, made.checkers, every_s=100, clock=lambda: clock[0])
        await rechecks.run_once()
        clock[0] = 101
        await rechecks.run_once()  # it is due again, and still being checked
        await made.ended(1)
        for seconds, ended in ((99, 1), (101, 2), (250, 2), (302, 3), (10_000, 3)):
            clock[0] = seconds
            await rechecks.run_once()
            await made.checkers.finish(10)
            assert sum(made.outcomes().values()) == ended
        assert made.recorded == {"d1": RIGHT}
        assert len(server.documents) == 3


def function(name: str) -> str:
    """A function of the tests' own."""
    return f"tests.kit.checkers:{name}"


FAULTS = {
    "hang": ("upstream_timeout", "did not answer within 8 s"),
    "raise": ("upstream_error", "raised ValueError at checkers.py:"),
    "exit": ("upstream_error", "raised SystemExit at"),
    "set": ("upstream_error", "returned a value that is no JSON"),
    "long": ("upstream_disconnected", "ended its process"),
    "list": ("upstream_invalid_response", "returned no dictionary"),
}


async def test_a_function_labels_like_a_url_and_is_killed_when_it_hangs() -> None:
    """What it prints is no message; a gateway that stops does not wait for it."""
    async with opened(configured(function=function("right"))) as made:
        for number in range(2):
            made.submit(f"d{number}")
            assert await made.ended(number + 1) == {"ok": number + 1}
        assert made.recorded["d1"] == RIGHT
    async with (
        asyncio.timeout(300),
        opened(configured(function=function("says"), timeout_s=600)) as made,
    ):
        made.submit(content="hang")
        await asyncio.sleep(QUIET_S)
    assert made.outcomes() == {"stopped": 1}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_function_that_fails_loses_one_label(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No text of the request is logged, and the next sample is labelled."""
    outcome, words = FAULTS[fault]
    timeout_s = 8 if fault == "hang" else 20  # the next call starts a process within it
    async with opened(configured(function=function("says"), timeout_s=timeout_s)) as made:
        made.submit(content=fault)
        assert await made.ended() == {outcome: 1}
        made.submit("d2")
        await made.ended(2)
        assert set(made.recorded) == {"d2"}
    (warning,) = caplog.messages
    assert words in warning
    assert "secret" not in warning


async def test_a_process_with_other_code_than_at_the_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else labels of new code would be those of the old; the log says restart.

    The checker's own file is as it was; what it imports from its package is not.
    """
    package = tmp_path / "own_labels"
    (package / "within").mkdir(parents=True)
    for name, code in {
        "__init__": "",
        "rules": "from tests.kit.checkers import right",
        "within/__init__": "",
        "within/checks": "from own_labels.rules import right\nimport os\n"
        "def check(document):\n"
        "    if 'end' in str(document['request']): os._exit(1)\n"
        "    return right(document)\n",
    }.items():
        (package / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with opened(configured(function="own_labels.within.checks:check")) as made:
        made.submit()
        await made.ended(1)
        (package / "rules.py").write_text("def right(_): return {'correct': {}}", encoding="utf-8")
        made.submit("d2")
        await made.ended(2)
        assert set(made.recorded) == {"d1", "d2"}, "a process that runs has the code of before"
        made.submit("d3", "end")
        made.submit("d4")
        await made.ended(4)
        assert set(made.recorded) == {"d1", "d2"}
    assert "has other code than when the gateway started: restart the gateway" in caplog.text


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("no.such_module:check", "cannot be imported: ModuleNotFoundError"),
        (function("missing"), "has no function `missing`"),
        (function("later"), "must be a plain function"),
    ],
)
async def test_a_function_that_cannot_be_used_stops_the_start(place: str, problem: str) -> None:
    """With its name and the setting."""
    with pytest.raises(SettingsError, match="checker of support") as caught:
        async with opened(configured(function=place)):
            pass
    assert problem in str(caught.value)
    assert "correct `applications.support.checker.function`" in str(caught.value)


def test_a_checker_is_a_url_or_a_function_and_needs_samples() -> None:
    """A wrong one stops the start with its field."""
    url = {"url": "http://host/check"}
    for checked, rate, problem in (
        ({}, 0.5, "needs either `url` or `function`"),
        (url | {"function": "a.b:c"}, 0.5, "needs either `url` or `function`"),
        ({"url": "file:///etc/passwd"}, 0.5, "must be an http(s) URL"),
        ({"function": "a.b.c"}, 0.5, "must match the pattern"),
        (url | {"timeout_s": 0}, 0.5, "must be greater than 0"),
        (url, 0.0, "none are sampled"),
    ):
        document = {
            "schema_version": 1,
            "candidates": [{"name": "adder", "base_url": "http://127.0.0.1:9"}],
            "applications": {"support": {"checker": checked}},
            "watching": {"shadow_rate": rate},
        }
        with pytest.raises(SettingsError) as caught:
            settings.parse(json.dumps(document), Path("racer.yaml"))
        assert "applications.support.checker" in str(caught.value)
        assert problem in str(caught.value)
