"""HTTP connections: slow, huge, malformed and pipelined requests, written on a raw socket."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from tests.kit.connections import (
    BIG,
    BODY_S,
    HEADER_S,
    STALLED_S,
    SUMMARY_S,
    Bare,
    one,
    open_connections,
    request,
    rest,
    status_and_code,
)
from tests.kit.connections import start as start
from tests.kit.waiting import wait_until


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    """Short deadlines and the other limits as they are by default."""
    with Bare(summary_s=600) as server:  # no summary in the log of another test
        yield server


def drip(connection: socket.socket, data: bytes, every_s: float) -> None:
    """Send a byte at a time until the server has enough."""
    for byte in data:
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(every_s)


HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n"
SLOWLORIS = {  # what is sent at once, what is dripped, the deadline that ends it
    "nothing": (b"", b"", HEADER_S),
    "half a line": (b"POST / HT", b"", HEADER_S),
    "half the headers": (HEAD, b"", HEADER_S),
    "dripped headers": (HEAD, b"x-slow: " + b"a" * 1000, HEADER_S),
    "half a body": (HEAD + b"\r\nhalf", b"", BODY_S),
    "dripped body": (HEAD + b"\r\n", b"a" * 999, BODY_S),
}


@pytest.mark.parametrize("shape", SLOWLORIS)
def test_a_request_that_does_not_arrive_is_ended(bare: Bare, shape: str) -> None:
    """Six shapes of slow requests end at their deadline, even if bytes still arrive."""
    at_once, dripped, deadline_s = SLOWLORIS[shape]
    begun = time.monotonic()
    with bare.connect() as connection:
        connection.sendall(at_once)
        dripper = threading.Thread(target=drip, args=(connection, dripped, 0.05))
        dripper.start()
        answer = rest(connection)
        took_s = time.monotonic() - begun
        dripper.join()
    assert took_s > deadline_s * 0.9
    if shape == "nothing":
        assert answer == b""
    else:
        assert status_and_code(answer) == (408, "request_timeout")


def test_a_refusal_is_the_last_thing_on_its_connection(
    bare: Bare, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that is still at work learns that its client is gone, and its answer is dropped."""
    with bare.connect() as connection:
        connection.sendall(request("content-length: 4", path="/unread", body=b"12"))
        answer = rest(connection)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert status_and_code(answer) == (408, "request_timeout")
        time.sleep(1)  # until the handler has answered
    assert caplog.text == ""


def test_a_body_has_a_least_speed(start: Callable[..., Bare]) -> None:
    """Ten times too slow ends before any deadline; somewhat too fast goes through."""
    window_s = 0.4
    server = start(body_s=3600, body_window_s=window_s)
    body = b"x" * 2**13
    with server.connect() as slow, server.connect() as fast:
        head = request(f"content-length: {len(body)}")
        for connection in (slow, fast):
            connection.sendall(head)
        begun = time.monotonic()
        dripper = threading.Thread(target=drip, args=(slow, body, 0.01))
        dripper.start()
        for start_at in range(0, len(body), 2**11):
            fast.sendall(body[start_at : start_at + 2**11])
            time.sleep(0.3)  # 6.7 KiB a second
        status, response = one(fast)
        assert (status, response["size"]) == (200, len(body))
        assert status_and_code(rest(slow)) == (408, "request_timeout")
        dripper.join()
    assert time.monotonic() - begun > window_s


def test_uploads_have_a_deadline_of_their_own(start: Callable[..., Bare]) -> None:
    """A calibration file may take longer than a question."""
    server = start(upload_s=20)
    with server.connect() as upload, server.connect() as question:
        upload.sendall(request("content-length: 4", path="/calibrate", body=b"12"))
        question.sendall(request("content-length: 4", path="/route", body=b"12"))
        assert status_and_code(rest(question)) == (408, "request_timeout")
        upload.sendall(b"34")
        assert one(upload)[0] == 200


def test_a_slow_handler_is_not_the_clients_fault(bare: Bare) -> None:
    """A handler that starts to read after the deadline still gets the whole body."""
    body = b"x" * 2**20
    with bare.connect() as connection:
        connection.sendall(request(f"content-length: {len(body)}", path="/late", body=body))
        status, response = one(connection)
    assert (status, response["size"]) == (200, len(body))


def test_slow_connections_do_not_slow_others_down(start: Callable[..., Bare]) -> None:
    """With three hundred half requests open, whole ones are answered at once."""
    server = start(header_s=20)
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(server.connect()).sendall(HEAD)
        for _ in range(50):
            with server.connect() as connection:
                connection.sendall(request(method="GET"))
                assert one(connection)[0] == 200
        assert open_connections(server) >= 300  # nothing waited until they were refused


