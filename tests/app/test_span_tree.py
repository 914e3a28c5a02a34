"""The tree of spans, as the SDK's own exporter gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, http_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.attributes import http_attributes as stable_http_attributes
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from racer_core import __version__
from tests.kit.evaluators import WHOLE_POOL, judged
from tests.kit.gateway import ONE, POOL, TWO, Serve, user
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CANARY = "CANARY-51c2e0"
# A collector's address is configured, and nothing is sent there.
TELEMETRY = {"otlp_endpoint": "http://127.0.0.1:9"}
CONVENTIONS = (
    gen_ai_attributes, http_attributes, stable_http_attributes, error_attributes, server_attributes,
)  # fmt: skip


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where every gateway of the test sends its spans."""
    memory = InMemorySpanExporter()
    monkeypatch.setattr("app.telemetry.otlp_tracer.OTLPSpanExporter", lambda *_, **__: memory)
    return memory


def finished(exporter: InMemorySpanExporter, routes: int = 1) -> Sequence[ReadableSpan]:
    """All spans of requests, once ``count`` have ended; children end before their parents.

    An evaluator is asked when a gateway starts, too: those calls are of no request.
    """
    wait_until(lambda: len(named(exporter.get_finished_spans(), "route")) >= routes)
    spans = exporter.get_finished_spans()
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
    serve: Serve, pool: FakePool, exporter: InMemorySpanExporter
) -> None:
    """One tree of a request of which one candidate fails, and whose answers an evaluator weighs."""
    gateway = serve(telemetry=TELEMETRY, aggregation=judged(pool.url))
    pool.say("adder", f"7 {CANARY}")
    pool.say("speller", f"seven {CANARY}")
    pool.fail("poet", "500")
    body = {"model": "auto", "messages": user(f"{TWO} {CANARY}"), "racer": WHOLE_POOL}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert gateway.post(CHAT, json=body, headers=headers).status_code == 200
    spans = finished(exporter)
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
    serve: Serve, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other attributes of the resource stay the gateway's."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=gateway-1,service.name=ignored")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "router")
    serve(telemetry=TELEMETRY).chat(ONE)
    [route] = named(finished(exporter), "route")
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
    exporter: InMemorySpanExporter,
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
        finished(exporter)
    else:
        assert named(exporter.get_finished_spans(), "route") == []
