"""Fake upstream of the load tests: right answers after a set latency, and faults on request.

    python benchmarks/upstream.py --latency-ms 20

Prints its port once it listens. Keeps no state of requests. With `--gap-ms` the letters of a stream
are sent one by one with that gap, as models write; without it all at once.
"""

import argparse
import asyncio
import random
from collections.abc import Iterator

import httptools
import orjson
import queries
import uvloop

_HEAD = b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_MODELS = {"object": "list", "data": [{"id": name, "object": "model"} for name in queries.POOL]}
_USAGE = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}


class Candidates(asyncio.Protocol):
    """One connection of the gateway; requests on it come one after the other."""

    def __init__(self, latency_s: float, gap_s: float) -> None:
        self._latency_s = latency_s
        self._gap_s = gap_s
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._pending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keep what is written to."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was to be said."""
        if self._pending is not None:
            self._pending.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """A new request."""
        self._body = b""

    def on_body(self, body: bytes) -> None:
        """A piece of it."""
        self._body += body

    def on_message_complete(self) -> None:
        """Think for a while, then answer or break; tell at once which models there are."""
        if self._parser.get_method() == b"GET":
            self._transport.write(_whole(orjson.dumps(_MODELS)))
            return
        request = orjson.loads(self._body)
        query = request["messages"][-1]["content"]
        fault = queries.fault(request["model"], query)
        if fault == "hang":
            return
        delay_s = self._latency_s * random.uniform(0.75, 1.25)
        loop = asyncio.get_running_loop()
        self._pending = loop.call_later(delay_s, self._answer, request, query, fault)

    def _answer(self, request: dict, query: str, fault: str | None) -> None:
        if fault == "status":
            self._transport.write(_whole(b"{}", status=500))
        elif fault == "garbage":
            self._transport.write(_whole(b"\x00 no json"))
        elif request.get("stream"):
            pieces = _events(request["model"], queries.answer(query))[: 2 if fault else None]
            if self._gap_s and not fault:
                self._transport.write(_STREAM + pieces[0])
                self._write_slowly(iter(pieces[1:]))
            else:
                self._transport.write(_STREAM + b"".join(pieces))
        else:
            data = _whole(orjson.dumps(_completion(request["model"], queries.answer(query))))
            self._transport.write(data[: -20 if fault else None])
        if fault == "cut":
            self._transport.close()

    def _write_slowly(self, pieces: Iterator[bytes]) -> None:
        if (piece := next(pieces, None)) is not None:
            self._transport.write(piece)
            loop = asyncio.get_running_loop()
            self._pending = loop.call_later(self._gap_s, self._write_slowly, pieces)


def _whole(body: bytes, *, status: int = 200) -> bytes:
    return _HEAD % (status, b"application/json", len(body)) + body


def _completion(model: str, text: str) -> dict:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return _document(model, "chat.completion", [choice]) | {"usage": _USAGE}


def _events(model: str, text: str) -> list[bytes]:
    deltas = [{"role": "assistant", "content": ""}, *({"content": letter} for letter in text), {}]
    events = [
        _document(
            model,
            "chat.completion.chunk",
            [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}],
        )
        for delta in deltas
    ]
    events.append(_document(model, "chat.completion.chunk", []) | {"usage": _USAGE})
    lines = [*(b"data: %b\n\n" % orjson.dumps(each) for each in events), b"data: [DONE]\n\n"]
    return [*(b"%x\r\n%b\r\n" % (len(line), line) for line in lines), b"0\r\n\r\n"]


def _document(model: str, kind: str, choices: list[dict]) -> dict:
    return {"id": "x", "object": kind, "created": 0, "model": model, "choices": choices}


async def serve(latency_s: float, gap_s: float) -> None:
    """Listen on a free port until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Candidates(latency_s, gap_s), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--gap-ms", type=float, default=0, help="between a stream's letters")
    args = parser.parse_args()
    uvloop.run(serve(args.latency_ms / 1e3, args.gap_ms / 1e3))
