"""Traces: one tree per request, without secrets; no request waits for a collector."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, http_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.attributes import http_attributes as stable_http_attributes
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags
from prometheus_client import CollectorRegistry, Counter

from app import settings
from app.errors import SettingsError
from app.routing.service import RoutingService
from app.telemetry import logs
from app.telemetry.otlp_tracer import QUEUE_SPANS, CountingSpanProcessor
from racer_core import __version__
from racer_core.errors import install_hint
from tests.kit.case import Shared
from tests.kit.collector import CLIENT, ERROR, INTERNAL, SERVER, Collector, Span, collector
from tests.kit.evaluators import WHOLE_POOL, judged
from tests.kit.gateway import (
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Command,
    Gateway,
    Serve,
    candidates,
    configure,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

CHAT = "/v1/chat/completions"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CANARY = "CANARY-7f3a91"


@pytest.fixture
def listening() -> Iterator[Collector]:
    """A collector that takes what it is sent."""
    with collector() as one:
        yield one


@pytest.fixture
def traced(serve: Serve, listening: Collector) -> Gateway:
    """A gateway that exports spans to it."""
    return serve(telemetry={"otlp_endpoint": listening.url})


def by_candidate(spans: list[Span]) -> dict[str, Span]:
    """Spans of calls by candidate."""
    return {span.attributes["racer.candidate"]: span for span in spans}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("question", [ONE, TWO], ids=["live", "merged"])
def test_a_request_is_one_trace(
    traced: Gateway, listening: Collector, question: str, stream: bool
) -> None:
    """The request, a call for each candidate with its tokens, and the vote, below the request."""
    response = traced.ask(question, {"explain": True}, stream=stream)  # so that all are waited for
    selected = ["adder"] if question is ONE else ["adder", "speller"]
    [route] = listening.routes(1)
    calls = by_candidate(listening.calls())
    aggregates = listening.named("aggregate")
    assert sorted(calls) == selected
    assert {each.trace for each in listening.spans} == {route.trace}
    assert (route.kind, route.parent) == (SERVER, "")
    assert {each.parent for each in (*calls.values(), *aggregates)} == {route.id}
    assert route.attributes == {
        "http.route": CHAT,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "racer.decision_id": response.headers["x-racer-decision-id"],
        "racer.alpha": 0.1,
        "racer.selected": selected,
        "racer.guarantee.holds": True,
        "racer.guarantee.reasons": [],
    }
    for call in calls.values():
        assert call.attributes["gen_ai.usage.output_tokens"] == 2
        assert call.attributes["racer.outcome"] == "ok"
    if question is TWO:
        assert [(each.kind, each.attributes) for each in aggregates] == [
            (INTERNAL, {"racer.answers": 2})
        ]


def test_a_call_is_told_in_the_words_of_the_genai_conventions(
    serve: Serve, pool: FakePool, listening: Collector
) -> None:
    """Model, tokens and server; of its address not the path."""
    gateway = serve(
        candidates=candidates(pool.url, adder={"model": "served-adder"}),
        telemetry={"otlp_endpoint": listening.url},
    )
    gateway.chat(ONE)
    listening.routes(1)
    [call] = listening.calls()
    assert call.name == "chat served-adder"
    assert call.kind == CLIENT
    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "served-adder",
        "gen_ai.response.model": "served-adder at its server",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 2,
        "racer.candidate": "adder",
        "racer.outcome": "ok",
        "server.address": "127.0.0.1",
        "server.port": int(pool.url.split(":")[-1].split("/")[0]),
    }


def test_other_ways_of_asking_are_traced(traced: Gateway, listening: Collector) -> None:
    """A decision alone, an abstention, a named candidate, a text completion, embeddings."""
    decision = traced.route(TWO)
    traced.chat(UNANSWERABLE)
    traced.chat(ONE, model="poet")
    traced.post("/v1/completions", json={"model": "auto", "prompt": ONE})
    traced.post("/v1/embeddings", json={"model": "adder", "input": ONE})
    traced.get("/v1/models")
    decided, abstained, named, completed, embedded = listening.routes(5)
    assert decided.attributes["racer.decision_id"] == decision["decision_id"]
    assert abstained.attributes["racer.selected"] == []
    assert "racer.decision_id" not in named.attributes
    assert completed.attributes["racer.guarantee.holds"] is False
    assert completed.attributes["racer.guarantee.reasons"] == ["conditions_differ:endpoint"]
    operations = {
        call.parent: call.attributes["gen_ai.operation.name"] for call in listening.calls()
    }
    assert operations == {
        named.id: "chat",
        completed.id: "text_completion",
        embedded.id: "embeddings",
    }


@pytest.mark.parametrize(("bug", "kind"), [(True, "RuntimeError"), (False, "502")])
def test_a_failure_is_told_by_its_kind(
    traced: Gateway,
    pool: FakePool,
    listening: Collector,
    monkeypatch: pytest.MonkeyPatch,
    bug: bool,
    kind: str,
) -> None:
    """A bug, or no candidate that answers; a text of an error may hold a prompt."""

    async def broken(*_: object) -> None:
        raise RuntimeError(CANARY)

    if bug:
        monkeypatch.setattr(RoutingService, "route", broken)
    for name in ("adder", "speller", "poet"):
        pool.fail(name, "500")
    assert traced.ask(ONE).status_code == (500 if bug else 502)
    [route] = listening.routes(1)
    assert (route.attributes["error.type"], route.status) == (kind, ERROR)
    assert {(each.message, each.events) for each in listening.spans} == {("", 0)}
    assert CANARY not in str(listening.bodies)


def test_a_call_that_the_vote_did_not_need_is_no_error(
    traced: Gateway, pool: FakePool, listening: Collector
) -> None:
    """It was cancelled, and says so."""
    pool.say("poet", "7", delay_s=30)
    traced.chat(ONE, {"alpha": 0.001})
    listening.routes(1)
    calls = by_candidate(listening.calls())
    assert calls["poet"].attributes["racer.outcome"] == "cancelled"
    assert calls["poet"].status != ERROR
    assert calls["adder"].attributes["racer.outcome"] == "ok"


@pytest.mark.parametrize(
    "given",
    [
        [f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01"],
        [f"00-{TRACE}-{PARENT}"],
        ["x" * 600],
        [f"00-{'0' * 32}-{PARENT}-01"],
    ],
    ids=["two", "short", "long", "zero"],
)
def test_a_broken_parent_is_none(traced: Gateway, listening: Collector, given: list[str]) -> None:
    """The request is answered, as a trace of its own; without a key nothing is traced."""
    headers = [("traceparent", each) for each in given]
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert traced.post("/route", None, json={"query": ONE}, headers=parent).status_code == 401
    response = traced.post("/route", json={"query": ONE}, headers=headers)
    assert response.status_code == 200
    [route] = listening.routes(1)
    assert route.parent == ""
    assert route.trace != TRACE


def test_the_log_names_the_trace(
    traced: Gateway, listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of the request, and that of the access log after the span has ended."""
    stream = io.StringIO()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with logs.logging_to(stream, "json"):
        traced.post("/route", json={"query": ONE}, headers=headers)
        traced.get("/v1/models")

        async def broken(*_: object) -> None:
            raise RuntimeError

        monkeypatch.setattr(RoutingService, "route", broken)
        traced.post("/route", json={"query": ONE})
        wait_until(lambda: stream.getvalue().count('"app.access"') == 3)
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    routed, listed, failed = [each for each in written if each["logger"] == "app.access"]
    assert routed["trace_id"] == TRACE
    assert "trace_id" not in listed, "it is not traced"
    [bug] = [each for each in written if "exception" in each]
    _, route = listening.routes(2)
    assert bug["trace_id"] == failed["trace_id"] == route.trace != TRACE


