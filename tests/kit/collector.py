"""A collector of traces on a real socket; it can be told to hang."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.kit.waiting import wait_until

SERVER, CLIENT, INTERNAL = 2, 3, 1  # kinds
ERROR = 2


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span, as it arrived."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    status: int
    message: str
    events: int
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What arrived."""

    url: str
    bodies: list[bytes] = field(default_factory=list[bytes])
    paths: list[str] = field(default_factory=list[str])
    reached: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)  # answers, once it is set

    @property
    def spans(self) -> list[Span]:
        """Every span so far, in the order in which they ended."""
        requests = map(ExportTraceServiceRequest.FromString, list(self.bodies))
        return [
            _span(each)
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for each in scope.spans
        ]

    def named(self, name: str) -> list[Span]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]

    def calls(self) -> list[Span]:
        """The calls to candidates."""
        return [span for span in self.spans if span.kind == CLIENT]

    def routes(self, count: int) -> list[Span]:
        """Wait until ``count`` requests have ended and all of their spans have arrived."""
        wait_until(lambda: len(self.named("route")) >= count)
        assert len(self.named("route")) == count
        return self.named("route")


@contextmanager
def collector(*, hangs: bool = False) -> Generator[Collector]:
    """A collector on a free port. One that hangs takes a request and does not answer it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            here.reached.set()
            here.free.wait(60)
            here.paths.append(self.path)
            here.bodies.append(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # who sent it has left
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    here = Collector(f"http://127.0.0.1:{server.server_port}")
    if not hangs:
        here.free.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield here
    finally:
        here.free.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _span(span: Any) -> Span:
    return Span(
        name=span.name,
        kind=span.kind,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        status=span.status.code,
        message=span.status.message,
        events=len(span.events),
        attributes={each.key: _value(each.value) for each in span.attributes},
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
