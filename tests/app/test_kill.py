"""``kill -9`` at any moment: what was acknowledged is there, whole, and exactly one is active."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from app.calibrations.evidence import evidence
from app.store import Store
from racer_core.artifacts import digest
from tests.kit.gateway import ONE, as_json, configure, decided, labelled
from tests.kit.network import free_port
from tests.kit.processes import serving
from tests.kit.upstream import FakePool

from .store_writer import record as written

WRITER = Path(__file__).with_name("store_writer.py")
KILLS = int(os.environ.get("RACER_TEST_KILLS", "20"))  # a release takes 200, for a minute


def kill_and_look(store: Path, kills: int) -> int:
    """Let a writer be killed so often; return how many records it had acknowledged."""
    done = subprocess.run(
        [sys.executable, str(WRITER), str(store), str(kills)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["torch"] is False, "app.store must not pull torch: kills would take minutes"
    assert result["killed"] == kills
    connection = sqlite3.connect(store)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()
    with Store(f"sqlite:///{store}") as opened:
        stored = {each.id: each for each in opened.summaries()}
        assert set(result["added"]) <= set(stored), "an acknowledged record is lost"
        assert [each.active for each in stored.values()].count(True) == 1
        artifact = next(iter(stored.values())).artifact
        active = opened.shared_state(artifact).active_id
        assert active is not None
        assert stored[active].active
        for name, summary in stored.items():  # every one is whole: its digest fits its bytes
            record = opened.activate(name, None, artifact)
            assert record.evidence == summary.evidence == evidence(record.calibration)
            assert (record.calibration.scores == written(name).calibration.scores).all()
        # The last acknowledged activation holds, unless a later, unacknowledged one got through.
        assert result["stale"] == 0
    return len(result["added"])


def test_no_acknowledged_calibration_is_lost(tmp_path: Path) -> None:
    """Kills at random moments of adding and activating."""
    assert kill_and_look(tmp_path / "racer.db", KILLS) > KILLS / 2
    assert [path.name for path in tmp_path.iterdir()] == ["racer.db"]


def test_a_gateway_comes_back_as_it_was(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """``racer serve`` is killed, started again, and decides with the same calibration at once.

    Of the calibration that was under way nothing is left, but that its job is not known any more.
    """
    config = configure(tmp_path, artifact, pool.url, port=free_port())
    with serving(config) as (client, _):
        rows = {"rows": as_json(labelled(10_000, 60))}
        identity = client.post("/calibrate", json=rows).json()["id"]
        before = decided(client.post("/route", json={"query": ONE}).json())
        more = {"rows": as_json(labelled(20_000, 5_000)), "alpha": 0.3}
        files = {path.name for path in tmp_path.iterdir()}
        job = client.post("/calibrate?wait=false", json=more).json()["job"]
    with serving(config) as (client, running):
        ready = {"status": "ready", "calibration": identity}
        found = client.get("/readyz").json()
        assert found.items() >= (ready | {"artifact": digest(artifact), "holds": True}).items()
        assert decided(client.post("/route", json={"query": ONE}).json()) == before
        assert len(client.get("/calibrations").json()["data"]) == 1
        lost = client.get(f"/calibrations/jobs/{job['id']}")
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "job_not_found")
        assert {path.name for path in tmp_path.iterdir()} == files
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 0, errors
    assert b"Traceback" not in errors
