"""Forks writers of a store and kills each with ``kill -9``; run by ``test_kill``.

What the writers do is what the gateway does with a record: evidence from its rows, one transaction.
A process of its own, without threads: forking is safe and a writer starts in milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

import numpy as np

from app.calibrations.evidence import evidence
from app.store import Store, now
from app.store.calibration_record import CalibrationRecord, Population
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions

ARTIFACT = "a" * 64


def record(name: str) -> CalibrationRecord:
    """Forty random rows, others for every name, and the evidence of them."""
    rng = np.random.default_rng(list(name.encode()))
    calibration = Calibration(
        pool=("a", "b", "c"),
        fingerprints=tuple(rng.bytes(16) for _ in range(40)),
        scores=rng.random((40, 3)),
        labels=rng.random((40, 3)) < 0.6,
        options=CalibrationOptions(),
    )
    return CalibrationRecord(
        id=name,
        created_at=now(),
        artifact=ARTIFACT,
        populations=(Population(calibration=calibration),),
        evidence=evidence(calibration),
    )


def write(url: str, prefix: str, pipe: int) -> None:
    """Add and activate for ever; say what is intended before, and what is done after."""
    with Store(url) as store:
        for number in range(1_000_000):
            name = f"{prefix}-{number}"
            os.write(pipe, f"try {name}\n".encode())
            store.add(record(name), activate=number % 3 != 1)
            os.write(pipe, f"{'both' if number % 3 != 1 else 'added'} {name}\n".encode())
            if number % 3 == 1:
                os.write(pipe, f"try {name}\n".encode())
                store.activate(name, None, ARTIFACT)
                os.write(pipe, f"active {name}\n".encode())


def round_of(url: str, number: int) -> list[list[str]]:
    """Run one writer, kill it at a random moment, and return its output."""
    read, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        write(url, f"cal-{number}", pipe)
        os._exit(1)
    os.close(pipe)
    with os.fdopen(read, "rb") as output:
        first = output.readline()
        time.sleep(random.random() * 0.25)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lines = (first + output.read()).decode().split("\n")[:-1]
    return [line.split() for line in lines]


def main(path: str, kills: int) -> dict[str, Any]:
    """Kill so often, looking at the active record after each."""
    url = f"sqlite:///{path}"
    with Store(url) as store:
        store.add(record("cal-first"), activate=True)
    active, added, stale = "cal-first", ["cal-first"], 0
    for number in range(kills):
        intended: str | None = None
        for verb, name in round_of(url, number):
            intended = name if verb == "try" else None
            if verb in ("added", "both"):
                added.append(name)
            if verb in ("active", "both"):
                active = name
        with Store(url) as store:
            found = store.shared_state(ARTIFACT).active_id
            if found is None or found not in (active, intended):
                stale += 1
            elif found == intended:
                active = found
    return {
        "killed": kills,
        "added": added,
        "stale": stale,
        "torch": "torch" in sys.modules,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
