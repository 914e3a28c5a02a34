"""The routing worker, and that nothing ever blocks the event loop."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app import lifespan
from app.calibrations import record_builder, upload_reader
from app.errors import Overloaded
from app.routing import encoder_worker
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
from tests.kit.gateway import ADMIN_KEY, ONE, POOL, Gateway, Serve, as_json, labelled, user
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

openai = LazyModule("openai")


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


Scenario = Callable[[EncoderWorker, StubRacer], Coroutine[Any, Any, None]]


def play(scenario: Scenario, *, places: int = 100, wait_s: float = 60.0, batch: int = 4) -> None:
    """Run a scenario with a worker around a stub."""
    racer = StubRacer()

    async def run() -> None:
        worker = EncoderWorker(
            cast("Racer", racer), queue=places, queue_s=wait_s, batch=batch, metrics=Metrics()
        )
        async with worker:
            async with asyncio.timeout(60):
                await scenario(worker, racer)

    try:
        asyncio.run(run())
    finally:
        racer.free.set()


async def begun(racer: StubRacer) -> None:
    """Wait until the thread holds one more batch."""
    await asyncio.to_thread(racer.begun.get, timeout=30)


def ask(worker: EncoderWorker, *numbers: int) -> list[asyncio.Task[ScoredQuery]]:
    """Queries that wait."""
    return [asyncio.create_task(worker.score(str(number))) for number in numbers]


def test_each_request_of_a_batch_gets_its_own_scores() -> None:
    """Batching keeps the order."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        racer.free.set()
        answers = await asyncio.gather(*ask(worker, *range(50)))
        assert [answer.scores for answer in answers] == [[float(n)] for n in range(50)]

    play(scenario)


def test_waiting_queries_are_scored_in_one_batch() -> None:
    """While one batch runs the next forms, up to the limit, in order of arrival."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        first = ask(worker, 0)
        await begun(racer)
        waiting = ask(worker, *range(1, 7))
        await asyncio.sleep(0)
        racer.free.set()
        await asyncio.gather(*first, *waiting)
        assert racer.batches == [["0"], ["1", "2", "3", "4"], ["5", "6"]]

    play(scenario, batch=4)


def test_one_more_than_the_queue_holds_is_refused() -> None:
    """At once, and those who wait are still served."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        first = ask(worker, 0)
        await begun(racer)
        waiting = ask(worker, 1, 2, 3)
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await worker.score("4")
        racer.free.set()
        answers = await asyncio.gather(*first, *waiting)
        assert [answer.scores for answer in answers] == [[0.0], [1.0], [2.0], [3.0]]
        assert (await worker.score("5")).scores == [5.0]

    play(scenario, places=3)


def test_every_request_of_a_failed_batch_gets_the_error() -> None:
    """The error reaches each of them, and the worker goes on."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        racer.error = RuntimeError("the device is gone")
        racer.free.set()
        answers = await asyncio.gather(*ask(worker, 1, 2, 3), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["the device is gone"] * 3
        racer.error = None
        assert (await worker.score("4")).scores == [4.0]

    play(scenario)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_router_result_of_the_wrong_size_fails_its_batch(rows: int) -> None:
    """A router that answers with another number of rows fails its batch, not the worker."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        racer.free.set()
        racer.rows = rows
        answers = await asyncio.gather(*ask(worker, 1, 2, 3), return_exceptions=True)
        if rows < 3:
            assert all(isinstance(answer, Exception) for answer in answers)
        racer.rows = None
        assert (await worker.score("4")).scores == [4.0]

    play(scenario)


def test_a_cancelled_query_is_not_scored() -> None:
    """A cancelled query takes no part in a batch, and the others are not disturbed."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        first = ask(worker, 0)
        await begun(racer)
        gone, stays = ask(worker, 1, 2)
        await asyncio.sleep(0)
        gone.cancel()
        racer.free.set()
        await asyncio.gather(*first, stays)
        assert racer.batches == [["0"], ["2"]]

    play(scenario)


def test_a_cancelled_query_frees_its_place_in_the_queue() -> None:
    """Cancelled queries do not fill the queue while the encoder is busy."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
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

    play(scenario, places=3)


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
def test_a_late_query_is_refused_only_if_it_displaces_another(
    monkeypatch: pytest.MonkeyPatch, late: Sequence[int], in_time: Sequence[int], served: list[str]
) -> None:
    """After a pause of the whole process late queries are scored up to one batch."""
    clock = Clock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
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

    play(scenario, wait_s=1.0, batch=2)


