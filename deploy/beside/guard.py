"""Example of a guardrail in front of RACER: refuses requests that hold a card number.

    python deploy/beside/guard.py 9000

Envoy asks it before each request (`ext_authz`, see `envoy.yaml`) with the request's body. Status
200 lets the request pass; any other status and body go to the client in the place of an answer.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CARD = re.compile(rb"\b(?:\d[ -]?){13,16}\b")
REFUSAL = {
    "message": "the request holds what looks like a card number: leave it out",
    "type": "invalid_request_error",
    "param": None,
    "code": "guardrail",
}


class Guard(BaseHTTPRequestHandler):
    """Judges one request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Refuse the body, or let it pass."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        is_refused = CARD.search(body) is not None
        answer = json.dumps({"error": REFUSAL}).encode() if is_refused else b""
        self.send_response(400 if is_refused else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line would hold the path alone."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Guard).serve_forever()
