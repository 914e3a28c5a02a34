"""From questions to a guarantee: labelled, calibrated and routed with vLLM as the pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from racer_core.records.reader import read_rows
from tests.kit.gateway import ADMIN_KEY, Command

from .conftest import POOL, Serve, Servers, configure, rows_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

QUESTIONS: Final = 40


def test_questions_become_the_calibration_that_routes(
    serve: Serve, servers: Servers, racer: Command, artifact: Path, tmp_path: Path
) -> None:
    """Relabelled by vLLM, questions keep their labels, and their rows set a threshold."""
    known = rows_of("test", QUESTIONS)
    questions_file = tmp_path / "questions.jsonl"
    questions = [{"query": row.query, "reference": row.reference} for row in known.rows]
    questions_file.write_text(
        "".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8"
    )
    config = configure(tmp_path / "labelling", artifact, servers, {})
    out = tmp_path / "rows.jsonl"

    code, printed, error = racer(
        "label", questions_file, "--config", config, "--out", out, "--grade", "exact", "--json"
    )
    assert code == 0, error
    assert json.loads(printed)["calls"] == QUESTIONS * len(POOL)
    labelled = read_rows(out, POOL)
    before = {row.query: row.correct for row in known.rows}
    after = {row.query: row.correct for row in labelled.rows}  # in the order of their answers
    assert after.keys() == before.keys()
    changed = sum(len(after[query] ^ before[query]) for query in before)
    assert changed <= 0.01 * QUESTIONS * len(POOL)

    gateway = serve(calibrated=False)
    uploaded = gateway.post(
        "/calibrate?alpha=0.2",
        ADMIN_KEY,
        content=out.read_bytes(),
        headers={"content-type": "application/x-ndjson"},
    )
    assert uploaded.status_code == 200, uploaded.text
    calibrated: dict[str, Any] = uploaded.json()
    answerable = sum(bool(row.correct) for row in labelled.rows)
    assert gateway.ready()["calibration"] == calibrated["id"]

    decided = gateway.route("What is 17 plus 25?")
    certificate = decided["certificate"]
    assert certificate["calibration_id"] == calibrated["id"]
    assert certificate["n"] == answerable
    assert certificate["guarantee"]["alpha"] == 0.2
    assert certificate["guarantee"]["trivial"] is False
    assert certificate["holds"] is True
    assert set(decided["selected"]) <= set(POOL)
