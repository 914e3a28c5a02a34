"""Stored decisions: sufficient to recompute them, without prompts and answers."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, make_url, select

from app.errors import NotFound, StoreError, StoreFull
from app.json_output import dump_json
from app.monitoring.decisions.record import DecisionRecord, RequestEnd
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.decisions.writer import DecisionWriter
from app.monitoring.samples.store import SampleStore
from app.routing.decision import AnswerGuarantee, ChosenBy, RoutingRecord
from app.routing.reasons import Remark
from app.store import Store
from app.store.tables import DecisionRow, VerdictRow
from racer_core.calibration.shadow import sampling_number
from tests.kit.databases import Postgres, before_statements
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Command,
    Gateway,
    Serve,
    configure,
)
from tests.kit.monitored import (
    MonitoredStore,
    calibration_record,
    decision_record,
    decision_records,
    draw_scores,
)
from tests.kit.stores import RECORD, aged, note, prune
from tests.kit.upstream import FakePool
from tests.kit.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio
DATA: dict[str, Any] = {"key": "data", "counts": True}  # whose verdicts they are


# Over HTTP ------------------------------------------------------------------------------------


def seen(gateway: Gateway, decision_id: str, key: str | None = DATA_KEY) -> dict[str, Any]:
    """GET /decisions/{id}, with the status checked."""
    response = gateway.get(f"/decisions/{decision_id}", key)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_decision_that_is_served_again_is_stored_for_each_request(
    gateway: Gateway, pool: FakePool
) -> None:
    """Its own id, time and answers, and whether its certificate held; the rest is the same."""
    for name in POOL:
        pool.say(name, "12")
    told = gateway.route(TWO)["decision_id"]
    answers = [gateway.chat(TWO, {"explain": True}) for _ in range(2)]  # waits for all
    answered = [each["id"] for each in answers]
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
    racer, certificate = answers[0]["racer"], answers[0]["racer"]["certificate"]
    assert set(first["selected"]) == set(racer["selected"]) == {"adder", "speller"}
    for name in ("calibration_id", "lambda_hat", "holds", "reasons"):
        assert first[name] == certificate[name]
    assert dict(zip(POOL, first["scores"], strict=True)) == racer["pool_scores"]
    assert (first["alpha"], first["served_by"], first["key"]) == (0.1, racer["served_by"], "data")
    assert seen(gateway, answered[0])["feedback"]["unknown"] == list(POOL)
    abstained = seen(gateway, gateway.route(UNANSWERABLE)["decision_id"])
    assert (abstained["selected"], abstained["served_by"], abstained["answered"]) == ([], None, [])


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


def test_old_and_surplus_decisions_are_deleted_with_their_verdicts(
    decision_store: DecisionStore, store: Store
) -> None:
    """Older than ``keep_days`` or beyond ``keep_rows``, for any order in the table."""
    made = [aged(days) for days in (3, 40, 1, 31, 4, 2)]
    for batch in (made[:4], made[4:]):
        decision_store.add(batch, [True] * len(batch))
    for each in made:
        decision_store.add_verdicts(
            each.decision_id, lambda _: {"adder": True, "poet": False}, **DATA
        )
    assert prune(decision_store, 30.0, 1_000) == 2
    assert kept_of(decision_store, made) == [True, False, True, False, True, True]
    assert prune(decision_store, 30.0, 2) == 2
    assert kept_of(decision_store, made) == [False, False, True, False, False, True]
    assert decision_store.get(made[2].decision_id).counted == {"adder": True, "poet": False}
    with store.transaction() as session:
        left = set(session.scalars(select(VerdictRow.decision_id)))
    assert left == {made[2].decision_id, made[5].decision_id}
    decision_store.add([aged(40) for _ in range(2_500)], [True] * 2_500)
    parts = [prune(decision_store, 30.0, 10_000) for _ in range(4)]
    assert parts == [1_000, 1_000, 500, 0], "each holds the store briefly"


@pytest.mark.scale
def test_pruning_skips_decisions_that_feedback_has_locked(postgres: Postgres) -> None:
    """They are deleted the next time: pruning waits for no lock, so that it cannot deadlock."""
    url = postgres.create()
    made = [aged(40) for _ in range(3)]
    with Store(url) as store, Store(url) as another:
        decision_store = DecisionStore(store)
        decision_store.add(made, [True] * 3)
        with another.transaction() as judging:
            judging.get_one(DecisionRow, made[1].decision_id, with_for_update=True)
            assert prune(decision_store, 30.0, 10) == 2
            assert kept_of(decision_store, made) == [False, True, False]
        assert prune(decision_store, 30.0, 10) == 1


def test_gateways_that_delete_at_once_do_not_disturb_each_other(
    decision_store: DecisionStore, database: str
) -> None:
    """Each is deleted by one of four, and no verdict that is accepted meanwhile is lost."""
    count = 6_000 if database.startswith("postgres") else 1_500  # one lock for all that write
    old, young = [aged(40) for _ in range(count)], [aged(1) for _ in range(50)]
    decision_store.add([*old, *young], [True] * (count + 50))
    ids = [each.decision_id for each in young]
    for each in ids:
        decision_store.add_verdicts(each, lambda _: {"adder": True}, key="data", counts=False)
    with Store(database) as another:
        pruning = 4 if another.is_shared else 1

        def delete(_: int) -> int:
            return sum(iter(lambda: prune(decision_store, 30.0, 10_000), 0))

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

        def prune_meanwhile(statement: str) -> None:
            if "FROM verdicts" in statement:
                assert prune(DecisionStore(another), 30.0, 10) == 1

        with before_statements(database, prune_meanwhile):
            found = list(SampleStore(store).rows())
    assert [bool(each.correct) for each in found] == [False, True]


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
    """A rate that falls as the losses do biases no estimate; the lowest counts without a draw."""
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


@asynccontextmanager
async def writing(**options: Any) -> AsyncGenerator[tuple[DecisionWriter, RecordSink]]:
    """A `DecisionWriter`, which is closed at the end."""
    sink = RecordSink()
    async with DecisionWriter(sink.write, sink.drop, **{"limit": 100, **options}) as writer:
        yield writer, sink


def several(count: int) -> list[DecisionRecord]:
    """Different decisions."""
    one = note()
    return [replace(one, decision_id=f"chatcmpl-{number}") for number in range(count)]


async def test_notes_are_written_together_and_in_order() -> None:
    """In batches of a bounded size; closing waits for no gathering."""
    made = several(1_201)
    async with writing(limit=2_000, gather_s=3_600.0) as (decision_writer, sink):
        for each in made:
            decision_writer.add(each)
    assert sink.written == made
    assert (sink.batches, sink.dropped) == ([500, 500, 201], 0)
    async with writing() as (_, sink):
        pass
    assert sink.batches == []


async def test_notes_that_come_while_others_are_written_gather_too() -> None:
    """Reading a decision does not wait for others to gather, nor for one that never waited."""
    made = several(60)
    async with writing(gather_s=3_600.0) as (decision_writer, sink):
        loop = asyncio.get_running_loop()
        sink.meanwhile = lambda: loop.call_soon_threadsafe(decision_writer.add, made[1])
        decision_writer.add(made[0])
        async with asyncio.timeout(60):
            await decision_writer.written(made[0].decision_id)
            assert sink.written == made[:1]
            await decision_writer.written("chatcmpl-never")
        sink.meanwhile = lambda: None
        for each in made[2:]:
            decision_writer.add(each)
            await asyncio.sleep(0.001)
    assert sink.written == made
    assert sink.batches == [1, 59]


async def test_add_never_waits_for_a_slow_store_and_a_full_queue_drops() -> None:
    """``add`` returns while the store hangs; what does not fit is counted."""
    async with writing() as (decision_writer, sink):
        sink.open.clear()
        for each in several(130):
            decision_writer.add(each)
            await asyncio.sleep(0)
        assert sink.dropped == 30
        sink.open.set()
    assert len(sink.written) == 100


async def test_notes_wait_for_a_store_that_cannot_be_written() -> None:
    """They are written later, in order; reading one meanwhile is an error; closing gives up."""
    made = several(10)
    async with writing() as (decision_writer, sink):
        sink.fault = StoreError("locked")
        for each in made[:3]:
            decision_writer.add(each)
        assert (decision_writer.waiting, decision_writer.fails) == (3, False)
        with pytest.raises(StoreError):
            await decision_writer.written(made[0].decision_id)
        assert (decision_writer.waiting, decision_writer.fails) == (3, True)
        sink.fault = None
        await eventually(lambda: not decision_writer.waiting)
        assert not decision_writer.fails
        sink.fault = StoreError("disk full")
        for each in made[3:]:
            decision_writer.add(each)
    assert (sink.written, sink.dropped) == (made[:3], 7)


async def test_a_fault_of_our_own_loses_a_batch_and_no_more() -> None:
    """The `DecisionWriter` writes the next batch."""
    first, second = several(2)
    async with writing() as (decision_writer, sink):
        sink.fault = ValueError("a bug")
        decision_writer.add(first)
        await decision_writer.written(first.decision_id)
        sink.fault = None
        decision_writer.add(second)
        await decision_writer.written(second.decision_id)
    assert (sink.written, sink.dropped) == ([second], 1)


def test_settings_that_could_never_be_judged_stop_the_start(
    racer: Command, tmp_path: Path, artifact: Path
) -> None:
    """A sample without kept decisions, or beyond the fan-out; the fields are named."""
    url = "http://127.0.0.1:1/v1"
    for watching, most, words in (
        ({"decisions": False, "shadow_rate": 0.1}, 3, "needs `watching.decisions: true`"),
        ({"shadow_rate": 0.1}, 2, "limits.fan_out"),
        ({"shadow_rate": 0.1}, 3, ""),
        ({"shadow_rate": 0.0}, 2, ""),
    ):
        path = configure(tmp_path, artifact, url, watching=watching, limits={"fan_out": most})
        code, _, stderr = racer("validate", "--config", path)
        assert code == (2 if words else 0), stderr
        assert ("watching.shadow_rate" in stderr) == bool(words)
        assert words in stderr


# Records: the requests of a decision share its part -----------------------------------------------

names = st.text(max_size=8) | st.just("de\ud800\0\n'\"")
sets = st.lists(names, max_size=4).map(tuple)
numbers = st.floats(allow_nan=False, allow_infinity=False)
promise = AnswerGuarantee(
    reference="vote",
    equality="exact",
    max_rounds=2,
    order=("adder", "poet"),
    borders=(1, 2),
    expected_calls=1.5,
    trivial=True,
)


def optionally(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value or none."""
    return st.none() | values