INNER = b"GET /inner HTTP/1.1\r\nhost: x\r\n\r\n"
SMUGGLED = {
    "length and chunks": request(
        "content-length: 6", "transfer-encoding: chunked", body=b"0\r\n\r\nX"
    ),
    "chunks and length": request(
        "transfer-encoding: chunked", "content-length: 6", body=b"0\r\n\r\nX"
    ),
    "two lengths": request("content-length: 5", "content-length: 6", body=b"hello" + INNER),
    "two equal lengths": request("content-length: 5", "content-length: 5", body=b"hello"),
    "length with a sign": request("content-length: +5", body=b"hello"),
    "length list": request("content-length: 5, 5", body=b"hello"),
    "length in hexadecimal": request("content-length: 0x5", body=b"hello"),
    "negative length": request("content-length: -5", body=b"hello"),
    "endless length": request("content-length: " + "9" * 40, body=b"hello"),
    "unknown coding": request("transfer-encoding: xchunked", body=b"5\r\nhello\r\n0\r\n\r\n"),
    "chunked not last": request(
        "transfer-encoding: chunked, identity", body=b"5\r\nhello\r\n0\r\n\r\n"
    ),
    "space before the colon": request("content-length : 5", body=b"hello"),
    "line feeds alone": b"POST / HTTP/1.1\nhost: x\ncontent-length: 5\n\nhello",
    "carriage returns alone": b"POST / HTTP/1.1\rhost: x\r\rhello",
    "bad chunk size": request("transfer-encoding: chunked", body=b"zz\r\nhello\r\n0\r\n\r\n"),
    "chunk size with a sign": request("transfer-encoding: chunked", body=b"+5\r\nhello\r\n"),
    "huge chunk size": request("transfer-encoding: chunked", body=b"f" * 17 + b"\r\nhello"),
    "chunk without its end": request(
        "transfer-encoding: chunked", body=b"5\r\nhelloX\r\n0\r\n\r\n"
    ),
    "folded header": request("x-a: b", " folded: c", "content-length: 0"),
    "folded first header": b"GET / HTTP/1.1\r\n host: x\r\n\r\n",
    "null byte in a header": request("x-a: b\0c", "content-length: 0"),
    "null byte in a name": request("x\0a: b", "content-length: 0"),
    "carriage return in a value": request("x-a: b\rc", "content-length: 0"),
    "header without a colon": request("nothing", "content-length: 0"),
    "nameless header": request(": nothing", "content-length: 0"),
    "control character in the path": request(path="/\x01"),
    "space in the path": request(path="/a b"),
    "letters outside ASCII in the path": "GET /é HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    "no version": b"GET /\r\nhost: x\r\n\r\n",
    "another version": b"GET / HTTP/3.7\r\nhost: x\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nhost: x\r\n\r\n",
    "unknown method": b"SMUGGLE / HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel": b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100c6010000c20303") + b"\0" * 64,
}


@pytest.mark.parametrize("case", SMUGGLED)
def test_a_message_of_doubtful_length_is_refused(bare: Bare, case: str) -> None:
    """400 once, then the end: nothing behind a doubtful message is read as a request."""
    assert status_and_code(bare.say(SMUGGLED[case] + INNER)) == (400, "invalid_http")


def test_a_trailer_adds_no_header(bare: Bare) -> None:
    """Headers were judged when the body began; none is added behind that."""
    body = b"5\r\nhello\r\n0\r\nauthorization: Bearer late\r\n\r\n"
    with bare.connect() as connection:
        connection.sendall(request("transfer-encoding: chunked", body=body))
        status, response = one(connection)
    assert (status, response["size"]) == (200, 5)
    assert "authorization" not in dict(response["headers"])


LARGE_HEADS = {
    "one header": request("x-a: " + "a" * 33_000),
    "headers together": request(*(f"x-{n}: {'a' * 1000}" for n in range(40))),
    "many headers": request(*(f"x-{n}: a" for n in range(101))),
    "a header without end": b"GET / HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 2**20,
    "a name without end": b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a" * 2**20,
    "trailers": request(
        "transfer-encoding: chunked",
        body=b"0\r\n" + b"".join(b"x-%d: a\r\n" % n for n in range(120)) + b"\r\n",
    ),
}


LARGE_LINES = {
    "a line": b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a line without end": b"GET /" + b"a" * 9_000,
}


