"""The load generator: its judgement of answers in every form of arrival."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUERY, RIGHT = "What is 20 plus 22?", "42"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which runs as a script beside its siblings."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("load")


@pytest.fixture
def arms(load: Any) -> Any:
    """Likewise."""
    return importlib.import_module("arms")


def whole(text: str, *, status: int = 200, headers: str = "") -> bytes:
    """A completion, or an error with ``text`` for its code."""
    choice = {"message": {"role": "assistant", "content": text}}
    body = json.dumps({"choices": [choice]} if status == 200 else {"error": {"code": text}})
    return (f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{headers}\r\n{body}").encode()


def streamed(text: str, *, done: bool = True) -> list[bytes]:
    """A stream, letter by letter, the role first."""
    deltas = [{"role": "assistant", "content": ""}, *({"content": letter} for letter in text)]
    events = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
    lines = [f"data: {event}\n\n".encode() for event in (*events, *(["[DONE]"] if done else []))]
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%b\r\n" % (len(line), line) for line in lines), b"0\r\n\r\n"]


def outcomes_of(
    load: Any, *answers: list[bytes], stream: bool = False, gap_s: float = 0.0
) -> list[Any]:
    """Outcomes of as many requests, one after the other, and over how many connections."""
    serving: list[asyncio.Task[None] | None] = []
    left = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        while await reader.readline():
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            for piece in next(left):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(gap_s)
                if not piece:
                    return writer.close()
        writer.close()

    async def ask() -> list[Any]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            client = load.Client(server.sockets[0].getsockname()[1], "key")
            now = time.perf_counter
            outcomes = [await client.send(load.Ask(QUERY, stream), now()) for _ in answers]
            client.close()
            await asyncio.gather(*filter(None, serving))
            return [*outcomes, len(serving)]

    return asyncio.run(ask())


def test_an_answer_in_single_bytes_is_the_answer_at_once(load: Any) -> None:
    """Whole or in chunks, over one connection that is kept."""
    bytes_of = [bytes([each]) for each in whole(RIGHT)]
    *outcomes, connections = outcomes_of(load, bytes_of, [whole(RIGHT)])
    assert [each.kind for each in outcomes] == [load.Kind.RIGHT] * 2
    assert connections == 1
    slow = [bytes([each]) for piece in streamed(RIGHT) for each in piece]
    *outcomes, connections = outcomes_of(load, slow, [b"".join(streamed(RIGHT))], stream=True)
    assert [each.kind for each in outcomes] == [load.Kind.RIGHT] * 2
    assert connections == 1


def test_anothers_answer_is_wrong(load: Any) -> None:
    """Whole and streamed."""
    assert outcomes_of(load, [whole("41")])[0].kind is load.Kind.WRONG
    assert outcomes_of(load, streamed("41"), stream=True)[0].kind is load.Kind.WRONG


def test_a_refusal_says_when_to_come_back(load: Any) -> None:
    """Without `retry-after`, or with another code, it is an error."""
    polite = whole("overloaded", status=429, headers="retry-after: 1\r\n")
    other = whole("not_found", status=404, headers="retry-after: 1\r\n")
    *outcomes, _ = outcomes_of(load, [polite], [whole("overloaded", status=429)], [other])
    kinds = [each.kind for each in outcomes]
    assert kinds == [load.Kind.REFUSED, load.Kind.ERROR, load.Kind.ERROR]


def test_a_truncated_answer_is_an_error(load: Any) -> None:
    """A body cut short, a stream without its end, and no HTTP at all; the next one is fine."""
    cut = [whole(RIGHT)[:-5], b""]
    *outcomes, connections = outcomes_of(load, cut, [b"no HTTP\r\n\r\n", b""], [whole(RIGHT)])
    kinds = [each.kind for each in outcomes]
    assert kinds == [load.Kind.ERROR, load.Kind.ERROR, load.Kind.RIGHT]
    assert outcomes[0].message == "EOFError while reading"  # at once, not when time is up
    assert connections == 3
    endless = outcomes_of(load, streamed(RIGHT, done=False), stream=True)[0]
    assert (endless.kind, endless.message) == (load.Kind.ERROR, "a stream without its end")


def test_a_right_text_of_another_set_is_wrong(load: Any, arms: Any) -> None:
    """What is compared must be what the row says."""
    answer = load.Answer(
        200, {b"x-racer-selected": b"adder,speller"}, whole(RIGHT).partition(b"\r\n\r\n")[2]
    )
    two, three = (arms.with_condition(load.judged, arms.has_set_of(size)) for size in (2, 3))
    assert two(load.Ask(QUERY), answer)[0] is load.Kind.RIGHT
    assert three(load.Ask(QUERY), answer)[0] is load.Kind.WRONG
