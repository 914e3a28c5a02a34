"""Access log: one line per request, without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import threading
import time
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from app.http.request_log import RequestLog
from app.routing.service import RoutingService
from app.services import Drain
from app.telemetry import logs
from app.telemetry.metrics import Metrics
from tests.kit.case import Shared
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ONE, TWO, UNANSWERABLE, Gateway, user
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

CANARY = "CANARY-7f3a91"
log = logging.getLogger("app.tests")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Every line as JSON: a forged or broken one fails here."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def accesses(stream: io.StringIO) -> list[dict[str, Any]]:
    """The lines of requests."""
    return [line for line in lines(stream) if line["logger"] == "app.access"]


def written(stream: io.StringIO, requests: int) -> None:
    """Wait for the lines of all requests: each is written after its answer."""
    wait_until(lambda: stream.getvalue().count('"app.access"') >= requests)


def test_a_request_is_one_line(gateway: Gateway) -> None:
    """Time, route template, status, duration, key name, decision: enough to find it again."""
    stream = io.StringIO()
    with logs.logging_to(stream, "json"), gateway.http() as client:
        response = client.post("/route", json={"query": ONE}, headers={"x-request-id": "mine-1"})
        client.get("/v1/models/adder")
        client.get("/calibrations", headers={"authorization": f"Bearer {ADMIN_KEY}"})
        client.get("/v1/models", headers={"authorization": "Bearer wrong"})
        client.get("/nothing/here")
        written(stream, 5)
    routed, *others = accesses(stream)
    assert routed["request_id"] == "mine-1"
    assert routed["decision_id"] == response.json()["decision_id"]
    assert routed["selected"] == response.headers["x-racer-selected"]
    assert routed["level"] == "info"
    assert routed["time"].endswith("+00:00")
    assert 0 < routed["duration_ms"] < 30_000
    logged = [(each["method"], each["route"], each["status"], each["key"]) for each in others]
    assert logged == [
        ("GET", "/v1/models/{model_id:path}", 200, "data"),
        ("GET", "/calibrations", 200, "admin"),
        ("GET", "/v1/models", 401, None),
        ("GET", "unmatched", 404, None),
    ]


def test_nothing_that_was_sent_is_written(
    gateway: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the prompt, the answer, the path, a header, a key, nor the text of our own bug."""
    stream = io.StringIO()
    pool.say("adder", CANARY)
    with logs.logging_to(stream, "json"), gateway.http() as client:
        body = {"model": "auto", "messages": user(f"{ONE} {CANARY}")}
        headers = {"x-custom": CANARY, "x-request-id": f"{CANARY} forged"}
        assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        client.post(f"/{CANARY}%0a%1b[31m", json=body, params={"key": CANARY})
        client.get("/v1/models", headers={"authorization": f"Bearer {CANARY}"})

        async def broken(*_: object) -> None:
            raise RuntimeError(CANARY)

        monkeypatch.setattr(RoutingService, "route", broken)
        assert client.post("/v1/chat/completions", json=body).status_code == 500
        written(stream, 4)
    failures = [line for line in lines(stream) if "exception" in line]
    assert [line["exception"] for line in failures] == ["RuntimeError"]
    assert any(frame.startswith("app/answering/service.py:") for frame in failures[0]["frames"])
    assert failures[0]["request_id"] == accesses(stream)[-1]["request_id"]
    assert len(accesses(stream)) == 4
    for secret in (CANARY, DATA_KEY, ADMIN_KEY):
        assert secret not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_value_forges_a_line(form: Any) -> None:
    """Line ends and escape sequences stay inside the value that brought them."""
    stream = io.StringIO()
    with logs.logging_to(stream, form):
        log.info("one %s", "a\nb\r\x1b[31m\u2028", extra={"fields": {"selected": "c\nd\x1b"}})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    assert "c\\nd" in text


class Unreadable:
    """What cannot be put into a line."""

    def __str__(self) -> str:
        raise RuntimeError(CANARY)


class BlockedTerminal(io.StringIO):
    """A terminal that blocks writes until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        """Wait, then write."""
        self.reached.set()
        self.free.wait(30)
        return super().write(text)


class Records(logging.Handler):
    """A handler of the operator's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.seen.append(record)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler but the log's own, as in a gateway, and no gateway of another test that logs."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest has some
    monkeypatch.setattr(logging.getLogger("app.http.refusals"), "disabled", True)


