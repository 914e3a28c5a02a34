"""Calibration jobs: progress, queueing and cancelling."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from app.calibrations import jobs, service
from app.calibrations.jobs import Progress
from app.errors import GatewayUnreachable
from app.http.connection import ConnectionConfig
from app.store import Store
from app.tools import gateway_client
from app.tools.gateway_client import GatewayClient
from app.wire.sse import EventReader
from racer_core.racer import Racer
from racer_core.trained_router import RouterScores
from tests.kit.connections import dialled, request
from tests.kit.gateway import ADMIN_KEY, ONE, Command, Gateway, Restart, Serve
from tests.kit.network import balancer
from tests.kit.waiting import until, wait_until

SMALL_ROWS = 100
LARGE_ROWS = SMALL_ROWS + 1


@pytest.fixture(autouse=True)
def few_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration of more than ``SMALL_ROWS`` rows becomes a job."""
    assert jobs.SMALL_ROWS == 2_000
    queue = functools.partial(jobs.JobQueue, small_rows=SMALL_ROWS)
    monkeypatch.setattr(service, "JobQueue", queue)


def many(count: int) -> bytes:
    """NDJSON of ``count`` rows."""
    right = '{"adder": true, "speller": false, "poet": false}'
    return "".join(f'{{"query": "row {i}?", "correct": {right}}}\n' for i in range(count)).encode()


class Brake:
    """A router that scores a slice of a calibration only when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.begun = threading.Event()
        self.scored = 0
        score = Racer.score

        def braked(racer: Racer, texts: Sequence[str]) -> RouterScores:
            if not any(text.startswith("row ") for text in texts):
                return score(racer, texts)
            self.begun.set()
            assert self.free.wait(30)
            self.scored += len(texts)
            rng = np.random.default_rng(self.scored)
            return RouterScores(rng.random((len(texts), 3)), np.zeros(len(texts), bool))

        monkeypatch.setattr(Racer, "score", braked)


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brake]:
    """Rows of calibrations are held until ``free`` is set; queries are not."""
    made = Brake(monkeypatch)
    yield made
    made.free.set()


@pytest.fixture
def cancelling(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a job is told to end."""
    told, cancel = threading.Event(), Progress.cancel

    def noting(progress: Progress) -> bool:
        is_cancelled = cancel(progress)
        told.set()
        return is_cancelled

    monkeypatch.setattr(Progress, "cancel", noting)
    return told


def send(gateway: Gateway, data: bytes, **query: Any) -> httpx2.Response:
    """Upload NDJSON."""
    headers, params = {"content-type": "application/x-ndjson"}, query
    return gateway.post("/calibrate", ADMIN_KEY, content=data, headers=headers, params=params)


def started(response: httpx2.Response) -> str:
    """The path of the job that an upload was answered with."""
    assert response.status_code == 202, response.text
    job = response.json()["job"]
    assert response.headers["location"] == f"/calibrations/jobs/{job['id']}"
    assert job["status"] in ("waiting", "running")
    return response.headers["location"]


def job_at(gateway: Gateway, place: str) -> dict[str, Any]:
    """The job's current state."""
    response = gateway.get(place, ADMIN_KEY)
    assert response.status_code == 200, response.text
    return response.json()["job"]


def ended(gateway: Gateway, place: str) -> dict[str, Any]:
    """A job once it has ended."""
    wait_until(lambda: job_at(gateway, place)["status"] not in ("waiting", "running"), 60)
    return job_at(gateway, place)


def delete(gateway: Gateway, place: str) -> httpx2.Response:
    """Ask for the end of a job."""
    with gateway.http(ADMIN_KEY) as client:
        return client.delete(place)


def stored_ids(gateway: Gateway) -> list[str]:
    """The ids of what is stored."""
    listed = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
    return [each["id"] for each in listed]


# Now or later ---------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["rows", "bytes"])
def test_a_large_set_answers_with_a_job(serve: Serve, brake: Brake, why: str) -> None:
    """More rows, or more bytes: 202, then the result where the job is."""
    gateway = serve()
    data = many(LARGE_ROWS)
    if why == "bytes":
        padding = '"padding": "' + "x" * 100_000 + '", '
        data = b"".join(
            line.replace(b"{", b"{" + padding.encode(), 1) + b"\n" for line in many(50).splitlines()
        )
    place = started(send(gateway, data))
    assert gateway.ready()["calibration"] == stored_ids(gateway)[0]
    brake.free.set()
    job = ended(gateway, place)
    assert (job["status"], job["error"]) == ("done", None)
    assert job["result"]["active"] is True
    assert gateway.ready()["calibration"] == job["result"]["id"] == stored_ids(gateway)[0]


