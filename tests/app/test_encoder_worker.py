"""The routing worker, and that nothing ever blocks the event loop."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app import lifespan
from app.calibrations import record_builder, upload_reader
from app.errors import Overloaded
from app.routing.encoder_worker import EncoderWorker
from app.routing.scorer import ScoredQuery
from app.store import Store
from app.telemetry.metrics import Metrics
from racer_core import strict_json
from racer_core.calibration.calibration import Calibration
from racer_core.encoder.base import Encoder, EncoderOutput
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from racer_core.racer import Racer
from racer_core.trained_router import RouterScores
from tests.kit.gateway import ADMIN_KEY, ONE, POOL, TWO, Gateway, Serve, as_json, labelled
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

pytestmark = pytest.mark.anyio


@dataclass
class StubRacer:
    """Scores by the text's number; holds each batch until it is let go, and remembers them."""

    batches: list[list[str]] = field(default_factory=list)
    begun: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    free: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    rows: int | None = None  # how many rows it answers with, when not as many as asked
    backend: str = "cpu"
    forward: str = "lean"
    encoder: Encoder = field(default_factory=CharNgramEncoder)

    @property
    def artifact(self) -> SimpleNamespace:
        """Says where the encoder runs."""
        return SimpleNamespace(encoder=replace(SPEC, backend=self.backend, forward=self.forward))

    def tokenized(self, queries: Sequence[str]) -> Sequence[str]:
        """As for an encoder without a tokenizer."""
        return queries

    def score(self, queries: Sequence[str]) -> RouterScores:
        """As a racer does, on the worker's thread."""
        if list(queries) == ["warm up"]:
            return RouterScores(np.zeros((1, 1)), np.zeros(1, bool))
        self.batches.append(list(queries))
        self.begun.put(None)
        assert self.free.wait(60)
        if self.error is not None:
            raise self.error
        count = len(queries) if self.rows is None else self.rows
        scores = np.array([[float(text)] for text in queries])[:count]
        return RouterScores(scores, np.zeros(count, bool))


@asynccontextmanager
async def playing(
    racer: StubRacer | None = None, *, places: int = 100, wait_s: float = 60.0, batch: int = 4
) -> AsyncGenerator[tuple[EncoderWorker, StubRacer]]:
    """A worker around a stub."""
    racer = racer or StubRacer()
    worker = EncoderWorker(
        cast("Racer", racer), queue=places, queue_s=wait_s, batch=batch, metrics=Metrics()
    )
    try:
        async with worker, asyncio.timeout(60):
            yield worker, racer
    finally:
        racer.free.set()


async def begun(racer: StubRacer) -> None:
    """Wait until the thread holds one more batch."""
    await asyncio.to_thread(racer.begun.get, timeout=30)


def ask(worker: EncoderWorker, *numbers: int) -> list[asyncio.Task[ScoredQuery]]:
    """Queries that wait."""
    return [asyncio.create_task(worker.score(str(number))) for number in numbers]


async def test_waiting_queries_are_scored_in_one_batch() -> None:
    """Up to the limit, in order of arrival; one more than the queue holds is refused at once."""
    async with playing(batch=4, places=6) as (worker, racer):
        first = ask(worker, 0)
        await begun(racer)
        waiting = ask(worker, *range(1, 7))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await worker.score("7")
        racer.free.set()
        await asyncio.gather(*first, *waiting)
        assert racer.batches == [["0"], ["1", "2", "3", "4"], ["5", "6"]]
        assert (await worker.score("8")).scores == [8.0]


async def test_a_cancelled_query_is_not_scored_and_frees_its_place() -> None:
    """The others are not disturbed."""
    async with playing(places=3) as (worker, racer):
        first = ask(worker, 0)
        await begun(racer)
        gone = ask(worker, 1, 2, 3)
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        (stays,) = ask(worker, 4)
        await asyncio.sleep(0)
        racer.free.set()
        assert (await stays).scores == [4.0]
        await asyncio.gather(*first)
        assert racer.batches == [["0"], ["4"]]


