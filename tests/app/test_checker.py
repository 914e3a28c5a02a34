"""Checkers of applications: what they are sent, what they may answer, and how they may fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
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
from app.monitoring.samples import checker
from app.monitoring.samples.checker import ATTEMPTS, Checkers
from app.monitoring.samples.rechecks import Rechecks
from app.monitoring.samples.record import SampledDecision, SampledExchange
from app.settings import Secrets, Settings
from racer_core.types import CallRecord
from tests.kit.waiting import eventually

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

    async def handle(request: web.Request) -> web.StreamResponse:
        server.documents.append(await request.json())
        server.headers.append(request.headers)
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        return await answer(request)

    application = web.Application()
    application[STOPPED] = asyncio.Event()
    application.router.add_post("/check/support", handle)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server = Server(f"http://{host}:{port}/check/support", list(answers))
    try:
        yield server
    finally:
        application[STOPPED].set()
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


def test_a_url_is_sent_request_and_answers_and_labels_them() -> None:
    """Tool calls are messages as on the wire; a candidate without an answer is not judged."""

    async def scene() -> None:
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

    asyncio.run(scene())


def test_only_samples_of_an_application_with_a_checker_are_checked() -> None:
    """Other samples wait for other labels."""

    async def scene() -> None:
        async with (
            served(says({"correct": RIGHT})) as server,
            opened(configured(url=server.url)) as made,
        ):
            for application in ("agent", "default", None):
                made.submit(application=application)
            await asyncio.sleep(QUIET_S)
            assert (made.outcomes(), server.documents) == ({}, [])

    asyncio.run(scene())


def test_answers_of_no_candidate_are_not_checked() -> None:
    """A request that every candidate refuses for good has nothing to be judged."""

    async def scene() -> None:
        async with served(hang) as server, opened(configured(url=server.url)) as made:
            made.submit(answers=dict.fromkeys(ANSWERS))
            await asyncio.sleep(QUIET_S)
            assert (made.outcomes(), server.documents) == ({}, [])

    asyncio.run(scene())


LIES: dict[str, tuple[object, str]] = {
    "list": ([True], "answered no JSON object"),
    "no field": ({"verdicts": {}}, "answered no object"),
    "list of verdicts": ({"correct": ["adder"]}, "answered no object"),
    "other candidates": ({"correct": {**RIGHT, "oracle": True}}, "'oracle', which is none"),
    "unanswered": ({"correct": {**RIGHT, "poet": True}}, "'poet', which is none"),
    "too few": ({"correct": {"adder": True}}, "no verdict on 'speller'"),
    "numbers": ({"correct": {**RIGHT, "adder": 1}}, "neither true nor false"),
    "null": ({"correct": {**RIGHT, "adder": None}}, "neither true nor false"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_of_another_schema_labels_nothing(
    lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked once, and one warning says what is wrong; the next sample is labelled."""
    document, words = LIES[lie]

    async def scene() -> None:
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

    with caplog.at_level(logging.WARNING, checker.__name__):
        asyncio.run(scene())
    (warning,) = caplog.messages
    assert warning.startswith("applications.support.checker: the checker of support")
    assert words in warning


def test_a_checker_that_hangs_times_out_once_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A timeout is not tried again; after five minutes there is another warning."""

    async def scene() -> None:
        async with (
            served(hang) as server,
            opened(configured(url=server.url, timeout_s=0.2)) as made,
        ):
            for number in range(5):
                made.submit(f"d{number}")
            assert await made.ended(5) == {"upstream_timeout": 5}
            assert len(server.documents) == 5
            made.clock[0] = 301
            made.submit("d5")
            await made.ended(6)
            assert made.recorded == {}

    with caplog.at_level(logging.WARNING, checker.__name__):
        asyncio.run(scene())
    assert len(caplog.messages) == 2
    assert "did not answer in time" in caplog.messages[0]
    assert caplog.messages[1].endswith("since the last warning: 5")


def test_an_answer_that_trickles_times_out() -> None:
    """The limit is that of the whole check, not of its next byte."""

    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                await answer.write(b" ")
                await asyncio.sleep(0.01)
        return answer

    async def scene() -> None:
        async with (
            served(trickle) as server,
            opened(configured(url=server.url, timeout_s=0.1)) as made,
        ):
            made.submit()
            assert await made.ended() == {"upstream_timeout": 1}

    asyncio.run(scene())


def test_a_checker_that_fails_is_asked_three_times_at_most() -> None:
    """The third answer still counts; a refusal of the key is not tried again."""

    async def scene() -> None:
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

    asyncio.run(scene())


def test_a_checker_that_is_down_loses_labels_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing listens."""

    async def scene() -> None:
        async with opened(configured(url="http://127.0.0.1:9/check")) as made:
            made.submit()
            assert await made.ended() == {"upstream_unavailable": 1}

    with caplog.at_level(logging.WARNING, checker.__name__):
        asyncio.run(scene())
    assert "the checker of support cannot be reached" in caplog.text


