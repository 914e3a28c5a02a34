"""A request-level balancer: each request goes to the next gateway, whatever it is about."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

_OWN = ("host", "connection", "transfer-encoding", "content-length", "content-encoding")


@contextmanager
def balancer(urls: Sequence[str], seen: list[tuple[str, str, int]]) -> Generator[str]:
    """The URL of a balancer.

    Args:
        urls: The gateways; the list may change meanwhile.
        seen: Takes method, path and status of each response.
    """
    turns = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = [(k, v) for k, v in self.headers.items() if k.lower() not in _OWN]
            url = urls[next(turns) % len(urls)] + self.path
            answer = client.request(self.command, url, content=body, headers=headers)
            seen.append((self.command, self.path, answer.status_code))
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_DELETE = _forward

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    with httpx2.Client(timeout=60, verify=False, trust_env=False) as client:
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