async def test_every_request_of_a_failed_batch_gets_the_error() -> None:
    """A router that raises, or answers with another number of rows; the worker goes on."""
    async with playing() as (worker, racer):
        racer.free.set()
        racer.error = RuntimeError("the device is gone")
        answers = await asyncio.gather(*ask(worker, 1, 2, 3), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["the device is gone"] * 3
        racer.error = None
        for racer.rows in (0, 1, 5):
            answers = await asyncio.gather(*ask(worker, 1, 2, 3), return_exceptions=True)
            assert racer.rows == 5 or all(isinstance(answer, Exception) for answer in answers)
        racer.rows = None
        assert (await worker.score("4")).scores == [4.0]


class Clock:
    """Time as a test sets it."""

    now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@pytest.mark.parametrize(
    ("late", "in_time", "served"),
    [((1, 2), (3, 4), ["3", "4"]), ((1, 2, 3), (), ["2", "3"])],
    ids=["queries in time take the batch", "late queries fill the batch"],
)
async def test_a_late_query_is_refused_only_if_it_displaces_another(
    monkeypatch: pytest.MonkeyPatch, late: Sequence[int], in_time: Sequence[int], served: list[str]
) -> None:
    """After a pause of the whole process late queries are scored up to one batch."""
    clock = Clock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)
    async with playing(wait_s=1.0, batch=2) as (worker, racer):
        first = ask(worker, 0)
        await begun(racer)
        waiting = ask(worker, *late)
        await asyncio.sleep(0)
        clock.now = 0.75
        waiting += ask(worker, *in_time)
        await asyncio.sleep(0)
        clock.now = 1.25
        assert not any(task.done() for task in waiting)
        racer.free.set()
        await asyncio.gather(*first)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        numbers = [str(number) for number in (*late, *in_time)]
        assert [type(each) for each in answers] == [
            ScoredQuery if number in served else Overloaded for number in numbers
        ]
        assert racer.batches == [["0"], served]


async def test_a_query_that_would_wait_too_long_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a second a row, and 1.2 seconds to wait: two may wait behind the batch that ends."""
    clock = Clock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)
    async with playing(wait_s=1.2, batch=2) as (worker, racer):
        first = ask(worker, 1, 2)
        await begun(racer)
        clock.now = 1.0  # what this batch took
        racer.free.set()
        await asyncio.gather(*first)
        racer.free.clear()
        running = ask(worker, 3, 4)
        await begun(racer)
        waiting = ask(worker, 5, 6)
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="too far behind"):
            await worker.score("7")  # one second for the batch, one for those in line
        clock.now = 2.0  # the batch should have ended
        (admitted,) = ask(worker, 8)
        await asyncio.sleep(0)
        assert not admitted.done()
        with pytest.raises(Overloaded, match="too far behind"):
            await worker.score("9")
        racer.free.set()
        answers = await asyncio.gather(*running, *waiting, admitted)
        assert [answer.scores for answer in answers] == [[3.0], [4.0], [5.0], [6.0], [8.0]]
        assert (await worker.score("10")).scores == [10.0]


async def test_single_queries_say_nothing_of_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst after slow single queries is not refused: batches take less for each row."""
    clock = Clock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)
    async with playing(wait_s=1.0, batch=4) as (worker, racer):
        (single,) = ask(worker, 0)
        await begun(racer)
        clock.now = 5.0
        burst = ask(worker, *range(1, 9))
        await asyncio.sleep(0)
        racer.free.set()
        await asyncio.gather(single, *burst)


async def test_closing_ends_every_waiting_request() -> None:
    """Every request that still waits when the worker closes fails, the running batch included."""
    async with playing(batch=1) as (worker, racer):
        tasks = ask(worker, 0, 1, 2)
        await begun(racer)
        racer.free.set()
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, ScoredQuery | BaseException) for each in outcomes)


async def test_rows_of_a_calibration_let_queries_go_between() -> None:
    """A long calibration is scored in slices; a query does not wait for all of them."""
    async with playing() as (worker, racer):
        rows = [str(number) for number in range(4_000)]
        scoring = asyncio.create_task(asyncio.to_thread(worker.score_rows, rows))
        await begun(racer)
        (query,) = ask(worker, 7)
        await asyncio.sleep(0)
        racer.free.set()
        assert (await query).scores == [7.0]
        scored = await scoring
        assert scored.scores[:, 0].tolist() == [float(n) for n in range(4_000)]
        assert len(racer.batches) == 1_001
        assert racer.batches.index(["7"]) < 1_000


