"""``racer bootstrap`` before gateways on Ray, from a deployment without an artifact."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app import settings
from tests.kit.gateway import ONE, Gateway, configure, labelled
from tests.kit.network import free_port
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

from .conftest import RUNNING_S, Cluster, is_serving, serve_run

pytestmark = [pytest.mark.scale, pytest.mark.timeout(300)]

COUNT = 60


@pytest.fixture
def skilled(pool: FakePool) -> Iterator[FakePool]:
    """Candidates with skills: by the wording each says what the reference says, or not."""
    right = {row.query: row.correct for row in labelled(0, COUNT).rows}

    def answer(body: dict[str, Any]) -> str:
        return "yes" if body["model"] in right.get(body["messages"][-1]["content"], ()) else "no"

    pool.reset()  # of what other files let it say
    before, pool.answer = pool.answer, answer
    yield pool
    pool.answer = before


def test_questions_become_certificates_in_one_deployment(
    cluster: Cluster, skilled: FakePool, tmp_path: Path
) -> None:
    """As deploy/ray/README.md says: two gateways and a router that begin without an artifact.

    Red when the files of deploy/ray do not start without one, or it must be deployed once more.
    """
    port = free_port()
    config = configure(tmp_path, tmp_path / "artifact", skilled.url)
    questions = tmp_path / "questions.jsonl"
    rows = [{"query": row.query, "reference": "yes"} for row in labelled(0, COUNT).rows]
    questions.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    serve_run(cluster, tmp_path / "serve.yaml", config, port, Gateway=2, Router=1)
    with closing(Gateway(f"http://127.0.0.1:{port}", settings.load(config)[0])) as gateway:
        assert until(lambda: is_serving(gateway), RUNNING_S)
        assert gateway.chat(ONE)["racer"]["certificate"]["reasons"] == ["not_calibrated"]
        done = subprocess.run(
            [
                sys.executable, "-m", "app", "bootstrap", f"--config={config}",
                f"--queries={questions}", f"--out={tmp_path / 'work'}", f"--url={gateway.url}",
                "--encoder=char-ngrams", "--json",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        calibration = json.loads(done.stdout)["calibration"]
        assert calibration["active"] is True

        def is_active() -> bool:
            return gateway.ready().get("calibration") == calibration["id"]

        # Whichever of them answers: ten answers of one alone are one chance in a thousand.
        assert until(lambda: all(is_active() for _ in range(10)), 30)
        assert gateway.chat(ONE)["racer"]["certificate"]["holds"]
