"""Stored decisions: sufficient to recompute them, without prompts and answers."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from sqlalchemy import select

from app.errors import NotFound, StoreError, StoreFull
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.decisions.writer import DecisionWriter
from app.monitoring.samples.store import SampleStore
from app.store import Store
from app.store.tables import DecisionRow, VerdictRow
from racer_core.calibration.shadow import sampling_number
from tests.kit.databases import Postgres, before_statements
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Command,
    Gateway,
    Serve,
    configure,
    running,
)
from tests.kit.monitored import MonitoredStore, decision_records, draw_scores
from tests.kit.stores import RECORD, aged, note
from tests.kit.upstream import FakePool
from tests.kit.waiting import eventually, wait_until

DATA: dict[str, Any] = {"key": "data", "counts": True}  # whose verdicts they are


# Over HTTP ------------------------------------------------------------------------------------


def seen(gateway: Gateway, decision_id: str, key: str | None = DATA_KEY) -> dict[str, object]:
    """GET /decisions/{id}, with the status checked."""
    response = gateway.get(f"/decisions/{decision_id}", key)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_decision_is_stored_as_it_was_certified(gateway: Gateway, pool: FakePool) -> None:
    """Right after the answer: its set, threshold, scores, who answered and who was returned."""
    pool.say("adder", "12")
    pool.say("speller", "12")
    answer = gateway.chat(TWO)
    racer, certificate = answer["racer"], answer["racer"]["certificate"]
    stored = seen(gateway, racer["decision_id"])
    assert stored["decision_id"] == answer["id"]
    assert set(stored["selected"]) == set(racer["selected"]) == {"adder", "speller"}
    assert stored["calibration_id"] == certificate["calibration_id"]
    assert (stored["alpha"], stored["lambda_hat"]) == (0.1, certificate["lambda_hat"])
    assert dict(zip(POOL, stored["scores"], strict=True)) == racer["pool_scores"]
    assert (stored["holds"], stored["reasons"]) == (certificate["holds"], certificate["reasons"])
    assert stored["served_by"] == answer["model"]
    assert stored["key"] == "data"
    assert stored["feedback"]["unknown"] == list(POOL)


def test_a_decision_that_is_served_again_is_stored_for_each_request(
    gateway: Gateway, pool: FakePool
) -> None:
    """Its own id, time and answers, and whether its certificate held; the rest is the same."""
    for name in POOL:
        pool.say(name, "12")
    told = gateway.route(TWO)["decision_id"]
    answered = [gateway.chat(TWO, {"explain": True})["id"] for _ in range(2)]  # waits for all
    pool.fail("adder", "500")
    failed = gateway.chat(TWO)["id"]
    records = [seen(gateway, each) for each in (told, *answered, failed)]
    assert [each["decision_id"] for each in records] == [told, *answered, failed]
    assert len({str(each["created_at"]) for each in records}) == 4
    assert records[0]["answered"] == []
    assert records[0]["served_by"] is None
    assert all("adder" in cast("list[str]", each["answered"]) for each in records[1:3])
    assert "adder" not in cast("list[str]", records[3]["answered"])
    assert [each["holds"] for each in records] == [True, True, True, False]
    own = {"decision_id", "created_at", "feedback"}
    first, second = [{n: v for n, v in each.items() if n not in own} for each in records[1:3]]
    assert first == second


@pytest.mark.parametrize("query", [ONE, UNANSWERABLE])
def test_a_decision_without_a_call_is_stored(gateway: Gateway, query: str) -> None:
    """POST /route alone, and an abstention."""
    decision = gateway.route(query)
    stored = seen(gateway, decision["decision_id"])
    assert stored["selected"] == decision["selected"]
    assert stored["served_by"] is None
    assert stored["answered"] == []


def test_neither_prompts_nor_answers_reach_the_disk(
    serve: Serve, pool: FakePool, tmp_path: Path
) -> None:
    """Neither the text of a query nor that of an answer stands in the store's file."""
    folder = tmp_path / "store"
    gateway = serve(folder=folder)
    for name in POOL:
        pool.say(name, "correct horse battery staple")
    answer = gateway.chat("What is 41 plus 73? My password is hunter2")
    assert "battery" in answer["choices"][0]["message"]["content"]
    seen(gateway, answer["id"])
    content = (folder / "racer.db").read_bytes()
    assert answer["id"].encode() in content
    assert b"hunter2" not in content
    assert b"battery" not in content