async def test_what_waits_is_tokenised_while_a_batch_is_scored() -> None:
    """Live queries and slices of rows; the encoder's thread then finds the tokens."""

    class Tokens(str):
        """A text with its tokens."""

    class TokenizingStub(CharNgramEncoder):
        def tokenized(self, texts: Sequence[str]) -> Sequence[str]:
            """Makes the encoder a tokenizing one."""
            raise NotImplementedError

    @dataclass
    class Tokenizing(StubRacer):
        encoder: Encoder = field(default_factory=TokenizingStub)
        ahead: queue.SimpleQueue[list[str]] = field(default_factory=queue.SimpleQueue)

        def tokenized(self, queries: Sequence[str]) -> Sequence[str]:
            self.ahead.put(list(queries))
            return [Tokens(text) for text in queries]

    racer = Tokenizing()

    async with playing(racer) as (worker, _):
        first = ask(worker, 0)
        await begun(racer)
        assert racer.ahead.empty()  # an idle encoder's thread tokenises by itself
        second = ask(worker, 1)
        assert await asyncio.to_thread(racer.ahead.get, timeout=30) == ["1"]
        racer.free.set()
        await asyncio.gather(*first, *second)
        await begun(racer)
        racer.free.clear()
        rows = [str(number) for number in range(8)]
        scoring = asyncio.create_task(asyncio.to_thread(worker.score_rows, rows))
        await begun(racer)
        for slice_ in (rows[:4], rows[4:]):
            assert await asyncio.to_thread(racer.ahead.get, timeout=30) == slice_
        racer.free.set()
        assert (await scoring).scores[:, 0].tolist() == list(range(8))
    kinds = [{type(text) for text in batch} for batch in racer.batches]
    assert kinds == [{str}, {Tokens}, {Tokens}, {Tokens}]


@pytest.mark.parametrize(
    ("backend", "forward", "most"),
    [("cpu", "lean", 4), ("cuda", "lean", 32), ("cuda", "transformers", 256)],
)
async def test_rows_of_like_length_are_scored_together(
    backend: str, forward: str, most: int
) -> None:
    """Sorted 256 at a time, on a GPU enough for a batch; progress can end it between slices."""
    racer = StubRacer(backend=backend, forward=forward)
    racer.free.set()
    rows = [str(number * 10 ** (number % 4)) for number in range(100, 400)]
    expected = [
        window[first : first + most]
        for window in (sorted(each, key=len) for each in (rows[:256], rows[256:]))
        for first in range(0, len(window), most)
    ]
    done: list[tuple[int, int]] = []

    def stop(*counts: int) -> None:
        done.append(counts)
        if len(done) > len(expected):
            raise InterruptedError

    async with playing(racer) as (worker, _):
        scored = await asyncio.to_thread(worker.score_rows, rows, progress=stop)
        assert scored.scores[:, 0].tolist() == [float(row) for row in rows]
        with pytest.raises(InterruptedError):
            await asyncio.to_thread(worker.score_rows, rows, progress=stop)
    assert racer.batches == expected
    before = accumulate([0, *map(len, expected[:-1])])
    assert done == [*((count, 300) for count in before), (0, 300)]


class RestingClock(Clock):
    """Scoring takes a hundredth of a second of it; rests pass at once, and are remembered."""

    def __init__(self) -> None:
        self.rests: list[float] = []

    def sleep(self, seconds: float) -> None:
        """A rest."""
        self.rests.append(seconds)
        self.now += seconds