def test_verdicts_that_cannot_be_stored_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk: the sample stays without a label."""

    async def scene() -> None:
        async with (
            served(says({"correct": RIGHT})) as server,
            opened(configured(url=server.url), fault=StoreFull("no room")) as made,
        ):
            made.submit()
            assert await made.ended() == {"not_recorded": 1}

    with caplog.at_level(logging.WARNING, checker.__name__):
        asyncio.run(scene())
    assert "the verdicts cannot be stored: no room" in caplog.text


def test_the_queue_is_bounded_in_number_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging checker holds a bounded number of requests; submitting never waits."""
    monkeypatch.setattr(checker, "MAX_WAITING", 8)
    monkeypatch.setattr(checker, "MAX_WAITING_BYTES", 5_000)

    async def scene() -> None:
        async with served(hang) as server, opened(configured(url=server.url, timeout_s=60)) as made:
            for number in range(10):
                made.submit(f"d{number}")
            assert made.outcomes() == {"dropped": 2}
            made.submit("large", "x" * 5_000)
            assert made.outcomes() == {"dropped": 3}
        assert made.outcomes() == {"dropped": 3, "stopped": 8}

    asyncio.run(scene())


def test_finishing_waits_for_what_is_under_way_within_its_limit() -> None:
    """A checker that hangs holds it no longer."""

    async def scene() -> None:
        async with served(says({"correct": RIGHT})) as server:
            async with opened(configured(url=server.url)) as made:
                for number in range(9):
                    made.submit(f"d{number}")
                await made.checkers.finish(20)
                assert made.outcomes() == {"ok": 9}
                server.answers = [hang]
                made.submit("d9")
                await made.checkers.finish(0.01)
            assert made.outcomes() == {"ok": 9, "stopped": 1}

    asyncio.run(scene())


def test_a_lost_check_is_made_again_once_at_a_time() -> None:
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

    async def scene() -> None:
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

    asyncio.run(scene())


def function(name: str) -> str:
    """A function of the tests' own."""
    return f"tests.kit.checkers:{name}"


def test_a_function_labels_like_a_url() -> None:
    """What it prints is no message, and its process serves the next sample, too."""

    async def scene() -> None:
        async with opened(configured(function=function("right"))) as made:
            for number in range(2):
                made.submit(f"d{number}")
                assert await made.ended(number + 1) == {"ok": number + 1}
            assert made.recorded["d1"] == RIGHT

    asyncio.run(scene())


FAULTS = {
    "hang": ("upstream_timeout", "did not answer within 8 s"),
    "raise": ("upstream_error", "raised ValueError at checkers.py:"),
    "exit": ("upstream_error", "raised SystemExit at"),
    "set": ("upstream_error", "returned a value that is no JSON"),
    "long": ("upstream_disconnected", "ended its process"),
    "list": ("upstream_invalid_response", "returned no dictionary"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_function_that_fails_loses_one_label(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No text of the request is logged, and the next sample is labelled."""
    outcome, words = FAULTS[fault]

    async def scene() -> None:
        timeout_s = 8 if fault == "hang" else 20  # the next call starts a process within it
        async with opened(configured(function=function("says"), timeout_s=timeout_s)) as made:
            made.submit(content=fault)
            assert await made.ended() == {outcome: 1}
            made.submit("d2")
            await made.ended(2)
            assert set(made.recorded) == {"d2"}

    with caplog.at_level(logging.WARNING, checker.__name__):
        asyncio.run(scene())
    (warning,) = caplog.messages
    assert words in warning
    assert "secret" not in warning


UNUSABLE = {
    "no.such_module:check": "cannot be imported: ModuleNotFoundError",
    function("missing"): "has no function `missing`",
    function("later"): "must be a plain function",
}


@pytest.mark.parametrize("place", UNUSABLE)
def test_a_function_that_cannot_be_used_stops_the_start(place: str) -> None:
    """With its name and the setting."""

    async def scene() -> None:
        with pytest.raises(SettingsError, match="checker of support") as caught:
            async with opened(configured(function=place)):
                pass
        assert UNUSABLE[place] in str(caught.value)
        assert "correct `applications.support.checker.function`" in str(caught.value)

    asyncio.run(scene())


def test_a_stopping_gateway_does_not_wait_for_a_function_that_hangs() -> None:
    """Its process is killed."""

    async def scene() -> float:
        async with opened(configured(function=function("says"), timeout_s=60)) as made:
            made.submit(content="hang")
            await asyncio.sleep(QUIET_S)
            started = time.monotonic()
        assert made.outcomes() == {"stopped": 1}
        return time.monotonic() - started

    assert asyncio.run(scene()) < 30  # half of its limit


def test_a_checker_needs_samples() -> None:
    """Without a rate it would never be called."""
    values = configured(url="http://host/check").model_dump(exclude_unset=True)
    values["watching"]["shadow_rate"] = 0.0
    with pytest.raises(ValueError, match=r"applications\.support\.checker: .* none are sampled"):
        Settings.model_validate(values)


@pytest.mark.parametrize(
    ("checked", "problem"),
    [
        ({}, "needs either `url` or `function`"),
        ({"url": "http://host/check", "function": "a.b:c"}, "needs either `url` or `function`"),
        ({"url": "file:///etc/passwd"}, "must be an http(s) URL"),
        ({"function": "a.b.c"}, "must match the pattern"),
        ({"url": "http://host/check", "timeout_s": 0}, "must be greater than 0"),
    ],
)
def test_a_checker_is_a_url_or_a_function(checked: dict[str, Any], problem: str) -> None:
    """A wrong one stops the start with its field."""
    text = json.dumps(
        {
            "schema_version": 1,
            "candidates": [{"name": "adder", "base_url": "http://127.0.0.1:9"}],
            "applications": {"support": {"checker": checked}},
        }
    )
    with pytest.raises(SettingsError) as caught:
        settings.parse(text, Path("racer.yaml"))
    assert "applications.support.checker" in str(caught.value)
    assert problem in str(caught.value)