def test_waiting_can_be_asked_for_and_done_without(serve: Serve) -> None:
    """Up to ``SMALL_ROWS`` rows there is no job; ``wait`` overrides the size, both ways."""
    gateway = serve(calibrated=False)
    assert send(gateway, many(SMALL_ROWS)).json()["evidence"]["rows"] == SMALL_ROWS
    assert send(gateway, many(LARGE_ROWS), wait="true").status_code == 200
    place = started(send(gateway, many(20), wait="false"))
    job = ended(gateway, place)
    assert job["status"] == "done"
    assert delete(gateway, place).status_code == 409  # it is finished, and stays
    assert job["result"]["id"] == stored_ids(gateway)[0]
    response = send(gateway, many(20), wait="perhaps")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "wait")


def test_the_job_has_the_error_of_its_rows(serve: Serve) -> None:
    """The error that a small upload would have had, with its status; nothing is kept."""
    gateway = serve(calibrated=False)
    place = started(send(gateway, many(3) + b'{"query": "half', wait="false"))
    job = ended(gateway, place)
    assert (job["status"], job["result"]) == ("failed", None)
    assert (job["error"]["status"], job["error"]["code"]) == (422, "invalid_rows")
    assert "line 4: not JSON" in job["error"]["message"]
    assert stored_ids(gateway) == []


def test_the_error_of_an_unknown_job_says_where_to_look(gateway: Gateway) -> None:
    """After a restart a job is gone; what it stored is not."""
    for response in (
        gateway.get("/calibrations/jobs/job-1", ADMIN_KEY),
        gateway.get("/calibrations/jobs/job-1/events", ADMIN_KEY),
        delete(gateway, "/calibrations/jobs/job-1"),
    ):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "job_not_found"
        assert "GET /calibrations" in response.json()["error"]["message"]


# How far it is --------------------------------------------------------------------------------