async def test_beside_live_queries_a_calibration_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as long as each slice took, but the last; alone, or later, not at all."""
    clock = RestingClock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)

    @dataclass
    class Scoring(StubRacer):
        def score(self, queries: Sequence[str]) -> RouterScores:
            clock.now += 0.01
            return super().score(queries)

    async with playing(Scoring()) as (worker, racer):
        racer.free.set()

        async def rests() -> list[float]:
            clock.rests.clear()
            texts = [str(number) for number in range(12)]
            scored = await asyncio.to_thread(worker.score_rows, texts)
            assert scored.scores[:, 0].tolist() == [float(n) for n in range(12)]
            return clock.rests

        assert await rests() == []
        await worker.score("7")
        assert await rests() == pytest.approx([0.03] * 2)
        clock.now += 0.88  # less than a second since the query, until the first rest is over
        assert await rests() == pytest.approx([0.03])
        clock.now += 1.0
        assert await rests() == []


# Through the gateway --------------------------------------------------------------------------


@dataclass
class StubEncoder:
    """Character n-grams; held, slow or broken on request."""

    encoder: Encoder = field(default_factory=CharNgramEncoder)
    gate: threading.Event | None = None  # nothing is encoded before it is set
    meanwhile: Callable[[], object] = lambda: None
    sleep_s: float = 0.0
    error: Exception | None = None

    spec = SPEC

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Called on the worker's thread alone."""
        time.sleep(self.sleep_s)
        self.meanwhile()
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return self.encoder.encode(texts)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> StubEncoder:
    """The encoder of every gateway that is started after this."""
    encoder = StubEncoder()
    open_racer = lifespan.open_racer
    monkeypatch.setattr(
        lifespan, "open_racer", lambda settings: replace(open_racer(settings), encoder=encoder)
    )
    return encoder


PATIENT = {"queue_s": 60, "route_timeout_s": 60}


def test_a_full_queue_is_too_many_requests(serve: Serve, stub: StubEncoder) -> None:
    """429 with ``retry-after`` for those who find no place; the others are answered."""
    gateway = serve(limits=PATIENT | {"queue": 2, "batch": 1})
    stub.gate = threading.Event()
    with ThreadPoolExecutor(12) as threads:
        asked = [threads.submit(gateway.post, "/route", json={"query": ONE}) for _ in range(12)]
        until(lambda: sum(each.done() for each in asked) == 9, 30)
        stub.gate.set()
        answers = [each.result() for each in asked]
    refused = [answer for answer in answers if answer.status_code == 429]
    served = [answer for answer in answers if answer.status_code == 200]
    assert (len(refused), len(served)) == (9, 3)  # one is encoded, two wait
    assert refused[0].headers["retry-after"] == "1"
    assert "x-should-retry" not in refused[0].headers
    error = refused[0].json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
    assert gateway.route(ONE)["selected"] == ["adder"]