def test_a_query_that_would_wait_too_long_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a second a row, and 1.2 seconds to wait: two may wait behind the batch that ends."""
    clock = Clock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
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

    play(scenario, wait_s=1.2, batch=2)


def test_single_queries_say_nothing_of_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst after slow single queries is not refused: batches take less for each row."""
    clock = Clock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        (single,) = ask(worker, 0)
        await begun(racer)
        clock.now = 5.0
        burst = ask(worker, *range(1, 9))
        await asyncio.sleep(0)
        racer.free.set()
        await asyncio.gather(single, *burst)

    play(scenario, wait_s=1.0, batch=4)


def test_closing_ends_every_waiting_request() -> None:
    """Every request that still waits when the worker closes fails, the running batch included."""
    outcomes: list[Any] = []

    async def run() -> None:
        racer = StubRacer()
        worker = EncoderWorker(
            cast("Racer", racer), queue=9, queue_s=60.0, batch=1, metrics=Metrics()
        )
        async with worker:
            tasks = ask(worker, 0, 1, 2)
            await begun(racer)
            racer.free.set()
        async with asyncio.timeout(60):
            outcomes.extend(await asyncio.gather(*tasks, return_exceptions=True))

    asyncio.run(run())
    assert len(outcomes) == 3
    assert all(isinstance(each, ScoredQuery | BaseException) for each in outcomes)


def test_rows_of_a_calibration_let_queries_go_between() -> None:
    """A long calibration is scored in slices; a query does not wait for all of them."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
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

    play(scenario)


def test_what_waits_is_tokenised_while_a_batch_is_scored() -> None:
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

    async def run() -> None:
        worker = EncoderWorker(
            cast("Racer", racer), queue=9, queue_s=60.0, batch=4, metrics=Metrics()
        )
        async with worker, asyncio.timeout(60):
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

    try:
        asyncio.run(run())
    finally:
        racer.free.set()
    kinds = [{type(text) for text in batch} for batch in racer.batches]
    assert kinds == [{str}, {Tokens}, {Tokens}, {Tokens}]


@pytest.mark.parametrize(("forward", "most"), [("lean", 32), ("transformers", 256)])
def test_on_a_gpu_rows_are_scored_in_slices_that_fill_a_batch(forward: str, most: int) -> None:
    """Of similar length, sorted 256 at a time; progress, which can end it, is between slices."""
    racer = StubRacer(backend="cuda", forward=forward)
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

    async def run() -> None:
        worker = EncoderWorker(
            cast("Racer", racer), queue=9, queue_s=60.0, batch=4, metrics=Metrics()
        )
        async with worker:
            scored = await asyncio.to_thread(worker.score_rows, rows, progress=stop)
            assert scored.scores[:, 0].tolist() == [float(row) for row in rows]
            with pytest.raises(InterruptedError):
                await asyncio.to_thread(worker.score_rows, rows, progress=stop)

    asyncio.run(run())
    assert racer.batches == expected
    before = accumulate([0, *map(len, expected[:-1])])
    assert done == [*((count, 300) for count in before), (0, 300)]


def test_rows_of_like_length_are_scored_together() -> None:
    """Else an encoder pads them, or computes them one by one; each row gets its own scores."""

    async def scenario(worker: EncoderWorker, racer: StubRacer) -> None:
        racer.free.set()
        rows = [str(number * 10 ** (number % 4)) for number in range(100, 250)]
        scored = await asyncio.to_thread(worker.score_rows, rows)
        assert scored.scores[:, 0].tolist() == [float(row) for row in rows]
        assert sorted(chain.from_iterable(racer.batches)) == sorted(rows)
        lengths = [{len(text) for text in batch} for batch in racer.batches]
        assert sum(len(found) > 1 for found in lengths) <= 3  # where one length ends

    play(scenario)


class RestingClock(Clock):
    """Scoring takes a hundredth of a second of it; rests pass at once, and are remembered."""

    def __init__(self) -> None:
        self.rests: list[float] = []

    def sleep(self, seconds: float) -> None:
        """A rest."""
        self.rests.append(seconds)
        self.now += seconds


def test_beside_live_queries_a_calibration_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as long as each slice took, but the last; alone, or later, not at all."""
    clock = RestingClock()
    monkeypatch.setattr("app.routing.encoder_worker.time", clock)

    @dataclass
    class Scoring(StubRacer):
        def score(self, queries: Sequence[str]) -> RouterScores:
            clock.now += 0.01
            return super().score(queries)

    racer = Scoring()

    async def scenario(worker: EncoderWorker) -> None:
        async def rests_of(rows: int) -> list[float]:
            clock.rests.clear()
            texts = [str(number) for number in range(rows)]
            scored = await asyncio.to_thread(worker.score_rows, texts)
            assert scored.scores[:, 0].tolist() == [float(n) for n in range(rows)]
            return clock.rests

        assert await rests_of(12) == []
        await worker.score("7")
        assert await rests_of(12) == pytest.approx([0.03] * 2)
        clock.now += 0.88  # less than a second since the query, until the first rest is over
        assert await rests_of(12) == pytest.approx([0.03])
        clock.now += 1.0
        assert await rests_of(12) == []

    async def run() -> None:
        worker = EncoderWorker(
            cast("Racer", racer), queue=9, queue_s=60.0, batch=4, metrics=Metrics()
        )
        async with worker, asyncio.timeout(10):
            await scenario(worker)

    racer.free.set()
    asyncio.run(run())


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