ROUTING: Mapping[str, st.SearchStrategy[Any]] = {
    "calibration_id": optionally(names),
    "group": optionally(names),
    "alpha": st.floats(0.0, 1.0),
    "score": names,
    "lambda_hat": numbers | st.just(math.inf),
    "pool": sets,
    "selected": sets,
    "null_selected": st.booleans(),
    "fingerprint": st.binary(min_size=16, max_size=16).map(bytes.hex),
    "scores": optionally(st.lists(numbers, max_size=4).map(tuple)),
    "neighbours": optionally(st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple)),
    "projection": optionally(st.lists(numbers, max_size=4).map(tuple)),
    "chosen_by": st.sampled_from(ChosenBy),
    "repeated": st.booleans(),
    "population": optionally(st.integers(0, 9)),
    "remarks": optionally(st.lists(st.sampled_from(Remark), max_size=2).map(tuple)),
}
REQUEST: Mapping[str, st.SearchStrategy[Any]] = {
    "decision_id": names,
    "created_at": names,
    "key": names,
    "holds": st.booleans(),
    "reasons": sets,
    "served_by": optionally(names),
    "answered": sets,
    "sampling_rate": optionally(numbers),
    "shadow_rate": optionally(numbers),
    "sampled_under": optionally(names),
    "answer_setup": optionally(names),
    "conversation": optionally(names),
    "turn": optionally(st.integers(1, 9)),
    "outcome": st.sampled_from(RequestEnd),
    "query": optionally(names),
    "group_by": optionally(names),
    "sequence": optionally(st.just(promise)),
    "cost": optionally(st.dictionaries(names, numbers, max_size=2)),
}
routings, requests = st.fixed_dictionaries(dict(ROUTING)), st.fixed_dictionaries(dict(REQUEST))