@pytest.mark.parametrize("fault", ["error", "slow", "nan"])
def test_a_router_that_fails_calls_the_whole_pool(
    serve: Serve, stub: StubEncoder, pool: FakePool, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A failure costs calls, never risk: the pool of the request is called, until it recovers."""
    gateway = serve(limits={"route_timeout_s": 0.3})
    for name in POOL:  # where two agree, the third may no longer be asked
        pool.say(name, name)
    with monkeypatch.context() as patched:
        match fault:
            case "error":
                stub.error = RuntimeError("the device is gone")
            case "slow":
                stub.sleep_s = 1.0
            case _:
                nan = RouterScores(np.full((1, 3), np.nan), np.zeros(1, bool))
                patched.setattr(Racer, "score", lambda *_: nan)
        racer = gateway.chat(ONE)["racer"]
        assert pool.models_called() == sorted(POOL)
        part = gateway.route(ONE, candidates=["adder", "poet"])
    assert sorted(racer["selected"]) == sorted(POOL)
    reason = "router_out_whole_pool" if fault == "slow" else "router_failed_whole_pool"
    assert racer["certificate"]["reasons"] == [reason]
    assert racer["certificate"]["guarantee"]["trivial"] is True
    assert racer["certificate"]["holds"] is True
    assert racer["pool_scores"] == {}
    assert part["selected"] == ["adder", "poet"]
    stub.error, stub.sleep_s = None, 0.0
    wait_until(lambda: gateway.route(ONE)["selected"] == ["adder"])


def test_a_router_that_hangs_costs_one_timeout(serve: Serve, stub: StubEncoder) -> None:
    """Certificates and readiness say that it is out; requests go to the whole pool at once."""
    gateway = serve(limits={"route_timeout_s": 0.3, "deadline_s": 60})
    stub.gate = threading.Event()
    gateway.route(TWO)
    assert gateway.degraded() == ["router"]
    assert gateway.metric("racer_router_up") == 0.0
    for number in range(20):
        decided = gateway.route(f"{ONE} {number}")
        assert sorted(decided["selected"]) == sorted(POOL)
        assert decided["certificate"]["reasons"] == ["router_out_whole_pool"]
        assert decided["certificate"]["holds"]
    stub.gate.set()
    wait_until(lambda: gateway.degraded() == [])
    assert gateway.metric("racer_router_up") == 1.0
    assert gateway.route(ONE)["selected"] == ["adder"]


@dataclass
class Pings:
    """Answers of ``/healthz`` while a gateway works: a step off the event loop waits for them."""

    limit_s: float = 30.0
    answered: int = 0
    missed: int = 0  # steps during which none was answered
    is_pinging: bool = False

    def wait(self) -> None:
        """Return once two pings are answered: the second was sent after this step began."""
        before = self.answered
        if not until(lambda: self.answered > before + 1 or not self.is_pinging, self.limit_s):
            self.missed += 1

    def during(self, gateway: Gateway, busy: Callable[[], object]) -> int:
        """Ping while ``busy`` runs; how many of its steps kept the event loop from answering."""
        with ThreadPoolExecutor(1) as thread, gateway.http(timeout=90) as client:
            self.is_pinging = True
            running = thread.submit(busy)
            while not running.done():
                assert client.get("/healthz").status_code == 200
                self.answered += 1
            self.is_pinging = False
            running.result()
        return self.missed


NDJSON = {"content-type": "application/x-ndjson"}


def slow(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, pings: Pings) -> list[str]:
    """Make a function wait for pings; return the names of the threads that ran it."""
    function, threads = getattr(owner, name), list[str]()

    def blocking(*given: Any, **options: Any) -> Any:
        if name != "load_object" or len(given[0]) > 2**16:  # small bodies are parsed at once
            threads.append(threading.current_thread().name)
            pings.wait()
        return function(*given, **options)

    monkeypatch.setattr(owner, name, blocking)
    return threads


ROWS = as_json(labelled(20_000, 20))
NEW_ROWS = {"content": "".join(f"{json.dumps(row)}\n" for row in ROWS), "headers": NDJSON}
LARGE = {"query": " " * 70_000 + ONE}


@pytest.mark.parametrize(
    ("owner", "name", "method", "path", "request_"),
    [
        (Racer, "score", "POST", "/route", {"json": {"query": ONE}}),
        (Racer, "score", "POST", "/calibrate", NEW_ROWS),
        (upload_reader, "parse", "POST", "/calibrate", NEW_ROWS),
        (upload_reader, "parse", "POST", "/calibrate", {"json": {"rows": ROWS}}),
        (record_builder, "build", "POST", "/calibrate", NEW_ROWS),
        (record_builder, "evidence", "POST", "/calibrate", NEW_ROWS),
        (Store, "add", "POST", "/calibrate", NEW_ROWS),
        (Calibration, "sort_scores", "POST", "/calibrate", NEW_ROWS),
        (Store, "activate", "POST", "/calibrations/{id}/activate", {}),
        (Store, "summaries", "GET", "/calibrations", {}),
        (Store, "summary", "GET", "/calibrations/{id}", {}),
        (
            Calibration,
            "sort_scores",
            "POST",
            "/route",
            {"json": {"query": ONE, "candidates": POOL[:2]}},
        ),
        (strict_json, "load_object", "POST", "/route", {"json": LARGE}),
    ],
)
def test_blocking_steps_run_off_the_event_loop(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    method: str,
    path: str,
    request_: dict[str, Any],
) -> None:
    """Every step that may take long waits until others are answered, one at a time."""
    gateway = serve()
    url = path.format(id=gateway.ready()["calibration"])
    pings = Pings()
    threads = slow(monkeypatch, owner, name, pings)

    def busy() -> None:
        with gateway.http(ADMIN_KEY) as client:
            assert client.request(method, url, **request_).status_code == 200

    assert pings.during(gateway, busy) == 0
    assert threads
    assert all(name.startswith("racer-store") is (owner is Store) for name in threads)