@pytest.mark.parametrize("wanted", [False, True])
def test_prompts_are_traced_only_if_asked_for(
    serve: Serve, pool: FakePool, listening: Collector, wanted: bool
) -> None:
    """The setting is the log's."""
    gateway = serve(telemetry={"otlp_endpoint": listening.url, "log_prompts": wanted})
    pool.say("adder", f"42 {CANARY}")
    gateway.chat(f"{ONE} {CANARY}")
    [route] = listening.routes(1)
    prompt, answer = (f"{ONE} {CANARY}", f"42 {CANARY}") if wanted else (None, None)
    assert route.attributes.get("racer.prompt") == prompt
    assert route.attributes.get("racer.answer") == answer
    assert (CANARY.encode() in b"".join(listening.bodies)) is wanted


class Exporter(SpanExporter):
    """Keeps a batch until it is let go; then it takes it, raises, or says that it failed."""

    def __init__(self, *ends: Any) -> None:
        self.reached = threading.Event()
        self.free = threading.Event()
        self.batches = self.sent = 0
        self._ends = iter(ends)

    def export(self, spans: Any) -> SpanExportResult:
        """Wait, then end as it should."""
        self.reached.set()
        self.free.wait(30)
        self.batches += 1
        match next(self._ends, SpanExportResult.SUCCESS):
            case Exception() as exc:
                raise exc
            case SpanExportResult.SUCCESS:
                self.sent += len(spans)
                return SpanExportResult.SUCCESS
            case end:
                return end


