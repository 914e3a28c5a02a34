"""Store load of gateways, and the delay until an activation reaches another gateway.

    python benchmarks/state.py --json benchmarks/results/state.json

Uses SQLite in a temporary folder, and PostgreSQL if `RACER_STORE_URL` names an *empty* database,
which is filled. Decisions are written as a gateway writes them, 500 in a transaction; the other
figures are background work that does not depend on a gateway's load.
"""

import argparse
import asyncio
import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rig
from sqlalchemy import text
from verdict import Goal, aims, table

from app.access import lease_store
from app.access.lease import Limit, Share
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.decisions.writer import BATCH
from app.monitoring.drift.alarms import DriftMonitor
from app.monitoring.drift.populations import MonitoredCalibration
from app.monitoring.drift.store import DriftStore
from app.monitoring.metrics import MonitoringMetrics
from app.routing.active_calibration import ActiveCalibration
from app.routing.calibration_sync import CalibrationSync
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord, Population
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions

POOL = tuple(f"candidate-{number}" for number in range(8))
WRITERS = (1, 2, 4)
SMALL = 1_000  # rows of a usual calibration
KEYS = 100
TIMES = 200
SEEN_S = 1.0  # the promise


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of writing decisions")
    parser.add_argument("--rows", type=int, default=100_000, help="of a large calibration")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    manifest = rig.manifest(rows=args.rows, seconds=args.seconds)
    with tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": f"sqlite:///{folder}/racer.db"}
        if url := os.environ.get("RACER_STORE_URL"):
            urls["PostgreSQL"] = url
        found = {name: measured(url, args.seconds, args.rows) for name, url in urls.items()}
    document: dict[str, Any] = {"manifest": manifest, "stores": found}
    rig.publish(document, markdown(document), args.json)


def measured(url: str, seconds: float, rows: int) -> dict[str, Any]:
    """All figures of one store."""
    with Store(url) as store:
        small, large = record(SMALL), record(rows)
        for each in (small, large):
            store.add(each, activate=True)
        found: dict[str, Any] = {
            "server": version(store),
            "watch_ms": 1e3 * watch_s(store, small),
            "pulse_ms": 1e3 * median_s(lambda: store.shared_state(small.artifact)),
            "leases_ms": 1e3 * leases_s(store),
            "seen_ms": {
                str(count): [1e3 * s for s in seen_s(store, url, each)]
                for count, each in ((SMALL, small), (rows, large))
            },
        }
        before = size(store)
        written = {str(count): write(store, small, count, seconds) for count in WRITERS}
        rows_written = sum(each["decisions"] for each in written.values())
        return found | {
            "written": written,
            "bytes_a_decision": (size(store) - before) / rows_written,
        }


def record(rows: int) -> CalibrationRecord:
    """A calibration on random rows: the stored size depends on shapes alone."""
    rng = np.random.default_rng(rows)
    scores = np.round(rng.random((rows, len(POOL))), 6)
    return CalibrationRecord(
        id=f"cal-{secrets.token_hex(8)}",
        created_at=now(),
        artifact="a" * 64,
        populations=(
            Population(
                calibration=Calibration(
                    pool=POOL,
                    fingerprints=tuple(rng.bytes(16) for _ in range(rows)),
                    scores=scores,
                    labels=rng.random(scores.shape) < scores,
                    options=CalibrationOptions(),
                ),
                conditions=("0" * 32,) * len(POOL),
            ),
        ),
        evidence={},
    )


def notes(record: CalibrationRecord, count: int) -> list[DecisionRecord]:
    """Decisions as they are stored."""
    rng = np.random.default_rng()
    usual = DecisionRecord(
        decision_id="",
        created_at=now(),
        calibration_id=record.id,
        key="data",
        group=None,
        alpha=0.1,
        score="cover",
        lambda_hat=0.123456,
        pool=POOL,
        selected=POOL[:2],
        null_selected=False,
        fingerprint="",
        scores=None,
        neighbours=None,
        holds=True,
        served_by=POOL[0],
        answered=POOL[:2],
    )
    return [
        replace(
            usual,
            decision_id=f"chatcmpl-{secrets.token_hex(16)}",
            fingerprint=secrets.token_hex(16),
            scores=tuple(np.round(rng.random(len(POOL)), 6).tolist()),
        )
        for _ in range(count)
    ]


def write(
    store: Store, record: CalibrationRecord, writers: int, seconds: float
) -> dict[str, float]:
    """Throughput of ``writers`` gateways that write without pause."""
    decision_store, counts = DecisionStore(store), [0] * writers
    ready = [[notes(record, BATCH) for _ in range(4)] for _ in range(writers)]
    start = threading.Barrier(writers + 1)

    def run(number: int) -> None:
        start.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not ready[number]:
                ready[number].append(notes(record, BATCH))
            decision_store.add(ready[number].pop(), [True] * BATCH)
            counts[number] += BATCH

    threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
    for each in threads:
        each.start()
    start.wait()
    began = time.monotonic()
    for each in threads:
        each.join()
    took = time.monotonic() - began
    return {"decisions": sum(counts), "per_s": sum(counts) / took}