def test_overload_is_the_official_clients_rate_limit(serve: Serve, stub: StubEncoder) -> None:
    """The client raises RateLimitError, which its own retries understand."""
    gateway = serve(limits=PATIENT | {"queue": 1, "batch": 1})
    stub.gate = threading.Event()
    client = gateway.openai()

    def ask() -> Exception | None:
        try:
            client.chat.completions.create(model="auto", messages=user(ONE))
        except openai.APIStatusError as exc:
            return exc
        return None

    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(ask) for _ in range(8)]
        until(lambda: sum(each.done() for each in asked) == 6, 30)
        stub.gate.set()
        errors = [error for each in asked if (error := each.result())]
    assert len(errors) == 6  # one is encoded, one waits
    assert all(isinstance(error, openai.RateLimitError) for error in errors)


@pytest.mark.parametrize("fault", ["error", "slow", "nan"])
def test_a_router_that_fails_calls_the_whole_pool(
    serve: Serve, stub: StubEncoder, pool: FakePool, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A failure costs calls, never risk: the whole pool is called, certified, with the reason."""
    gateway = serve(limits={"route_timeout_s": 0.3})
    for name in POOL:  # where two agree, the third may no longer be asked
        pool.say(name, name)
    match fault:
        case "error":
            stub.error = RuntimeError("the device is gone")
        case "slow":
            stub.sleep_s = 1.0
        case _:
            nan = RouterScores(np.full((1, 3), np.nan), np.zeros(1, bool))
            monkeypatch.setattr(Racer, "score", lambda *_: nan)
    racer = gateway.chat(ONE)["racer"]
    assert sorted(racer["selected"]) == sorted(POOL)
    assert racer["certificate"]["reasons"] == ["router_failed_whole_pool"]
    assert racer["certificate"]["guarantee"]["trivial"] is True
    assert racer["certificate"]["holds"] is True
    assert racer["pool_scores"] == {}
    assert pool.models_called() == sorted(POOL)


def test_a_router_that_fails_restricts_itself_to_the_sub_pool(
    serve: Serve, stub: StubEncoder, pool: FakePool
) -> None:
    """A candidate that the request left out is not called even then."""
    gateway = serve()
    stub.error = RuntimeError("the device is gone")
    racer = gateway.chat(ONE, {"candidates": ["adder", "poet"]})["racer"]
    assert racer["selected"] == ["adder", "poet"]
    assert "speller" not in pool.models_called()


def test_a_router_that_comes_back_is_used_again(serve: Serve, stub: StubEncoder) -> None:
    """A failure is not remembered."""
    gateway = serve()
    stub.error = RuntimeError("the device is gone")
    assert len(gateway.route(ONE)["selected"]) == 3
    stub.error = None
    assert gateway.route(ONE)["selected"] == ["adder"]


def test_batches_form_under_load(serve: Serve, stub: StubEncoder) -> None:
    """Sixteen queries on a slow encoder need far fewer than sixteen batches."""
    gateway = serve(limits=PATIENT | {"decisions_kept": 0})
    before = _metric(gateway, "racer_router_batch_size_count")
    stub.gate = threading.Event()
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(gateway.route, ONE) for _ in range(16)]
        wait_until(lambda: _metric(gateway, "racer_requests_in_flight") == 16)
        stub.gate.set()
        decisions = [each.result() for each in asked]
    assert all(decision["selected"] == ["adder"] for decision in decisions)
    assert _metric(gateway, "racer_router_batch_size_count") - before <= 8


def _metric(gateway: Gateway, name: str) -> float:
    lines = gateway.get("/metrics").text.splitlines()
    return next(float(line.split(" ")[1]) for line in lines if line.startswith(f"{name} "))


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


GAP_S = 0.3


def longest_gap(gateway: Gateway, busy: Callable[[], object]) -> float:
    """The longest that ``/healthz`` took to answer while ``busy`` ran, in seconds.

    The least of six attempts: other processes of the machine may hold up some of them, and a
    loop that is blocked is blocked in each.
    """
    attempts: list[float] = []
    with ThreadPoolExecutor(1) as thread, gateway.http() as client:
        client.get("/healthz")
        while not attempts or (min(attempts) >= GAP_S and len(attempts) < 6):
            gaps: list[float] = []
            running = thread.submit(busy)
            while not running.done() or len(gaps) < 3:
                started = time.monotonic()
                assert client.get("/healthz").status_code == 200
                gaps.append(time.monotonic() - started)
                time.sleep(0.01)
            running.result()
            attempts.append(max(gaps))
    return min(attempts)


def test_a_slow_encoder_does_not_block_the_loop(serve: Serve, stub: StubEncoder) -> None:
    """While the encoder works, others are answered."""
    gateway = serve(limits=PATIENT | {"decisions_kept": 0})  # every query is scored
    pings = Pings()
    stub.meanwhile = pings.wait
    assert pings.during(gateway, lambda: [gateway.route(ONE) for _ in range(2)]) == 0


class LoopExecutor(Executor):
    """Stands in for the encoder's thread: runs each task where it is submitted."""

    def __init__(self, *_: object, **__: object) -> None:
        """Takes what a pool of threads takes."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        done = Future[Any]()
        done.set_result(fn(*args, **kwargs))
        return done


def test_a_blocked_loop_would_be_noticed(
    serve: Serve, stub: StubEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: the same encoder on the event loop is seen."""
    monkeypatch.setattr(encoder_worker, "ThreadPoolExecutor", LoopExecutor)
    gateway = serve(limits=PATIENT | {"decisions_kept": 0})  # every query is scored
    pings = Pings(limit_s=1.0)
    stub.meanwhile = pings.wait
    assert pings.during(gateway, lambda: [gateway.route(ONE) for _ in range(2)]) == 2


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that costs nothing, so that thousands of rows are quickly scored."""

    def score(_: Racer, texts: Sequence[str]) -> RouterScores:
        scores = np.random.default_rng(len(texts)).random((len(texts), 3))
        return RouterScores(scores, np.zeros(len(texts), bool))

    monkeypatch.setattr(Racer, "score", score)


NDJSON = {"content-type": "application/x-ndjson"}


def many_rows(count: int) -> bytes:
    """NDJSON of ``count`` rows."""
    right = '{"adder": true, "speller": false, "poet": false}'
    return "".join(f'{{"query": "row {i}?", "correct": {right}}}\n' for i in range(count)).encode()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", ["ndjson", "json", "file"])
def test_a_large_calibration_does_not_block_the_loop(serve: Serve, form: str) -> None:
    """20,000 rows are read, checked, scored, kept and swapped in, and pings are answered."""
    gateway = serve(calibrated=False)
    rows = many_rows(20_000)
    request: dict[str, Any] = {
        "ndjson": {"content": rows, "headers": NDJSON},
        "json": {
            "content": b'{"rows": [' + b",".join(rows.splitlines()) + b"]}",
            "headers": {"content-type": "application/json"},
        },
        "file": {"files": {"file": ("rows.jsonl", rows)}},
    }[form]
    answers: list[Any] = []
    gap = longest_gap(
        gateway,
        lambda: answers.append(
            gateway.post("/calibrate?wait=true", ADMIN_KEY, timeout=120, **request)
        ),
    )
    assert answers[0].status_code == 200, answers[0].text
    assert answers[0].json()["evidence"]["rows"] == 20_000
    assert gap < GAP_S


def test_a_large_bad_file_does_not_block_the_loop(serve: Serve) -> None:
    """Twenty thousand bad rows are looked at off the loop too."""
    gateway = serve(calibrated=False)
    rows = many_rows(20_000).replace(b"true", b"1")
    gap = longest_gap(
        gateway,
        lambda: gateway.post("/calibrate?wait=true", ADMIN_KEY, content=rows, headers=NDJSON),
    )
    assert gap < GAP_S


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


def test_a_new_sub_pool_does_not_block_the_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thresholds of a smaller pool are recomputed on a thread, each pool once."""
    gateway = serve()
    pings = Pings()
    threads = slow(monkeypatch, Calibration, "sort_scores", pings)

    def busy() -> None:
        assert [gateway.route(ONE, candidates=POOL[:2]) for _ in range(2)]

    assert pings.during(gateway, busy) == 0
    assert len(threads) == 1
