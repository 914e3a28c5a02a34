"""Server with a mode per model that breaks on purpose.

``python -m tests.kit.hostile.server`` runs it as a process of its own, on raw sockets. It writes
one line of JSON with its addresses, and ends when its standard input does. Every model is healthy
until a plan says otherwise::

    PUT /_plan {"cell": "", "modes": {"adder": "status:429:7"}}
    GET /_log?cell=      what it was asked, how each call ended, and what the trap saw

A mode may have an argument after a colon; with ``first then second`` later calls see the second,
as a retry does. Requests can be told apart by cell: the field ``user`` of a request names its cell,
which has a plan and a log of its own; without one the cell is empty.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from . import bodies, connections, documents, events, heads
from .answers import healthy
from .exchange import Behaviour, Entry, Exchange, Play, Request, head, listen, now
from .serving import Server

# Mode -> what it does, and the function that does it. The whole name is looked up first.
MODES: Final[Mapping[str, tuple[str, Play]]] = {
    "healthy": ("answers `42`, or its argument", healthy),
    # connections.py
    "hang": ("accepts the request and never answers", connections.hang),
    "latency": ("answers after so many seconds", connections.latency),
    "rst": ("resets at once, or `after_head`", connections.rst),
    "close": ("closes without an answer", connections.close),
    "close_after": ("closes a kept connection when it is used again", connections.close_after),
    "trickle_headers": ("sends a byte of the head every 0.2 s", connections.trickle_headers),
    "slow_body": ("sends a piece of the answer every 0.3 s", connections.slow_body),
    "stall": ("sends half of the answer, then nothing", connections.stall),
    "cut": ("closes in mid-answer, with FIN or `rst`", connections.cut),
    "unterminated": ("sends all chunks but the last", connections.unterminated),
    "truncate": ("sends half of the announced length", connections.truncate),
    # heads.py
    "status": ("answers a status; `429:7` says when to retry, `500:echo` repeats", heads.status),
    "redirect": ("redirects to a trap", heads.redirect),
    "many_headers": ("sends 10,000 headers", heads.many_headers),
    "big_header": ("sends a header of 1 MiB", heads.big_header),
    "endless_headers": ("sends headers without end", heads.endless_headers),
    "endless_status": ("sends a status line without end", heads.endless_status),
    "interim": ("sends so many interim answers first, or `endless`", heads.interim),
    "bad_head": ("sends what is no HTTP; see `heads.BAD_HEADS`", heads.bad_head),
    # bodies.py
    "bad_json": ("sends a body that is no JSON", bodies.BAD_JSON),
    "truncated_json": ("sends half a document as a whole answer", bodies.truncated_json),
    "empty_body": ("sends an empty body", bodies.EMPTY),
    "nan": ("sends NaN in JSON", bodies.NAN),
    "duplicate_keys": ("sends a key twice in one object", bodies.DUPLICATE_KEYS),
    "deep": ("sends JSON of 100,000 levels", bodies.DEEP),
    "latin": ("sends JSON that is not UTF-8", bodies.LATIN),
    "not_openai": ("sends JSON of another shape", bodies.NOT_OPENAI),
    "error_in_200": ("sends an error with status 200", bodies.ERROR),
    "html": ("sends a page of HTML", bodies.HTML),
    "wrong_type": ("sends a right body under another type, or `none`", bodies.wrong_type),
    "swap": ("sends a document for a stream, and the reverse", bodies.swap),
    "huge": ("sends an answer of so many MiB", bodies.huge),
    "infinite": ("sends a text without end", bodies.infinite),
    "endless_line": ("sends a line without end", bodies.endless_line),
    "endless_comments": ("sends comments, or line ends, without end", bodies.endless_comments),
    "bomb": ("sends 1 MiB that unpacks to 1 GiB, `gzip` or `deflate`", bodies.bomb),
    # events.py: broken streams
    "sse:notjson": ("streams an event that is no JSON", events.NOT_JSON),
    "sse:number": ("streams an event that is a number", events.NUMBER),
    "sse:nan": ("streams NaN in JSON", events.NAN),
    "sse:duplicate_keys": ("streams a key twice in one object", events.DUPLICATE_KEYS),
    "sse:bad_utf8": ("streams an event that is not UTF-8", events.BAD_UTF8),
    "sse:no_blank": ("streams events without blank lines", events.NO_BLANK),
    "sse:no_final": ("ends a stream without a finish reason", events.NO_FINAL),
    "sse:no_end": ("ends a stream without finish and `[DONE]`", events.NO_END),
    "sse:nothing": ("ends a stream before its first event", events.NOTHING),
    "sse:only_done": ("streams `[DONE]` alone", events.ONLY_DONE),
    "stream_error": ("streams an error in mid-answer", events.ERROR),
    "stream_error:first": ("streams an error and nothing else", events.ERROR_FIRST),
    "stream_error:done": ("streams an error, then `[DONE]`", events.ERROR_THEN_DONE),
    # events.py: odd streams that are whole
    "sse:nodone": ("ends a finished stream without `[DONE]`", events.NO_DONE),
    "sse:after_done": ("streams more after `[DONE]`", events.AFTER_DONE),
    "sse:crlf": ("ends lines with CRLF", events.CRLF),
    "sse:cr": ("ends lines with CR", events.CR),
    "sse:no_space": ("leaves out the space after `data:`", events.NO_SPACE),
    "sse:comments": ("streams comments and other fields", events.COMMENTS),
    "sse:bom": ("begins a stream with a byte order mark", events.BOM),
    "sse:multi_line": ("spreads documents over several data lines", events.MULTI_LINE),
    "sse:split": ("cuts packets inside characters", events.SPLIT),
    "sse:bytewise": ("sends one byte a packet", events.BYTEWISE),
    "sse:packed": ("sends all events in one packet", events.PACKED),
    # documents.py
    "null_content": ("sends something else than a text", documents.null_content),
    "blank": ("sends white space, or an `empty` text", documents.blank),
    "dup_choices": ("sends two choices with one index", documents.dup_choices),
    "extra_choices": ("sends three choices for one", documents.extra_choices),
    "empty_choices": ("sends no choice", documents.empty_choices),
    "odd_choices": ("sends a choice that is no object", documents.odd_choices),
    "finish": ("ends for this reason", documents.finish),
    "error_beside": ("sends an error beside the answer", documents.error_beside),
    "bad_logprobs": ("sends log-probabilities that cannot be", documents.bad_logprobs),
    "numbers": ("sends a number that overflows", documents.numbers),
    "no_usage": ("counts no tokens", documents.no_usage),
    "usage": ("sends token counts that are none", documents.usage),
    "wrong_model": ("answers as another model", documents.wrong_model),
    "forged": ("writes the gateway's own names into everything", documents.forged),
    "unicode": ("sends odd characters; see `documents.TEXTS`", documents.unicode),
    "inject": ("injects instructions for a model that merges answers", documents.inject),
}
THEN: Final = " then "


def find(mode: str) -> tuple[Play, str]:
    """The function of a mode, and its argument."""
    if mode in MODES:
        return MODES[mode][1], ""
    name, _, argument = mode.partition(":")
    return MODES[name][1], argument


def behaviour(mode: str) -> Behaviour:
    """A mode with its argument, for the calls of one candidate."""
    play, argument = find(mode)

    async def played(exchange: Exchange) -> None:
        await play(exchange, argument)

    played.__name__ = mode
    return played


class Upstream(Server):
    """The plans and the log of all cells."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[str, Mapping[str, str]] = {}
        self._log = defaultdict[str, list[Entry]](list)  # by cell
        self._trapped = 0

    async def spring(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The trap: count and close."""
        self._trapped += 1
        writer.close()

    def plan(self, request: Request, connection: int) -> tuple[Entry, Behaviour]:
        """The mode that the cell's plan has for the model."""
        cell = str(request.body.get("user") or "")
        log = self._log[cell]
        modes = self._plans.get(cell, {}).get(request.model, "healthy").split(THEN)
        before = sum(each.model == request.model for each in log)
        mode = modes[min(before, len(modes) - 1)]
        entry = Entry(
            cell=cell,
            model=request.model,
            mode=mode,
            stream=request.streams,
            connection=connection,
            accepted=now(),
        )
        log.append(entry)
        return entry, behaviour(mode)

    def control(self, request: Request) -> bytes | None:
        """The response to a request that sets a plan or reads the log."""
        url = urlsplit(request.target)
        if not url.path.startswith("/_"):
            return None
        response: Any = {}
        if url.path == "/_plan":
            for modes in request.body["modes"].values():
                for mode in modes.split(THEN):
                    find(mode)  # a typo is an error here, where the test sees it
            self._plans[request.body["cell"]] = request.body["modes"]
        elif url.path == "/_log":
            cell = parse_qs(url.query, keep_blank_values=True).get("cell", [""])[0]
            entries = [asdict(entry) for entry in self._log[cell]]
            response = {"entries": entries, "trapped": self._trapped}
        data = json.dumps(response).encode()
        return head({"content-length": str(len(data))}) + data


async def main(certificate: str | None) -> None:
    """Serve until standard input ends."""
    upstream = Upstream()
    server, port = await listen(upstream.serve)
    trap, trap_port = await listen(upstream.spring)
    upstream.trap_url = f"http://127.0.0.1:{trap_port}/v1/chat/completions"
    addresses = {"url": f"http://127.0.0.1:{port}"}
    async with server, trap:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            _, tls_port = await listen(upstream.serve, ssl=context)
            addresses["tls_url"] = f"https://127.0.0.1:{tls_port}"
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--certificate", help="a PEM file with key and certificate")
    asyncio.run(main(parser.parse_args().certificate))