FLAGS = TraceFlags(TraceFlags.SAMPLED)
SAMPLED = ReadableSpan("one", SpanContext(1, 1, is_remote=False, trace_flags=FLAGS))


def processing(exporter: Exporter) -> tuple[CountingSpanProcessor, Callable[[], float]]:
    """A processor before an exporter, and how many spans it has lost."""
    dropped = Counter("dropped", "Dropped", registry=CollectorRegistry())
    processor = CountingSpanProcessor(exporter, dropped)
    return processor, lambda: next(iter(dropped.collect())).samples[0].value


def test_the_queue_is_bounded() -> None:
    """What finds no room is dropped and counted; what found some is sent in the end."""
    exporter = Exporter()
    processor, lost = processing(exporter)
    processor.on_end(SAMPLED)
    assert exporter.reached.wait(30)
    for _ in range(QUEUE_SPANS + 7):
        processor.on_end(SAMPLED)
    exporter.free.set()
    processor.shutdown()
    assert (exporter.sent, lost()) == (QUEUE_SPANS + 1, 7)


def test_spans_of_a_failed_export_are_counted() -> None:
    """An exporter that raises loses its batch, and the next one is still exported."""
    exporter = Exporter(ConnectionError(), SpanExportResult.FAILURE)
    exporter.free.set()
    processor, lost = processing(exporter)
    for batch in (1, 2):
        processor.on_end(SAMPLED)
        wait_until(lambda batch=batch: exporter.batches == batch)
    processor.shutdown()
    assert lost() == 2


def test_the_shutdown_does_not_wait_for_a_dead_exporter() -> None:
    """What could not be sent is lost."""
    exporter = Exporter()
    processor, _ = processing(exporter)
    processor.on_end(SAMPLED)
    processor.shutdown()
    assert exporter.batches == 0
    exporter.free.set()


@pytest.mark.parametrize("hangs", [False, True], ids=["down", "hanging"])
def test_no_request_waits_for_a_collector(shared: Shared, hangs: bool) -> None:
    """It is down, which counts lost spans, or takes a batch and never answers."""
    with collector(hangs=hangs) as one:
        url = one.url if hangs else NOWHERE
        gateway = shared(telemetry={"otlp_endpoint": url}).gateway
        gateway.chat(ONE)
        if hangs:
            assert one.reached.wait(30)
        else:
            wait_until(lambda: "racer_spans_dropped_total 0.0" not in gateway.get("/metrics").text)
        for _ in range(5):
            gateway.chat(ONE)
        assert one.bodies == []


