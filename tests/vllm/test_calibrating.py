"""From questions to a guarantee: labelled, calibrated and routed with vLLM as the pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from racer_core.records.reader import read_rows
from tests.support.gateway import ADMIN_KEY, Command, user

from .conftest import GREEDY, POOL, Serve, Servers, configure, rows_of
from .test_answers import LOOK_UP, ROOM, TOPIC, tool

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

QUESTIONS: Final = 40
REQUESTS: Final = 5  # of each kind; alpha 0.2 needs four


def test_questions_become_the_calibration_that_routes(
    serve: Serve, servers: Servers, racer: Command, artifact: Path, tmp_path: Path
) -> None:
    """Relabelled by vLLM, the demo's questions keep their labels, and their rows set a threshold.

    One label in a hundred may differ: another machine adds numbers up in another order.
    """
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


def test_whole_requests_become_the_calibration_that_certifies_them(
    serve: Serve, servers: Servers, racer: Command, artifact: Path, tmp_path: Path
) -> None:
    """System prompts, tools, schemas and five turns, as vLLM takes them."""
    kinds = {
        "system prompt": instructed,
        "tools": with_tool,
        "structured output": structured,
        "later turn": fifth_turn,
    }
    references = {
        "tools": json.dumps([{"name": "look_up", "arguments": {"topic": "sums"}}]),
        "structured output": json.dumps({"topic": "sums"}),
    }
    questions = [
        {"request": body, "reference": references.get(kind) or said_by_abacus(servers, body)}
        for kind, make in kinds.items()
        for body in (make(f"What is {n} plus 25?") for n in range(17, 17 + REQUESTS))
    ]
    questions_file = tmp_path / "questions.jsonl"
    questions_file.write_text(
        "".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8"
    )
    config = configure(tmp_path / "labelling", artifact, servers, {})
    out = tmp_path / "rows.jsonl"
    code, printed, error = racer(
        "label", questions_file, "--config", config, "--out", out, "--grade", "exact", "--json"
    )
    assert code == 0, error
    counts = json.loads(printed)["kinds"]
    # A forced call and a schema leave one answer, to a model that ends it within the token limit.
    for kind in kinds:
        assert counts[kind]["rows"] == counts[kind]["right"]["abacus"] == REQUESTS
    # The chat template renders the system prompt.
    (row, *_) = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    bare = servers["abacus"].ask("chat/completions", messages=user("What is 17 plus 25?"), **GREEDY)
    tokens = row["calls"]["abacus"]["prompt_tokens"]
    assert tokens > bare["usage"]["prompt_tokens"]

    gateway = serve(calibrated=False)
    uploaded = gateway.post(
        "/calibrate?alpha=0.2&rows_kind=traffic",
        ADMIN_KEY,
        content=out.read_bytes(),
        headers={"content-type": "application/x-ndjson"},
    )
    assert uploaded.status_code == 200, uploaded.text
    for kind, make in kinds.items():
        client: Any = gateway.openai()
        answer = client.chat.completions.create(model="auto", **make("What is 40 plus 2?"))
        certificate = answer.model_extra["racer"]["certificate"]
        assert certificate["holds"] is True, (kind, certificate["reasons"])


def instructed(query: str) -> dict[str, Any]:
    """A request with a system prompt."""
    system = {"role": "system", "content": "Answer with a number."}
    return {"messages": [system, *user(query)]}


def fifth_turn(query: str) -> dict[str, Any]:
    """The fifth turn of a conversation."""
    said = {"role": "assistant", "content": "42"}
    return {"messages": [*user("What is 17 plus 25?"), said, *user("And 16?"), said, *user(query)]}


def with_tool(query: str) -> dict[str, Any]:
    """A request whose only tool must be called."""
    choice = {"type": "function", "function": {"name": "look_up"}}
    return {
        "messages": user(query), "tools": tool(LOOK_UP), "tool_choice": choice, "max_tokens": ROOM,
    }  # fmt: skip


def structured(query: str) -> dict[str, Any]:
    """A request for JSON of a schema."""
    schema = {"name": "topic", "schema": TOPIC, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    return {"messages": user(query), "response_format": wanted, "max_tokens": ROOM}


def said_by_abacus(servers: Servers, body: dict[str, Any]) -> str:
    """The answer of one candidate without a gateway."""
    answer = servers["abacus"].ask("chat/completions", **{**GREEDY, **body})
    return answer["choices"][0]["message"]["content"]