@pytest.mark.parametrize("case", [*LARGE_HEADS, *LARGE_LINES])
def test_a_head_has_a_size(bare: Bare, case: str) -> None:
    """Bytes in all, headers in number, and one that never ends: 431; the line alone is 414."""
    found = status_and_code(bare.say((LARGE_HEADS | LARGE_LINES)[case]))
    is_line = case in LARGE_LINES
    assert found == ((414, "uri_too_long") if is_line else (431, "headers_too_large"))


def test_a_head_just_below_the_limits_is_read(bare: Bare) -> None:
    """Ninety-nine headers beside the host, and thirty kibibytes."""
    for headers in ([f"x-{n}: a" for n in range(99)], ["x-a: " + "a" * 30_000]):
        with bare.connect() as connection:
            connection.sendall(request(*headers, method="GET"))
            status, response = one(connection)
        assert (status, len(response["headers"])) == (200, len(headers) + 1)


def test_a_body_in_many_pieces_is_not_a_large_head(bare: Bare) -> None:
    """Requests behind each other on one connection are counted apart."""
    with bare.connect() as connection:
        for size in (100_000, 0, 200_000):
            connection.sendall(request(f"content-length: {size}", body=b"x" * size))
            status, response = one(connection)
            assert (status, response["size"]) == (200, size)


def test_a_connection_without_requests_is_closed(start: Callable[..., Bare]) -> None:
    """After an answer it may stay for a while; line ends do not keep it open."""
    server = start(keep_alive_s=1)
    with server.connect() as idle, server.connect() as restless:
        for connection in (idle, restless):
            connection.sendall(request(method="GET"))
            assert one(connection)[0] == 200
        dripper = threading.Thread(target=drip, args=(restless, b"\r\n" * 1000, 0.15))
        dripper.start()  # until the server closes
        assert (rest(idle), rest(restless)) == (b"", b"")
        dripper.join()


def test_an_answer_may_take_longer_than_a_connection_may_idle(start: Callable[..., Bare]) -> None:
    """The clock of the gap between requests stops when the next one begins."""
    server = start(keep_alive_s=0.9)
    with server.connect() as connection:
        for path in ("/", "/late"):
            connection.sendall(request(path=path, method="GET"))
            assert one(connection)[1]["path"] == path


def test_requests_in_one_write_are_answered_in_order(bare: Bare) -> None:
    """Pipelining works, the slow one first."""
    with bare.connect() as connection:
        both = (request(path=path, method="GET") for path in ("/late", "/second"))
        connection.sendall(b"".join(both))
        read = b""
        while read.count(b'"size"') < 2:
            read += connection.recv(2**16)
    assert read.index(b'"/late"') < read.index(b'"/second"')


PATHLESS = [
    f"{line} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    for line in ("CONNECT h:443", "GET http://h", "GET /\u00e9")
]
RUBBISH = b"RUBBISH\r\n\r\n"


@pytest.mark.parametrize(
    "broken", [RUBBISH, request(path="/second", method="GET") + RUBBISH, *PATHLESS]
)
def test_a_broken_request_does_not_break_the_answer_before_it(bare: Bare, broken: bytes) -> None:
    """The answer under way is whole, nothing is mixed into it, and then the connection ends."""
    with bare.connect() as connection:
        connection.sendall(request(path="/late", method="GET") + broken)
        assert one(connection)[1]["path"] == "/late"
        assert rest(connection) == b""
    if broken in PATHLESS:
        with bare.connect() as connection:
            connection.sendall(request(method="GET"))
            assert one(connection)[0] == 200
            connection.sendall(broken)
            assert status_and_code(rest(connection)) == (400, "invalid_http")


def test_another_protocol_is_not_spoken(bare: Bare) -> None:
    """An upgrade is answered as the request that it is, and what follows is not read."""
    upgrade = request("connection: upgrade", "upgrade: websocket", method="GET")
    answer = bare.say(upgrade + INNER)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"/inner" not in answer


def test_connections_are_counted(start: Callable[..., Bare]) -> None:
    """A connection over the limit gets an error and is closed; later there is room again."""
    server = start(connections=3, header_s=20)
    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(server.connect())
            connection.sendall(request(method="GET"))
            assert one(connection)[0] == 200
        with server.connect() as extra:
            answer = rest(extra)
        assert status_and_code(answer) == (503, "overloaded")
        assert b"retry-after" in answer
    wait_until(lambda: not open_connections(server))
    with server.connect() as connection:
        connection.sendall(request(method="GET"))
        assert one(connection)[0] == 200