def test_without_a_collector_opentelemetry_is_not_even_loaded() -> None:
    """Neither by the gateway's modules, nor by opening the tracer."""
    program = """
import asyncio, sys
from prometheus_client import CollectorRegistry, Counter
import app.cli.serve, app.server
from app.settings.telemetry import TelemetrySettings
from app.telemetry.tracing import open_tracer

async def main():
    dropped = Counter("dropped", "Dropped", registry=CollectorRegistry())
    async with open_tracer(TelemetrySettings(), dropped) as tracer:
        assert tracer is None

asyncio.run(main())
ours = {"app.telemetry.otlp_tracer", "app.telemetry.otlp_tracer"}
print([m for m in sys.modules if m in ours or m.startswith(
    ("opentelemetry.sdk", "opentelemetry.exporter"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("by_variable", [False, True])
def test_without_the_package_the_start_says_what_to_install(
    racer: Command,
    tmp_path: Path,
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by_variable: bool,
) -> None:
    """Exit code 2, before anything slow is loaded, and what names the collector."""
    for name in ("app.telemetry.otlp_tracer", "app.telemetry.otlp_tracer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    url = "http://c:4318"
    telemetry = {} if by_variable else {"otlp_endpoint": url}
    path = configure(tmp_path, artifact, "http://127.0.0.1:9/v1", telemetry=telemetry)
    if by_variable:
        monkeypatch.setenv(ENDPOINT, url)
    monkeypatch.setenv("RACER_DATA_KEY", DATA_KEY)
    code, _, stderr = racer("serve", "--config", path)
    assert code == 2
    assert install_hint("otel") in stderr
    assert (f"${ENDPOINT}" if by_variable else "telemetry.otlp_endpoint") in stderr


NOWHERE = "http://127.0.0.1:9"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HERE = {ENDPOINT: "{url}"}
USUAL, GRPC = "/v1/traces", "OTEL_EXPORTER_OTLP_PROTOCOL"
OWN_GRPC = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


@pytest.mark.parametrize(
    ("variables", "is_configured", "path"),
    [
        (HERE, False, USUAL),
        ({ENDPOINT: NOWHERE, TRACES: "{url}/own/traces"}, False, "/own/traces"),
        ({TRACES: NOWHERE}, True, USUAL),
        ({GRPC: "grpc"}, True, USUAL),
        ({**HERE, "OTEL_SDK_DISABLED": "false"}, False, USUAL),
        ({**HERE, "OTEL_TRACES_EXPORTER": "otlp"}, False, USUAL),
        ({}, False, None),
        ({**HERE, "OTEL_SDK_DISABLED": "true"}, False, None),
        ({"OTEL_SDK_DISABLED": "true"}, True, None),
        ({**HERE, "OTEL_TRACES_EXPORTER": "none"}, False, None),
        ({"OTEL_TRACES_EXPORTER": "none"}, True, None),
        ({**HERE, GRPC: "grpc"}, False, None),
        ({**HERE, OWN_GRPC: "grpc"}, False, None),
    ],
    ids=str,
)
def test_the_environment_names_a_collector(
    serve: Serve,
    pool: FakePool,
    listening: Collector,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    is_configured: bool,
    path: str | None,
) -> None:
    """Or turns traces off; a configured one goes first. Without, no log and no candidate knows."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(url=listening.url))
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        gateway = serve(telemetry={"otlp_endpoint": listening.url} if is_configured else {})
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        gateway.post(CHAT, json={"model": "auto", "messages": user(ONE)}, headers=headers)
        wait_until(lambda: '"request_id"' in stream.getvalue())
    if path is not None:
        assert len(listening.routes(1)) == 1
        assert set(listening.paths) == {path}
        return
    assert "traceparent" not in pool.headers[0]
    assert "trace_id" not in stream.getvalue()
    assert listening.spans == []
    warnings = [line for line in stream.getvalue().splitlines() if "no traces" in line]
    assert len(warnings) == ("grpc" in variables.values())
    for line in warnings:
        assert json.loads(line)["level"] == "warning"
        assert all(word in line for word in (f"${list(variables)[-1]} is grpc", ENDPOINT, "4318"))


@pytest.mark.parametrize("url", ["collector:4317", "http://", f"http://me:{CANARY}@c:4318"])
def test_a_collectors_url_is_a_plain_one(tmp_path: Path, artifact: Path, url: str) -> None:
    """A key for it stands in the environment, where OpenTelemetry looks for it."""
    path = configure(tmp_path, artifact, "http://127.0.0.1:9/v1", telemetry={"otlp_endpoint": url})
    with pytest.raises(SettingsError, match="otlp_endpoint") as caught:
        settings.load(path, ENVIRONMENT)
    assert CANARY not in str(caught.value)


# The tree, as the SDK's own exporter gets it ------------------------------------------------------


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


TELEMETRY = {"otlp_endpoint": "http://127.0.0.1:9"}


CONVENTIONS = (
    gen_ai_attributes, http_attributes, stable_http_attributes, error_attributes, server_attributes,
)  # fmt: skip


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where every gateway of the test sends its spans."""
    kept = InMemorySpanExporter()
    monkeypatch.setattr("app.telemetry.otlp_tracer.OTLPSpanExporter", lambda *_, **__: kept)
    return kept


def finished(memory: InMemorySpanExporter, routes: int = 1) -> Sequence[ReadableSpan]:
    """All spans of requests, once ``count`` have ended; children end before their parents.

    An evaluator is asked when a gateway starts, too: those calls are of no request.
    """
    wait_until(lambda: len(named(memory.get_finished_spans(), "route")) >= routes)
    spans = memory.get_finished_spans()
    requests = {_trace(span) for span in named(spans, "route")}
    return [span for span in spans if _trace(span) in requests]


def _trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    """Those whose name begins so."""
    return [span for span in spans if span.name.split()[0] == name]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """What a span says."""
    return dict(span.attributes or {})


def under(spans: Sequence[ReadableSpan], parent: ReadableSpan) -> list[str]:
    """The names of a span's children, sorted."""
    assert parent.context is not None
    return sorted(
        span.name
        for span in spans
        if span.parent is not None and span.parent.span_id == parent.context.span_id
    )