FIELDS: list[dict[str, Any]] = [
    {"method": "POST", "status": 200, "duration_ms": 0.125, "key": None},
    {"selected": "a\nb\r\x1b[31m\u2028\xe9\U0001f600\ud800", "big": 2**70, "other": log},
    {"level": "forged", "request_id": "forged"},
    {},
]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("fields", FIELDS, ids=["plain", "unusual", "forged", "none"])
def test_a_line_without_a_record_is_the_line_of_a_record(
    form: Any, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a request and outside, letter by letter."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_764_000_000_000_900_000)
    written: list[str] = []
    for as_record in (True, False):
        stream = io.StringIO()
        with logs.logging_to(stream, form):
            for where in (logs.request_context("mine-1"), contextlib.nullcontext()):
                with where:
                    if as_record:
                        log.info("a message", extra={"fields": fields})
                    else:
                        logs.info(log, "a message", dict(fields))
        written.append(stream.getvalue())
    assert written[0] == written[1]
    assert written[0].count("\n") == 2


@pytest.mark.usefixtures("alone")
def test_other_handlers_and_filters_get_the_record_of_a_line() -> None:
    """As with `Logger.info`, with its fields; the log has the line once."""
    stream, records = io.StringIO(), Records()
    with logs.logging_to(stream, "json"):
        for logger in (log, logging.getLogger()):
            logger.addHandler(records)
            logs.info(log, "heard", {"status": 200})
            logger.removeHandler(records)

        def kept(record: logging.LogRecord) -> bool:
            return record.__dict__["fields"]["status"] != 200

        log.addFilter(kept)
        logs.info(log, "filtered", {"status": 200})
        logs.info(log, "kept", {"status": 500})
        log.removeFilter(kept)
    assert [each.getMessage() for each in records.seen] == ["heard", "heard"]
    assert [each.__dict__["fields"] for each in records.seen] == [{"status": 200}] * 2
    assert [line["message"] for line in lines(stream)] == ["heard", "heard", "kept"]


@pytest.mark.usefixtures("alone")
def test_a_line_without_a_record_obeys_levels_and_propagation() -> None:
    """Of the logger, of all loggers, and of a logger that passes nothing on."""
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        log.setLevel(logging.WARNING)
        logs.info(log, "below the logger's level", {})
        log.setLevel(logging.NOTSET)
        logging.disable(logging.INFO)
        logs.info(log, "disabled", {})
        logging.disable(logging.NOTSET)
        log.propagate = False
        logs.info(log, "kept back", {})
        log.propagate = True
        logs.info(log, "written", {})
    assert [line["message"] for line in lines(stream)] == ["written"]


def test_other_libraries_say_their_first_line_only() -> None:
    """With asyncio the second one holds the text of a lost exception."""
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        logging.getLogger("asyncio").error("lost\nfuture: RuntimeError(%r)", CANARY)
    assert [line["message"] for line in lines(stream)] == ["lost"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("%d of them", (CANARY,)),
        ("two %s %s", (CANARY,)),
        ("%s", (Unreadable(),)),
        ("line", {"broken": Unreadable()}),
    ],
    ids=["type", "number", "broken", "field"],
)
def test_a_line_that_cannot_be_made_fails_no_request(
    message: str, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller goes on; one line names the logger whose line is missing, without its content."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own would raise
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        if isinstance(given, dict):
            logs.info(log, message, given)
        else:
            log.warning(message, *given)
        log.info("goes on")
    lost, after = lines(stream)
    assert (lost["level"], lost["logger"]) == ("warning", "app.telemetry.logs")
    assert lost["message"].startswith("a line of app.tests could not be made: ")
    assert after["message"] == "goes on"
    assert CANARY not in stream.getvalue()


@pytest.mark.usefixtures("alone")
def test_a_blocked_sink_blocks_no_request() -> None:
    """Lines beyond the queue's size are dropped, and one line reports their number."""
    stream = BlockedTerminal()
    with logs.logging_to(stream, "json"):
        log.info("line")
        assert stream.reached.wait(30)
        for _ in range(5_001):
            logs.info(log, "line", {})
            log.info("line")
        logs.info(log, "line", {"broken": Unreadable()})
        stream.free.set()
    messages = [line["message"] for line in lines(stream)]
    assert messages == ["line"] * 10_001 + ["3 lines were dropped"]


def test_a_terminal_that_is_gone_does_not_end_the_log() -> None:
    """Who closes the pipe misses lines; later ones are written again."""
    gone = threading.Event()

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            if not gone.is_set():
                gone.set()
                raise BrokenPipeError
            return super().write(text)

    stream = Gone()
    with logs.logging_to(stream, "json"):
        log.info("lost")
        assert gone.wait(30)
        log.info("written")
    assert [line["message"] for line in lines(stream)] == ["written"]


def answer_headers(
    middleware: Any, headers: list[tuple[bytes, bytes]], **state: str
) -> dict[bytes, bytes]:
    """The headers of a response with these headers, after the middleware sent it."""

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"].update(state)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(middleware(handler)(scope, receive, send))
    return dict(sent[0]["headers"])


def request_log() -> Any:
    """`RequestLog`, the first middleware, as the application adds it."""
    return lambda app: RequestLog(app, metrics=Metrics(), drain=Drain(), log_prompts=False)


def test_no_text_breaks_out_of_a_header_of_ours() -> None:
    """The last net: a name from elsewhere can end neither the value nor the message."""
    out = answer_headers(
        request_log(),
        [
            (b"x-racer-selected", b"a,b-1.0/c@d+e_f"),
            (b"x-racer-guarantee", b"void; x\r\nset-cookie: a=b\0\xe9"),
            (b"x-racer-reasons", b"r" * 5_000),
            (b"content-type", b"text/html; q=\xe9"),
        ],
    )
    assert out[b"x-racer-selected"] == b"a,b-1.0/c@d+e_f"
    assert out[b"x-racer-guarantee"] == b"void; x__set-cookie: a=b__"
    assert len(out[b"x-racer-reasons"]) == 1024
    assert out[b"content-type"] == b"text/html; q=\xe9"


# Prompts ----------------------------------------------------------------------------------------

CHAT = "/v1/chat/completions"
AUTO = {"model": "auto", "messages": user(ONE)}
NOT_ROUTED = {"model": "poet", "messages": [{"role": "assistant", "content": "I speak."}]}


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "prompt", "answer"),
    [
        (CHAT, AUTO | {"messages": user(TWO)}, TWO, "7"),
        (CHAT, AUTO | {"messages": user(UNANSWERABLE)}, UNANSWERABLE, "No model of the pool"),
        (CHAT, AUTO | {"model": "poet"}, ONE, "7"),
        (CHAT, NOT_ROUTED, None, "7"),
        (CHAT, AUTO | {"stream": True}, ONE, None),
        ("/v1/completions", {"model": "auto", "prompt": ONE}, ONE, "7"),
        ("/v1/responses", {"model": "auto", "input": ONE}, ONE, "7"),
        ("/route", {"query": ONE}, ONE, None),
        ("/route", {"query": ONE, "execute": True}, ONE, "7"),
        ("/route", {"query": f"{ONE} {'9' * 200}"}, f"{ONE} {'9' * 200}"[:100], None),
        (CHAT, AUTO | {"model": "adder"}, ONE, "8" * 100),
    ],
)
def test_prompts_are_logged_only_if_enabled(
    shared: Shared,
    pool: FakePool,
    path: str,
    body: dict[str, Any],
    prompt: str | None,
    answer: str | None,
    wanted: bool,
) -> None:
    """What the router reads and what is answered, cut; streams and decisions have no answer."""
    gateway = shared(telemetry={"log_prompts": wanted}, limits={"query_chars": 100}).gateway
    for name in ("adder", "speller", "poet"):
        pool.say(name, "8" * 1_000 if body.get("model") == name == "adder" else "7")
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        sent = gateway.post(path, json=body, headers={"x-request-id": "this-one"})
        assert sent.status_code == 200
        wait_until(lambda: '"this-one"' in stream.getvalue())
    [line] = [each for each in accesses(stream) if each["request_id"] == "this-one"]
    assert line.get("prompt") == (prompt if wanted else None)
    assert line.get("answer", "")[:100].startswith(answer or "") if wanted else "answer" not in line
    assert ("answer" in line) is (wanted and answer is not None)
    assert ("decision_id" in line) is (body.get("model", "auto") == "auto")