def without_costs(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same; of candidates without prices there is no word of costs."""
    return {name: each for name, each in values.items() if name != "cost" or each is not None}


def document(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of these fields: all but the neighbours, which have a column."""
    shown = without_costs(values) | {"neighbours": None}
    if math.isinf(values["lambda_hat"]):
        shown["lambda_hat"] = None
    if values["sequence"] is not None:
        shown["sequence"] = values["sequence"].as_json()
    return json.loads(dump_json(shown))


@given(routing=routings, request=requests)
def test_a_record_of_a_decision_equals_one_made_field_by_field(
    routing: dict[str, Any], request: dict[str, Any]
) -> None:
    """In every field, in what is stored, in what is shown and as it is read again."""
    part = RoutingRecord(**routing)
    record = DecisionRecord.of(part, **request)
    plain = DecisionRecord(**routing, **request)
    assert record == plain
    assert part == RoutingRecord(**routing), "the request leaves no field of its own"
    assert vars(part).keys() == {*routing, "stored"}
    assert record.stored == plain.stored
    assert json.loads(record.document()) == document(routing | request)
    assert record.document() == plain.document()
    assert DecisionRecord.from_document(record.document(), record.neighbours) == plain
    assert record.as_json() == plain.as_json()
    assert record.as_json().keys() == (routing | without_costs(request)).keys()


@given(routing=routings, request=requests, other=routings)
def test_a_changed_record_is_stored_as_it_is_now(
    routing: dict[str, Any], request: dict[str, Any], other: dict[str, Any]
) -> None:
    """The stored form of the decision is not taken over by a record with other fields."""
    record = replace(DecisionRecord.of(RoutingRecord(**routing), **request), **other)
    assert json.loads(record.document()) == document(request | other)
    assert record.stored == RoutingRecord(**other).stored


# Queries that were asked many times: plans say how many rows PostgreSQL reads ---------------------


ASKED_UNDER = calibration_record()
SCORES = [0.9, 0.5, 0.1]
REPEATED = "ff" * 16
REPEATS = 20_000


@pytest.fixture
def store_url(postgres: Postgres) -> str:
    """An empty database."""
    return postgres.create()


def asked(fingerprint: str = REPEATED, **changes: Any) -> DecisionRecord:
    """A decision on a query."""
    return decision_record(ASKED_UNDER, SCORES, fingerprint=fingerprint, **changes)


@contextmanager
def plans(url: str) -> Generator[list[dict[str, Any]]]:
    """The plans of the statements that read decisions, with what they read."""
    found: list[dict[str, Any]] = []
    database = make_url(url).database

    def explain(
        connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> None:
        is_read = statement.startswith("SELECT") and "FROM decisions" in statement
        if connection.engine.url.database == database and is_read:
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            row = cursor.fetchone()
            assert row is not None
            found.append(row[0][0]["Plan"])
            cursor.close()

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", explain)


def rows_read(plan: dict[str, Any]) -> float:
    """Rows and index entries that a plan looked at, those that it filtered out included."""
    below = sum(rows_read(each) for each in plan.get("Plans", ()))
    if not {"Relation Name", "Index Name"} & plan.keys():
        return below
    filtered = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    return below + plan["Actual Loops"] * (plan["Actual Rows"] + filtered)


@pytest.fixture
def repeated(store_url: str) -> Iterator[DecisionStore]:
    """A store with one query that was asked many times, and as many that were asked once."""
    with Store(store_url) as store:
        store.add(ASKED_UNDER, activate=True)
        decisions = DecisionStore(store)
        decisions.add([asked(decision_id="d")], [True])
        columns = [each.name for each in DecisionRow.__table__.columns]
        several = "INSERT INTO decisions ({}) SELECT {} FROM decisions, generate_series(1, {}) AS n"
        changes = {
            "earlier": {"calibration_id": "'cal-0'"},  # those of another come first
            "again": {},
            "others": {"fingerprint": "md5(n::text)"},
        }
        with psycopg.connect(store_url) as connection:
            for name, change in changes.items():
                chosen = {each: each for each in columns} | {"id": f"'{name}' || n"} | change
                statement = several.format(
                    ", ".join(columns), ", ".join(chosen[each] for each in columns), REPEATS
                )
                connection.execute(f"{statement} WHERE id = 'd'".encode())
        yield decisions


@pytest.mark.scale
@pytest.mark.parametrize("is_analysed", [True, False])
def test_a_batch_reads_one_earlier_decision_of_each_query(
    repeated: DecisionStore, store_url: str, *, is_analysed: bool
) -> None:
    """However many there are, and whether or not the planner has statistics of them."""
    if is_analysed:
        with psycopg.connect(store_url, autocommit=True) as connection:
            connection.execute("ANALYZE decisions")
    batch = [asked(REPEATED if number == 7 else f"{number:032x}") for number in range(20)]
    with plans(store_url) as found:
        assert repeated.add(batch, [True] * 20) == {("", REPEATED)}
    assert len(found) == 1
    assert rows_read(found[0]) <= 20, json.dumps(found, indent=1)


@pytest.mark.scale
def test_a_judged_query_does_not_read_its_earlier_decisions(
    repeated: DecisionStore, store_url: str
) -> None:
    """Only those with a loss: red when all of them are read, or locked."""
    pair = [asked(shadow_rate=1.0) for _ in range(2)]
    repeated.add(pair, [True] * 2)
    with plans(store_url) as found:
        for each in pair:
            repeated.set_loss(each, 1.0)
    assert sum(map(rows_read, found)) <= 4, json.dumps(found, indent=1)
    assert [repeated.get(each.decision_id).loss for each in pair] == [1.0, None]


@pytest.mark.scale
def test_a_query_judged_at_two_gateways_at_once_has_one_loss(store_url: str) -> None:
    """Thirty queries, each with two decisions: red when the two do not wait for each other."""
    with Store(store_url) as one, Store(store_url) as other:
        one.add(ASKED_UNDER, activate=True)
        stores = [DecisionStore(each) for each in (one, other)]
        for number in range(30):
            pair = [asked(f"{number:032x}", shadow_rate=1.0) for _ in stores]
            stores[0].add(pair, [True] * 2)
            together = threading.Barrier(2)

            def judge(place: int, pair: Any = pair, together: Any = together) -> None:
                together.wait(30)
                stores[place].set_loss(pair[place], 1.0)

            with ThreadPoolExecutor(2) as threads:
                for each in [threads.submit(judge, place) for place in range(2)]:
                    each.result()
            losses = [stores[0].get(each.decision_id).loss for each in pair]
            assert sorted(losses, key=str) == [1.0, None]