def test_calls_are_below_the_request_and_an_evaluators_below_the_vote(
    serve: Serve, pool: FakePool, memory: InMemorySpanExporter
) -> None:
    """One tree of a request of which one candidate fails, and whose answers an evaluator weighs."""
    gateway = serve(telemetry=TELEMETRY, aggregation=judged(pool.url))
    pool.say("adder", f"7 {CANARY}")
    pool.say("speller", f"seven {CANARY}")
    pool.fail("poet", "500")
    body = {"model": "auto", "messages": user(f"{TWO} {CANARY}"), "racer": WHOLE_POOL}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert gateway.post(CHAT, json=body, headers=headers).status_code == 200
    spans = finished(memory)
    [route], [aggregate] = named(spans, "route"), named(spans, "aggregate")
    assert under(spans, route) == [
        "aggregate",
        *(f"chat {name}" for name in sorted([*POOL, "poet"])),
    ]
    assert under(spans, aggregate) == ["text_completion judge"] * 2
    assert len(spans) == 1 + 5 + 2
    assert {_trace(span) for span in spans} == {int(TRACE, 16)}
    assert route.parent is not None
    assert route.parent.span_id == int(PARENT, 16)
    kinds = {span.name.split()[0]: span.kind for span in spans}
    assert kinds == {
        "route": SpanKind.SERVER,
        "aggregate": SpanKind.INTERNAL,
        "chat": SpanKind.CLIENT,
        "text_completion": SpanKind.CLIENT,
    }
    # Only what failed is an error; a call that was made again is two spans.
    failed = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    assert [span.name for span in failed] == ["chat poet"] * 2
    assert {attributes(span)["error.type"] for span in failed} == {"upstream_error"}
    assert [attributes(span).get("http.request.resend_count") for span in failed] == [None, 1]
    assert {span.status.description for span in spans} == {None}
    assert "error.type" not in attributes(route)
    # What candidates and the evaluator trace themselves hangs below the call to them.
    calls = [*named(spans, "chat"), *named(spans, "text_completion")]
    ids = [f"00-{TRACE}-{span.context.span_id:016x}-01" for span in calls if span.context]
    parents = [each["traceparent"] for each in pool.headers]
    assert sorted(each for each in parents if TRACE in each) == sorted(ids)
    # Names that are not ours are those of the conventions, and no text is in any span.
    known = {
        value for module in CONVENTIONS for value in vars(module).values() if isinstance(value, str)
    }
    names = {name for span in spans for name in attributes(span)}
    assert {name for name in names if not name.startswith("racer.")} <= known
    for span in spans:
        assert CANARY not in span.to_json()
        assert TWO not in span.to_json()
        assert not span.events


def test_the_environment_names_the_service_and_where_it_runs(
    serve: Serve, memory: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other attributes of the resource stay the gateway's."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=gateway-1,service.name=ignored")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "router")
    serve(telemetry=TELEMETRY).chat(ONE)
    [route] = named(finished(memory), "route")
    found = route.resource.attributes
    assert (found["service.name"], found["k8s.pod.name"]) == ("router", "gateway-1")
    assert found["service.version"] == __version__


@pytest.mark.parametrize(
    ("sampler", "argument", "parent", "sampled"),
    [
        (None, None, "00", True),
        ("always_off", None, None, False),
        ("traceidratio", "0", None, False),
        ("traceidratio", "1", "00", True),
        ("parentbased_always_off", None, "01", True),
        ("parentbased_always_on", None, "00", False),
    ],
)
def test_the_environment_chooses_which_requests_are_traced(
    serve: Serve,
    pool: FakePool,
    memory: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str | None,
    argument: str | None,
    parent: str | None,
    sampled: bool,
) -> None:
    """Clients count only where a sampler says so; candidates learn what was decided."""
    for name, value in (("", sampler), ("_ARG", argument)):
        if value is not None:
            monkeypatch.setenv(f"OTEL_TRACES_SAMPLER{name}", value)
    gateway = serve(telemetry=TELEMETRY)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-{parent}"} if parent else {}
    headers["tracestate"] = f"a={CANARY}"
    body = {"model": "auto", "messages": user(ONE)}
    assert gateway.post(CHAT, json=body, headers=headers).status_code == 200
    told = {int(each["traceparent"][-2:], 16) & TraceFlags.SAMPLED for each in pool.headers}
    assert told == {int(sampled)}
    assert not [each for each in pool.headers if "tracestate" in each]
    if sampled:
        finished(memory)
    else:
        assert named(memory.get_finished_spans(), "route") == []