def test_refusals_are_counted_and_summed_up(
    start: Callable[..., Bare], caplog: pytest.LogCaptureFixture
) -> None:
    """Each by its status in the metric; in the log one line for all, and none for none."""
    server = start(connections=1)
    sent = {
        400: (b"RUBBISH\r\n\r\n", 3),
        408: (HEAD, 1),
        414: (b"GET /" + b"a" * 9_000, 2),
        431: (LARGE_HEADS["many headers"], 2),
    }

    def logged() -> dict[int, int]:
        lines = [Counter(record.__dict__["fields"]["refused"]) for record in caplog.records]
        return dict(sum(lines, Counter[int]()))

    with caplog.at_level("INFO", logger="app.http.refusals"):
        for status, (data, count) in sent.items():
            for _ in range(count):
                assert status_and_code(server.say(data))[0] == status
                wait_until(lambda: not open_connections(server))
        with server.connect() as only, server.connect() as extra:
            assert status_and_code(rest(extra))[0] == 503
            only.sendall(request(method="GET"))
            assert one(only)[0] == 200
        assert server.refusals_by_status() == {
            status: count for status, (_, count) in sent.items()
        } | {503: 1}
        wait_until(lambda: logged() == server.refusals_by_status())
        server.say(b"RUBBISH\r\n\r\n")
        wait_until(lambda: logged() == server.refusals_by_status())
        lines = list(caplog.records)
        server.say(request("connection: close", method="GET"))
        time.sleep(2 * SUMMARY_S)
    assert caplog.records == lines
    assert all(record.__dict__["fields"]["refused"] for record in lines)
    gaps = [later.created - one.created for one, later in pairwise(lines)]
    assert min(gaps) > 0.9 * SUMMARY_S
    assert {record.getMessage() for record in lines} == {"connections were refused"}


def test_a_client_that_reads_nothing_is_cut(start: Callable[..., Bare]) -> None:
    """Its memory and its place are free again, during an answer and after a small one."""
    server = start()
    with server.connect(receive_buffer=4096) as connection:
        connection.sendall(request(path="/big", method="GET"))
        begun = time.monotonic()
        wait_until(lambda: open_connections(server) == 1)
        wait_until(lambda: open_connections(server) == 0)
    assert time.monotonic() - begun > STALLED_S / 2


def test_a_client_that_reads_slowly_is_served(start: Callable[..., Bare]) -> None:
    """A connection stays open while each interval of the limit has progress."""
    server = start()
    with server.connect(receive_buffer=2**16) as connection:
        connection.sendall(request(path="/big", method="GET"))
        begun, read = time.monotonic(), 0
        while time.monotonic() - begun < 4 * STALLED_S:
            read += len(connection.recv(2**18))
            time.sleep(STALLED_S / 8)
        while read < BIG:
            part = connection.recv(2**20)
            assert part
            read += len(part)


def test_an_earlier_answer_starts_no_deadline_of_the_next(start: Callable[..., Bare]) -> None:
    """A stall of half the time in the second answer of a connection is no stall of the whole."""
    server = start()
    with server.connect(receive_buffer=4096) as connection:
        connection.sendall(request(path="/next", method="GET"))
        assert one(connection)[0] == 200
        time.sleep(0.7 * STALLED_S)
        connection.sendall(request(path="/big", method="GET"))
        time.sleep(0.5 * STALLED_S)  # the deadline from the first answer passes
        read = 0
        while read < BIG:
            part = connection.recv(2**20)
            assert part, f"cut after {read:,} bytes"
            read += len(part)


def test_an_early_answer_does_not_wait_for_the_body(bare: Bare, start: Callable[..., Bare]) -> None:
    """Of a refused upload the rest is not awaited for long; a short rest costs no connection."""
    with start(body_s=3600, linger_s=0.3).connect() as endless:
        begun = time.monotonic()
        endless.sendall(request("content-length: 100000000", path="/early", body=b"x" * 1000))
        assert one(endless)[0] == 200
        drip(endless, b"x" * 4000, 0.05)  # until the server closes
        assert rest(endless) == b""
        assert time.monotonic() - begun > 0.3
    with bare.connect() as short:
        short.sendall(request("content-length: 4", path="/early", body=b"12"))
        assert one(short)[0] == 200
        short.sendall(b"34" + request(path="/next", method="GET"))
        assert one(short)[1]["path"] == "/next"


def test_forwarded_address_headers_are_ignored(bare: Bare) -> None:
    """Limits per address rest on the socket's own."""
    with bare.connect() as connection:
        headers = ("x-forwarded-for: 10.9.8.7", "forwarded: for=10.9.8.7", "x-real-ip: 10.9.8.7")
        connection.sendall(request(*headers, method="GET"))
        assert one(connection)[1]["client"] == "127.0.0.1"