def test_a_key_sees_its_own_decisions_and_an_admin_all(serve: Serve) -> None:
    """For a data key, another key's decision and an unknown one have the same 404."""
    gateway = serve()
    admins = gateway.post("/route", ADMIN_KEY, json={"query": ONE}).json()["decision_id"]
    own = gateway.route(ONE)["decision_id"]
    for decision_id in (admins, own):
        assert seen(gateway, decision_id, ADMIN_KEY)["decision_id"] == decision_id
    refused = [gateway.get(f"/decisions/{each}") for each in (admins, "chatcmpl-none")]
    assert [each.status_code for each in refused] == [404, 404]
    messages = [each.json()["error"]["message"] for each in refused]
    assert messages[0].replace(admins, "x") == messages[1].replace("chatcmpl-none", "x")


def test_decisions_outlive_a_restart(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """What waited in memory is written before the gateway ends."""
    path = configure(tmp_path, artifact, pool.url)
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate(60)
        decisions = [gateway.route(ONE)["decision_id"] for _ in range(20)]
    with running(path, ENVIRONMENT) as gateway:
        assert [seen(gateway, each)["decision_id"] for each in decisions] == decisions


def test_readyz_says_that_decisions_wait_for_the_store(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric counts them, long before any is dropped; they are written once that works again."""
    gateway = serve()

    def refuse(*_: object) -> Any:
        raise StoreFull("the disk of the store is full; make room and try again")

    with monkeypatch.context() as patched:
        patched.setattr(DecisionStore, "add", refuse)
        made = gateway.route(ONE)["decision_id"]
        wait_until(lambda: gateway.ready().get("degraded") == ["store_writes"])
        assert "racer_store_queue_rows 1.0" in gateway.get("/metrics").text
    wait_until(lambda: "degraded" not in gateway.ready())
    assert seen(gateway, made)["decision_id"] == made
    assert "racer_store_queue_rows 0.0" in gateway.get("/metrics").text


def test_nothing_is_kept_when_the_operator_says_so(serve: Serve) -> None:
    """`watching.decisions: false`."""
    gateway = serve(watching={"decisions": False})
    decision_id = gateway.route(ONE)["decision_id"]
    assert gateway.get(f"/decisions/{decision_id}", ADMIN_KEY).status_code == 404
    assert gateway.get("/drift", ADMIN_KEY).json()["decisions"]["kept"] == 0


# What is kept ---------------------------------------------------------------------------------


@pytest.fixture
def decision_store(store: Store) -> DecisionStore:
    """A `DecisionStore` without decisions."""
    return DecisionStore(MonitoredStore(store, RECORD).store)


@pytest.mark.parametrize(
    "changes",
    [{}, {"scores": None, "neighbours": None, "lambda_hat": math.inf, "selected": ()},
     {"served_by": None, "shadow_rate": None, "group": None, "reasons": (), "answered": ()},
     {"query": "é😀\0\ud800\n'"}],
    ids=["full", "router failed", "bare", "with its query"],
)  # fmt: skip
def test_a_note_comes_back_as_it_was(
    decision_store: DecisionStore, changes: dict[str, Any]
) -> None:
    """Every field, with an infinite threshold and with what is not there."""
    stored = note(**changes)
    decision_store.add([stored], [True])
    known = decision_store.get(stored.decision_id)
    assert known.decision == stored
    assert not known.judged
    assert known.loss is None
    assert known.verdicts == {}


def test_a_batch_adds_what_is_not_stored_yet(decision_store: DecisionStore) -> None:
    """More decisions than one statement takes, some of them twice: what is stored stays."""
    made = [note() for _ in range(250)]
    decision_store.add(made[90:110], [True] * 20)
    again = [replace(each, served_by="poet") for each in made]
    decision_store.add([*again, *again[:30]], [False] * 280)
    found = [decision_store.get(each.decision_id).decision for each in made]
    assert found == [*again[:90], *made[90:110], *again[110:]]


def test_an_empty_batch_adds_nothing(decision_store: DecisionStore) -> None:
    """As when the writer is closed unused."""
    assert decision_store.add([], []) == set()


def kept_of(decision_store: DecisionStore, made: Sequence[DecisionRecord]) -> list[bool]:
    """Which of these decisions are there."""
    found: list[bool] = []
    for each in made:
        try:
            found.append(decision_store.get(each.decision_id).decision == each)
        except NotFound:
            found.append(False)
    return found


def test_old_decisions_are_deleted_with_their_verdicts(decision_store: DecisionStore) -> None:
    """Older than ``keep_days``; younger ones stay, and so do their verdicts."""
    made = [aged(days) for days in (40, 31, 29, 1)]
    decision_store.add(made, [True] * 4)
    for each in made:
        decision_store.add_verdicts(
            each.decision_id, lambda _: {"adder": True}, key="data", counts=True
        )
    assert decision_store.prune(30.0, 1_000) == 2
    assert decision_store.prune(30.0, 1_000) == 0
    assert kept_of(decision_store, made) == [False, False, True, True]
    assert decision_store.get(made[2].decision_id).counted == {"adder": True}
    decision_store.add(made[:1], [True])  # the same id again
    assert decision_store.get(made[0].decision_id).verdicts == {}


def test_no_verdict_outlives_its_decision(decision_store: DecisionStore, store: Store) -> None:
    """By age and by number, on both databases, beside other writes."""
    made = [aged(days) for days in (40, 3, 2, 1)]
    decision_store.add(made, [True] * 4)
    for each in made:
        decision_store.add_verdicts(
            each.decision_id, lambda _: {"adder": True, "poet": False}, **DATA
        )
    assert decision_store.prune(30.0, 2) == 2
    with store.transaction() as session:
        left = set(session.scalars(select(VerdictRow.decision_id)))
    assert left == {each.decision_id for each in made[2:]}


@pytest.mark.scale
def test_pruning_skips_decisions_that_feedback_has_locked(postgres: Postgres) -> None:
    """They are deleted the next time: pruning waits for no lock, so that it cannot deadlock.

    Red, once a lock was waited for long enough, when nothing is passed over.
    """
    url = postgres.create()
    made = [aged(40) for _ in range(3)]
    with Store(url) as store, Store(url) as another:
        decision_store = DecisionStore(store)
        decision_store.add(made, [True] * 3)
        with another.transaction() as judging:
            judging.get_one(DecisionRow, made[1].decision_id, with_for_update=True)
            assert decision_store.prune(30.0, 10) == 2
            assert kept_of(decision_store, made) == [False, True, False]
        assert decision_store.prune(30.0, 10) == 1


def test_gateways_that_delete_at_once_do_not_disturb_each_other(
    decision_store: DecisionStore, database: str
) -> None:
    """Four of them, while verdicts are accepted: each decision is deleted by one, and none is left.

    No verdict is refused, since there is no deadlock.
    """
    count = 6_000 if database.startswith("postgres") else 1_500  # one lock for all that write
    old, young = [aged(40) for _ in range(count)], [aged(1) for _ in range(50)]
    decision_store.add([*old, *young], [True] * (count + 50))
    ids = [each.decision_id for each in young]
    for each in ids:
        decision_store.add_verdicts(each, lambda _: {"adder": True}, key="data", counts=False)
    with Store(database) as another:
        pruning = 4 if another.is_shared else 1

        def delete(_: int) -> int:
            return sum(iter(lambda: decision_store.prune(30.0, 10_000), 0))

        with ThreadPoolExecutor(pruning + 1) as threads:
            accepting = threads.submit(
                lambda: [DecisionStore(another).accept(ids) for _ in range(10)]
            )
            deleted = sum(threads.map(delete, range(pruning)))
            accepting.result()
    assert deleted == count
    assert not any(kept_of(decision_store, old[::100]))
    assert all(decision_store.get(each).counted == {"adder": True} for each in ids)


def test_a_shadow_decision_deleted_meanwhile_has_no_label(
    decision_store: DecisionStore, store: Store, database: str
) -> None:
    """Between the look at decisions and that at verdicts, by another gateway."""
    made = [aged(days) for days in (40, 1)]
    decision_store.add(made, [True] * 2)
    for each in made:
        decision_store.add_verdicts(each.decision_id, lambda _: dict.fromkeys(POOL, True), **DATA)
    with Store(database) as another:

        def prune(statement: str) -> None:
            if "FROM verdicts" in statement:
                assert DecisionStore(another).prune(30.0, 10) == 1

        with before_statements(database, prune):
            found = list(SampleStore(store).rows())
    assert [bool(each.correct) for each in found] == [False, True]


def test_the_newest_decisions_are_kept(decision_store: DecisionStore) -> None:
    """At most ``keep_rows`` remain, for any order in the table."""
    made = [aged(days) for days in (3, 1, 4, 2)]
    decision_store.add(made, [True] * 4)
    assert decision_store.prune(30.0, 2) == 2
    assert kept_of(decision_store, made) == [False, True, False, True]


def test_many_are_deleted_a_part_at_a_time(decision_store: DecisionStore) -> None:
    """Each part holds the store briefly; in the end all old decisions are deleted."""
    decision_store.add([aged(40) for _ in range(2_500)], [True] * 2_500)
    parts = [decision_store.prune(30.0, 10_000) for _ in range(4)]
    assert parts == [1_000, 1_000, 500, 0]


def test_decisions_are_counted_by_calibration(decision_store: DecisionStore, store: Store) -> None:
    """Those of another one do not mix in."""
    decision_store.add(
        decision_records(RECORD, draw_scores(np.random.default_rng(0), 5)), [True] * 5
    )
    decision_store.add([note(calibration_id="another")], [True])
    statistics = DecisionStatistics(store)
    assert statistics.counts([RECORD.id]).decisions == 5
    without, with_verdicts = statistics.sets([RECORD.id])
    assert sum(each.count for each in without) == 5
    assert with_verdicts == []


def test_losses_of_several_rates_count_as_drawn_at_the_lowest(
    decision_store: DecisionStore, store: Store
) -> None:
    """A rate that falls as the losses do biases no estimate; the lowest counts without a draw.

    Of 300 decisions with a loss at the rate 0.8 and 300 without at 0.2, as many of each count. A
    canary's test takes all: no later rate takes one away.
    """
    key = b"secret of the draws"

    def draw(of: DecisionRecord) -> float:
        return sampling_number(key, (of.conversation or of.decision_id).encode(), of.turn or 0)

    def losses_of(rate: float, loss: float, **changes: Any) -> list[float]:
        made = [note(sampling_rate=rate, **changes) for _ in range(300)]
        drawn = [replace(each, shadow_rate=rate) for each in made if draw(each) < rate]
        decision_store.add(
            [*drawn, note(sampling_rate=rate, shadow_rate=None)], [True] * (len(drawn) + 1)
        )
        for each in drawn:
            decision_store.set_loss(each, loss)
        return [loss for each in drawn if draw(each) < 0.2]

    statistics = DecisionStatistics(store)
    many, few = losses_of(0.8, 1.0), losses_of(0.2, 0.0)
    assert sorted(statistics.losses([RECORD.id], key=key)) == [*few, *many]
    turns = losses_of(0.8, 0.5, conversation=f"{3:032x}", turn=5)
    assert sorted(statistics.losses([RECORD.id], key=key)) == [*few, *turns, *many]


# How it gets there ----------------------------------------------------------------------------


class RecordSink:
    """The target of a `DecisionWriter`; a test makes it slow or lets it fail."""

    def __init__(self) -> None:
        self.written: list[DecisionRecord] = []
        self.batches: list[int] = []
        self.dropped = 0
        self.fault: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.open = threading.Event()
        self.open.set()

    def write(self, batch: Sequence[DecisionRecord]) -> None:
        """As a store would, on a thread."""
        assert threading.current_thread() is not threading.main_thread()
        self.meanwhile()
        assert self.open.wait(20)
        if self.fault is not None:
            raise self.fault
        self.batches.append(len(batch))
        self.written.extend(batch)

    def drop(self, count: int) -> None:
        """Count what was lost."""
        self.dropped += count


def with_decision_writer(
    story: Callable[[DecisionWriter, RecordSink], Awaitable[None]], **options: Any
) -> RecordSink:
    """Run a story with a `DecisionWriter`, and close the writer."""

    async def run() -> RecordSink:
        sink = RecordSink()
        async with DecisionWriter(
            sink.write, sink.drop, **{"limit": 100, **options}
        ) as decision_writer:
            await story(decision_writer, sink)
        return sink

    return asyncio.run(run())


def several(count: int) -> list[DecisionRecord]:
    """Different decisions."""
    one = note()
    return [replace(one, decision_id=f"chatcmpl-{number}") for number in range(count)]


def test_notes_are_written_together_and_in_order() -> None:
    """One transaction for many, in batches of a bounded size; at the end nothing waits."""
    made = several(1_200)

    async def story(decision_writer: DecisionWriter, _: RecordSink) -> None:
        for each in made:
            decision_writer.add(each)

    sink = with_decision_writer(story, limit=2_000)
    assert sink.written == made
    assert sink.batches == [500, 500, 200]
    assert sink.dropped == 0


def test_notes_that_come_while_others_are_written_gather_too() -> None:
    """Under load a transaction for every few notes would cost more than the requests do."""
    made = several(60)

    async def story(decision_writer: DecisionWriter, sink: RecordSink) -> None:
        loop = asyncio.get_running_loop()
        sink.meanwhile = lambda: loop.call_soon_threadsafe(decision_writer.add, made[1])
        decision_writer.add(made[0])
        async with asyncio.timeout(60):
            await decision_writer.written(made[0].decision_id)
        sink.meanwhile = lambda: None
        for each in made[2:]:
            decision_writer.add(each)
            await asyncio.sleep(0.001)

    sink = with_decision_writer(story, gather_s=3_600.0)
    assert sink.written == made
    assert sink.batches == [1, 59]


def test_closing_waits_for_no_gathering() -> None:
    """Whatever is left after a full batch is written at once."""
    made = several(501)

    async def story(decision_writer: DecisionWriter, _: RecordSink) -> None:
        for each in made:
            decision_writer.add(each)

    assert with_decision_writer(story, limit=1_000, gather_s=3_600.0).batches == [500, 1]


def test_an_unused_decision_writer_writes_no_batch() -> None:
    """An empty batch is not written either."""

    async def story(_decision_writer: DecisionWriter, _sink: RecordSink) -> None:
        await asyncio.sleep(0)

    assert with_decision_writer(story).batches == []


def test_reading_a_decision_does_not_wait_for_others_to_gather() -> None:
    """``written`` returns once it is there, and at once for one that never waited."""

    async def story(decision_writer: DecisionWriter, sink: RecordSink) -> None:
        (made,) = several(1)
        decision_writer.add(made)
        async with asyncio.timeout(60):
            await decision_writer.written(made.decision_id)
        assert sink.written == [made]
        await decision_writer.written("chatcmpl-never")

    with_decision_writer(story, gather_s=3_600.0)


def test_add_never_waits_for_a_slow_store_and_a_full_queue_drops() -> None:
    """``add`` returns at once while the store hangs; what does not fit is counted."""

    async def story(decision_writer: DecisionWriter, sink: RecordSink) -> None:
        sink.open.clear()
        started = time.monotonic()
        for each in several(130):
            decision_writer.add(each)
            await asyncio.sleep(0)
        assert time.monotonic() - started < 5.0
        assert sink.dropped == 30
        sink.open.set()

    sink = with_decision_writer(story)
    assert len(sink.written) == 100


def test_notes_wait_for_a_store_that_cannot_be_written() -> None:
    """They are written again later, in order; reading one meanwhile is an error that says so."""
    made = several(3)

    async def story(decision_writer: DecisionWriter, sink: RecordSink) -> None:
        sink.fault = StoreError("locked")
        for each in made:
            decision_writer.add(each)
        assert (decision_writer.waiting, decision_writer.fails) == (3, False)
        with pytest.raises(StoreError):
            await decision_writer.written(made[0].decision_id)
        assert (decision_writer.waiting, decision_writer.fails) == (3, True)
        sink.fault = None
        await eventually(lambda: not decision_writer.waiting)
        assert not decision_writer.fails

    sink = with_decision_writer(story)
    assert (sink.written, sink.dropped) == (made, 0)


def test_closing_gives_up_on_a_store_that_cannot_be_written() -> None:
    """The process ends; what is lost is counted."""

    async def story(decision_writer: DecisionWriter, sink: RecordSink) -> None:
        sink.fault = StoreError("disk full")
        for each in several(7):
            decision_writer.add(each)

    sink = with_decision_writer(story)
    assert (sink.written, sink.dropped) == ([], 7)


def test_a_fault_of_our_own_loses_a_batch_and_no_more() -> None:
    """The `DecisionWriter` writes the next batch."""

    async def story(decision_writer: DecisionWriter, sink: RecordSink) -> None:
        first, second = several(2)
        sink.fault = ValueError("a bug")
        decision_writer.add(first)
        await decision_writer.written(first.decision_id)
        sink.fault = None
        decision_writer.add(second)
        await decision_writer.written(second.decision_id)

    sink = with_decision_writer(story)
    assert [each.decision_id for each in sink.written] == ["chatcmpl-1"]
    assert sink.dropped == 1


def test_settings_that_could_never_be_judged_stop_the_start(
    racer: Command, tmp_path: Path, artifact: Path
) -> None:
    """A shadow sample without kept decisions: exit code 2, and the field is named."""
    watching = {"decisions": False, "shadow_rate": 0.1}
    path = configure(tmp_path, artifact, "http://127.0.0.1:1/v1", watching=watching)
    code, _, stderr = racer("validate", "--config", path)
    assert code == 2
    assert "watching.shadow_rate needs `watching.decisions: true`" in stderr


def test_a_shadow_rate_without_calls_of_the_whole_pool_stops_the_start(
    racer: Command, tmp_path: Path, artifact: Path
) -> None:
    """Three candidates, two calls: exit code 2, and both fields are named."""
    for rate, most, code in ((0.1, 2, 2), (0.1, 3, 0), (0.0, 2, 0)):
        path = configure(
            tmp_path,
            artifact,
            "http://127.0.0.1:1/v1",
            watching={"shadow_rate": rate},
            limits={"fan_out": most},
        )
        found, _, stderr = racer("validate", "--config", path)
        assert found == code, stderr
        assert ("watching.shadow_rate" in stderr and "limits.fan_out" in stderr) == (code == 2)