def watch_s(store: Store, record: CalibrationRecord) -> float:
    """Seconds for which one gateway locks the drift state to add a batch, with full samples."""
    full = replace(record, id=f"cal-{secrets.token_hex(8)}")
    rng = np.random.default_rng(0)
    longer = _longer(full.calibration, 12_000, rng)
    full = replace(full, populations=(Population(calibration=longer),))
    store.add(full, activate=False)
    drift = DriftMonitor(
        drift_store=DriftStore(store),
        decision_store=DecisionStore(store),
        metrics=MonitoringMetrics(Metrics().registry),
        false_alarm=0.01,
        rng=rng,
    )
    drift.set_calibration(MonitoredCalibration.of(full))
    times: list[float] = []
    for _ in range(10):
        drift.add_queries(notes(full, BATCH))
        began = time.monotonic()
        drift.flush()
        times.append(time.monotonic() - began)
    return statistics.median(times)


def _longer(calibration: Calibration, rows: int, rng: np.random.Generator) -> Calibration:
    scores = np.round(rng.random((rows, len(POOL))), 6)
    return replace(
        calibration,
        fingerprints=tuple(rng.bytes(16) for _ in range(rows)),
        scores=scores,
        labels=rng.random(scores.shape) < scores,
    )


def leases_s(store: Store) -> float:
    """Seconds to draw the leases of all keys once."""
    shares = [Share(Limit.per_minute(f"requests:key-{number:03}", 600)) for number in range(KEYS)]

    def draw() -> None:
        reports = {share.limit.place: share.report() for share in shares}
        lease_store.sync(store, reports)

    return median_s(draw, times=20)


def seen_s(store: Store, url: str, record: CalibrationRecord) -> list[float]:
    """Seconds from an activation's response until another gateway uses it, eleven times."""
    other = replace(record, id=f"cal-{secrets.token_hex(8)}")
    store.add(other, activate=False)

    async def story() -> list[float]:
        with Store(url) as theirs:
            active, heard = ActiveCalibration(Metrics()), asyncio.Queue[str]()

            loop = asyncio.get_running_loop()

            def hear(record: CalibrationRecord) -> None:  # on a thread, when it becomes active
                loop.call_soon_threadsafe(heard.put_nowait, record.id)

            await active.add_follower(hear)
            async with CalibrationSync(
                theirs,
                active,
                setup=record.artifact,
                text="last_user",
                grouping="request",
                metrics=Metrics(),
            ):
                times: list[float] = []
                for turn in range(11):
                    wanted = (record, other)[turn % 2].id
                    await asyncio.sleep(0.1 + 0.07 * turn)  # at varying moments between two polls
                    await asyncio.to_thread(store.activate, wanted, None, record.artifact)
                    began = time.monotonic()
                    while await heard.get() != wanted:
                        pass
                    times.append(time.monotonic() - began)
                return times

    return asyncio.run(story())


def median_s(work: Callable[[], object], times: int = TIMES) -> float:
    """The median duration of ``work``."""
    found: list[float] = []
    for _ in range(times):
        began = time.monotonic()
        work()
        found.append(time.monotonic() - began)
    return statistics.median(found)


def version(store: Store) -> str:
    """The database's version."""
    with connected(store) as (session, postgres):
        statement = "SHOW server_version" if postgres else "SELECT sqlite_version()"
        return str(session.scalar(text(statement)))


def size(store: Store) -> int:
    """Bytes on disk: decisions and their indices in PostgreSQL, the whole file in SQLite."""
    with connected(store) as (session, postgres):
        if postgres:
            return int(session.scalar(text("SELECT pg_total_relation_size('decisions')")) or 0)
        pages = session.scalar(text("PRAGMA page_count"))
        return int(pages or 0) * int(session.scalar(text("PRAGMA page_size")) or 0)


@contextmanager
def connected(store: Store) -> Iterator[tuple[Any, bool]]:
    """A session, and whether its database is PostgreSQL."""
    with store.transaction() as session:
        yield session, session.connection().dialect.name == "postgresql"


def markdown(document: dict[str, Any]) -> str:
    """Provenance, targets and figures."""
    stores: dict[str, dict[str, Any]] = document["stores"]
    rows: list[list[str]] = []
    goals: list[Goal] = []
    for name, found in stores.items():
        for count, times in found["seen_ms"].items():
            goals.append(
                Goal(
                    f"{name}: activation of {int(count):,} rows used by another gateway, "
                    "slowest of 11",
                    max(times) / 1e3,
                    SEEN_S,
                    unit=" s",
                )
            )
        writers = ", ".join(f"{each['per_s']:,.0f}" for each in found["written"].values())
        seen = ", ".join(f"{statistics.median(each):,.0f}" for each in found["seen_ms"].values())
        rows.append(
            [
                f"{name} {found['server']}",
                writers,
                f"{found['bytes_a_decision']:,.0f}",
                f"{found['watch_ms']:.0f}",
                f"{found['pulse_ms']:.2f}",
                f"{found['leases_ms']:.0f}",
                seen,
            ]
        )
    head = [
        "store",
        f"decisions/s, {', '.join(map(str, WRITERS))} writers",
        "bytes a decision",
        "adding 500 queries to the drift state, ms",
        "polling the active calibration, ms",
        f"drawing {KEYS} leases, ms",
        "an activation used elsewhere, ms, by rows",
    ]
    parts = [rig.taken(document["manifest"]), aims(goals), table(head, rows)]
    if "PostgreSQL" not in stores:
        parts.append("PostgreSQL was not measured: `RACER_STORE_URL` names no database.")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