def test_events_report_every_phase(serve: Serve, brake: Brake) -> None:
    """From reading to storing, rows counted, until the result; then the stream ends."""
    gateway = serve(calibrated=False)
    place = started(send(gateway, many(3_000), wait="false"))
    seen: list[dict[str, Any]] = []
    reader = EventReader()
    with gateway.http(ADMIN_KEY) as client, client.stream("GET", f"{place}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for chunk in response.iter_bytes():
            seen += [json.loads(each)["job"] for each in reader.feed(chunk)]
            if seen[-1]["phase"] == "scoring":
                brake.free.set()
    assert seen[-1]["status"] == "done"
    assert seen[-1]["result"]["evidence"]["rows"] == 3_000
    phases = list(dict.fromkeys(each["phase"] for each in seen))
    order = ["waiting", "reading", "scoring", "thresholds", "storing"]
    assert phases == [phase for phase in order if phase in phases]
    assert {"scoring", "storing"} <= set(phases)
    counts = [(each["done"], each["total"]) for each in seen if each["phase"] == "scoring"]
    assert {total for _, total in counts} == {3_000}
    assert [done for done, _ in counts] == sorted(done for done, _ in counts)
    assert len(seen) < 500, "not one event a slice"


def test_queries_are_answered_while_a_job_scores(serve: Serve, brake: Brake) -> None:
    """By the calibration of before, which the job has not touched."""
    gateway = serve()
    active = gateway.ready()["calibration"]
    place = started(send(gateway, many(2_500)))
    assert brake.begun.wait(30)
    brake.free.set()
    answered = 0
    while job_at(gateway, place)["status"] == "running":
        decision = gateway.route(ONE)
        assert decision["selected"]
        if job_at(gateway, place)["status"] == "running":
            assert decision["certificate"]["calibration_id"] == active
            answered += 1
    assert answered > 0
    assert ended(gateway, place)["status"] == "done"


# Cancelling -----------------------------------------------------------------------------------


def test_cancelling_changes_nothing(
    serve: Serve, brake: Brake, cancelling: threading.Event
) -> None:
    """In the middle of scoring: the job ends at the next slice; asking again is no error."""
    gateway = serve()
    before, active = stored_ids(gateway), gateway.ready()
    place = started(send(gateway, many(3_000)))
    assert brake.begun.wait(30)
    with ThreadPoolExecutor(1) as thread:
        cancelled = thread.submit(delete, gateway, place)
        assert cancelling.wait(30)
        brake.free.set()
        response = cancelled.result()
    assert response.status_code == 200, response.text
    job = response.json()["job"]
    assert (job["status"], job["result"]) == ("cancelled", None)
    assert job["error"]["code"] == "job_cancelled"
    assert brake.scored < 100
    assert (stored_ids(gateway), gateway.ready()) == (before, active)
    assert delete(gateway, place).status_code == 200


def test_one_that_waits_ends_at_once_with_its_upload() -> None:
    """Also where it had no time to begin to wait. Others keep their turns."""

    async def test() -> None:
        queue, free, ran = jobs.JobQueue(), asyncio.Event(), list[str]()

        def work(name: str) -> jobs.Work:
            async def run(progress: Progress) -> dict[str, Any]:
                ran.append(f"{name} begins")
                progress.raise_if_cancelled()
                await free.wait()
                ran.append(f"{name} ends")
                return {}

            return run

        first = queue.submit(work("first"), "", 0)
        second = queue.submit(work("second"), "", 0)
        await asyncio.sleep(0)
        third = queue.submit(work("third"), "", 0)
        fourth = queue.submit(work("fourth"), "", 0)
        async with asyncio.timeout(60):
            for each in (second, third):
                assert (await queue.cancel(each.id)).status == "cancelled"
        assert sorted(ran) == ["first begins", "second begins", "third begins"]  # to clean up
        assert first.status == "running"
        free.set()
        while not fourth.ended:
            await fourth.changed()
        assert (first.status, fourth.status) == ("done", "done")
        assert ran[-3:] == ["first ends", "fourth begins", "fourth ends"]
        await queue.close()

    asyncio.run(test())


def test_waiting_for_a_cancelled_job_is_a_conflict(
    serve: Serve, brake: Brake, cancelling: threading.Event
) -> None:
    """409 instead of a result."""
    gateway = serve()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(send, gateway, many(3_000), wait="true")
        assert brake.begun.wait(30)
        (job,) = gateway.get("/calibrations/jobs", ADMIN_KEY).json()["data"][:1]
        place = f"/calibrations/jobs/{job['id']}"
        with ThreadPoolExecutor(1) as other:
            cancelled = other.submit(delete, gateway, place)
            assert cancelling.wait(30)
            brake.free.set()
            assert cancelled.result().status_code == 200
        response = waiting.result()
    assert (response.status_code, response.json()["error"]["code"]) == (409, "job_cancelled")


def test_a_job_that_is_being_stored_cannot_be_cancelled(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error never says that nothing was changed when something was."""
    gateway = serve(calibrated=False)
    add, held = Store.add, threading.Event()

    def slowly(*given: Any, **options: Any) -> None:
        assert held.wait(60)
        add(*given, **options)

    monkeypatch.setattr(Store, "add", slowly)
    place = started(send(gateway, many(20), wait="false"))
    while job_at(gateway, place)["phase"] != "storing":
        time.sleep(0.01)
    refused = delete(gateway, place)
    held.set()
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert ended(gateway, place)["status"] == "done"
    assert len(stored_ids(gateway)) == 1


# The queue ------------------------------------------------------------------------------------


def test_the_queue_is_short(serve: Serve, brake: Brake) -> None:
    """One runs, eight wait; one more is 429 with ``retry-after``, and those go on."""
    gateway = serve(limits={"route_timeout_s": 0.3})  # the brake holds the router's one thread
    waiting = [started(send(gateway, many(LARGE_ROWS))) for _ in range(jobs.MAX_WAITING + 1)]
    response = send(gateway, many(10))
    assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")
    assert response.headers["retry-after"] == "1"
    assert gateway.route(ONE)["selected"]
    brake.free.set()
    assert {ended(gateway, place)["status"] for place in waiting} == {"done"}
    assert send(gateway, many(10)).status_code == 200


@contextmanager
def half_sent(gateway: Gateway, count: int, size: int) -> Generator[list[socket.socket]]:
    """Uploads of which this many bytes have come, all read by the gateway, and no more follow."""
    head = request(
        f"content-length: {64 * 2**20}",
        "content-type: text/csv",
        f"authorization: Bearer {ADMIN_KEY}",
        path="/calibrate",
        host="host: localhost",
    )
    with ExitStack() as stack:
        made = [stack.enter_context(dialled(gateway)) for _ in range(count)]
        for each in made:
            each.sendall(head + b"x" * size)
        wait_until(lambda: gateway.metric("racer_requests_in_flight") == count)
        yield made
    wait_until(lambda: gateway.metric("racer_requests_in_flight") == 0)


def test_half_sent_uploads_keep_no_place_from_a_finished_one(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones take none; large ones those of large uploads, until they end."""
    monkeypatch.setattr(jobs, "SMALL_UPLOAD_BYTES", 2**16)
    patient = functools.partial(ConnectionConfig, body_window_s=300)
    monkeypatch.setattr("app.server.ConnectionConfig", patient)
    gateway = serve(calibrated=False)
    large = many(3_000)
    assert len(large) > 2**16
    with half_sent(gateway, 2 * jobs.MAX_WAITING, 100):
        assert send(gateway, many(10)).status_code == 200
    with half_sent(gateway, jobs.MAX_LARGE, 2**17) as stalled:
        wait_until(lambda: send(gateway, large).status_code == 429)  # all have their places
        assert send(gateway, many(10)).status_code == 200
        stalled[0].close()
        wait_until(lambda: send(gateway, large).status_code == 202)


def test_closing_ends_what_runs(
    restart: Restart, brake: Brake, cancelling: threading.Event
) -> None:
    """A job that is cut short by the end of the gateway has changed nothing."""
    with restart() as gateway:
        started(send(gateway, many(5_000), wait="false"))
        assert brake.begun.wait(30)
        closing = threading.Thread(target=lambda: cancelling.wait(30) and brake.free.set())
        closing.start()
    closing.join()
    with restart() as gateway:
        assert stored_ids(gateway) == []


# The command line -----------------------------------------------------------------------------


@contextmanager
def two_processes(serve: Serve, folder: Path) -> Iterator[ProcessPair]:
    """Two gateways on one store: the second one gets two of three requests in turn."""
    gateways = tuple(serve(calibrated=False, folder=folder) for _ in range(2))
    urls, seen = [gateways[n].url for n in (0, 1, 1)], list[tuple[str, str, int]]()
    with balancer(urls, seen) as url:
        yield ProcessPair(url, gateways, urls, seen)


@dataclass(frozen=True)
class ProcessPair:
    """What is behind a balancer, and what went through it."""

    url: str
    gateways: tuple[Gateway, ...]
    urls: list[str]
    seen: list[tuple[str, str, int]]  # method, path and status

    def misses(self, method: str) -> int:
        """Requests about a job that reached a process which does not know it."""
        return sum(status == 404 and at == method for at, _, status in self.seen)


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that misses a job asks again soon."""
    monkeypatch.setattr(gateway_client, "POLL_S", 0.01)


@pytest.mark.usefixtures("in_a_hurry")
def test_a_job_is_found_again_behind_a_balancer(
    serve: Serve, racer: Command, tmp_path: Path
) -> None:
    """Two of three requests reach a process without it. Fails when a miss is an error."""
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(many(4_000))
    with two_processes(serve, tmp_path / "both") as there:
        code, out, stderr = racer(
            "calibrate", rows, "--url", there.url, "--key", ADMIN_KEY, "--json"
        )
        assert code == 0, stderr
        assert there.misses("GET") > 0
        assert stored_ids(there.gateways[0]) == [json.loads(out)["id"]]


@pytest.mark.usefixtures("in_a_hurry")
def test_an_interrupt_cancels_the_job_behind_a_balancer(
    serve: Serve, tmp_path: Path, brake: Brake, cancelling: threading.Event
) -> None:
    """DELETE reaches the other process twice, and then the job."""
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(many(4_000))
    with two_processes(serve, tmp_path / "both") as there:
        first, *others = there.urls

        def go_on() -> None:
            wait_until(lambda: there.misses("DELETE") >= 2)
            there.urls[:] = [first]
            if cancelling.wait(30):
                brake.free.set()

        def interrupted(phase: str, done: int, total: int) -> None:
            if phase == "scoring":
                there.urls[:] = others
                threading.Thread(target=go_on).start()
                raise KeyboardInterrupt

        with GatewayClient(there.url, ADMIN_KEY) as client, pytest.raises(KeyboardInterrupt):
            client.calibrate(rows, {}, interrupted)
        assert there.misses("DELETE") >= 2
        (job,) = there.gateways[0].get("/calibrations/jobs", ADMIN_KEY).json()["data"]
        assert job["status"] == "cancelled"
        assert stored_ids(there.gateways[0]) == []


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize("interrupts", [False, True])
def test_a_job_that_is_never_found_again_may_go_on(
    serve: Serve, tmp_path: Path, brake: Brake, monkeypatch: pytest.MonkeyPatch, interrupts: bool
) -> None:
    """The command looks for it a while, and says how to see what came of it."""
    monkeypatch.setattr(gateway_client, "LOOK_FOR_S", 2.0)
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(many(4_000))
    with two_processes(serve, tmp_path / "both") as there:

        def elsewhere(phase: str, done: int, total: int) -> None:
            there.urls[:] = there.urls[1:]
            if interrupts:
                raise KeyboardInterrupt

        with (
            GatewayClient(there.url, ADMIN_KEY) as client,
            pytest.raises(GatewayUnreachable) as caught,
        ):
            client.calibrate(rows, {}, elsewhere)
        assert "may still go on" in str(caught.value)
        assert f"racer calibrations list --url {there.url}" in str(caught.value)
        assert there.misses("DELETE" if interrupts else "GET") > 0
        brake.free.set()
        place = next(path for at, path, status in there.seen if at == "GET" and status == 200)
        assert ended(there.gateways[0], place)["status"] == "done"


def test_a_packed_file_is_unpacked_on_the_way(serve: Serve, racer: Command, tmp_path: Path) -> None:
    """The gateway takes nothing compressed; the command does."""
    gateway = serve(calibrated=False)
    rows, at = tmp_path / "rows.jsonl.gz", ["--url", gateway.url, "--key", ADMIN_KEY, "--json"]
    rows.write_bytes(gzip.compress(many(40)))
    code, out, _ = racer("calibrate", rows, *at)
    assert (code, json.loads(out)["evidence"]["rows"]) == (0, 40)
    rows.write_bytes(gzip.compress(many(40))[:-9])
    assert racer("calibrate", rows, *at)[0] == 1


# The store ------------------------------------------------------------------------------------


@contextmanager
def small_disk(pages: int) -> Iterator[None]:
    """Limit the pages of every database that is opened meanwhile."""

    def limit(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)


def test_a_full_disk_is_insufficient_storage(serve: Serve) -> None:
    """507, nothing is changed, and the gateway goes on with what it had."""
    with small_disk(60):
        gateway = serve()
        before, active = stored_ids(gateway), gateway.ready()
        for _ in range(20):
            response = send(gateway, many(1_000), wait="true")
            if response.status_code != 200:
                break
            before, active = stored_ids(gateway), gateway.ready()
        assert response.status_code == 507, response.text
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("api_error", "insufficient_storage")
        assert response.headers["x-should-retry"] == "false"
        assert (stored_ids(gateway), gateway.ready()) == (before, active)
        assert gateway.route(ONE)["certificate"]["calibration_id"] == active["calibration"]


def test_a_locked_store_is_busy(serve: Serve, tmp_path: Path) -> None:
    """After five seconds 503 with ``retry-after``; queries are answered all the while."""
    gateway = serve(folder=tmp_path / "locked", store=f"sqlite:///{tmp_path}/locked.db")
    active = gateway.ready()
    decision = f"/decisions/{gateway.chat(ONE)['racer']['decision_id']}/verify"
    assert gateway.post(decision, ADMIN_KEY).status_code == 200  # it is written
    other = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with ThreadPoolExecutor(2) as threads:
            begun = time.monotonic()
            waiting = threads.submit(send, gateway, many(20))
            reading = threads.submit(gateway.post, decision, ADMIN_KEY)
            while not waiting.done():
                assert gateway.route(ONE)["selected"]
                time.sleep(0.02)
            responses = [waiting.result(), reading.result()]
        assert time.monotonic() - begun > 4
        for response in responses:
            assert response.status_code == 503, response.text
            assert response.json()["error"]["code"] == "store_busy"
            assert response.headers["retry-after"] == "1"
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert until(lambda: gateway.ready() == active, 30)  # degraded until it was read again
    assert send(gateway, many(20)).status_code == 200
