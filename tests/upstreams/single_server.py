"""One OpenAI-compatible server: a list of models, a key, a clock, answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeServer:
    """What it says; change it while it runs."""

    models: list[Any] = field(default_factory=list)
    key: str | None = None  # that it wants
    ahead_s: float | None = 0.0  # its clock; None: it tells no time
    status: int = 200  # of its list
    body: bytes | None = None  # instead of its list
    answer: Callable[[str], str] = lambda _: "42"
    url: str = ""
    seen: list[str] = field(default_factory=list)  # methods and paths, in order

    @property
    def listing(self) -> bytes:
        """The body of GET /v1/models."""
        if self.body is not None:
            return self.body
        return json.dumps({"object": "list", "data": [{"id": m} for m in self.models]}).encode()


@contextmanager
def served(*models: str, **fields: Any) -> Iterator[FakeServer]:
    """One server on a free port."""
    fake = FakeServer(models=list(models), **fields)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.seen.append(f"GET {self.path}")
            if fake.key is not None and self.headers["authorization"] != f"Bearer {fake.key}":
                self._say(401, b"{}")
            elif self.path == "/v1/models":
                self._say(fake.status, fake.listing)
            else:
                self._say(404, b"{}")

        def do_POST(self) -> None:
            fake.seen.append(f"POST {self.path}")
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = fake.answer(body["messages"][-1]["content"])
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "usage": usage}
            answer |= {"model": body["model"], "choices": [choice]}
            self._say(200, json.dumps(answer).encode())

        def _say(self, status: int, body: bytes) -> None:
            self.send_response_only(status)
            if fake.ahead_s is not None:
                self.send_header("date", formatdate(time.time() + fake.ahead_s, usegmt=True))
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
