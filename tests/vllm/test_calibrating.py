"""From questions to a guarantee: labelled, calibrated and routed with vLLM as the pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from racer_core.records.reader import read_rows
from tests.kit.gateway import ADMIN_KEY, Command, user
from tests.vllm.schemas import LOOK_UP, ROOM, TOPIC, tool

from .conftest import GREEDY, LIMIT_S, POOL, Serve, Servers, configure, rows_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

QUESTIONS: Final = 40
REQUESTS: Final = 5  # of each kind; alpha 0.2 needs four
QUERY: Final = "What is 17 plus 25?"
CALL: Final[dict[str, Any]] = {"name": "look_up", "arguments": {"topic": "sums"}}
DOCUMENT: Final = "The sum of 1 and 2 is 3. " * 800  # 20,000 characters


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
    """As vLLM takes them: system prompts, tools, parallel calls, schemas, long texts, turns."""
    kinds = {
        "system prompt": instructed,
        "tools": with_tool,
        "parallel calls": with_parallel_calls,
        "structured output": structured,
        "20,000 characters": long,
        "later turn": fifth_turn,
    }
    references = {
        "tools": json.dumps([CALL]),
        "parallel calls": json.dumps([CALL, CALL | {"arguments": {"topic": "words"}}]),
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
    limits = {"extra_fields": ["structured_outputs"], "deadline_s": LIMIT_S}
    config = configure(tmp_path / "labelling", artifact, servers, {}, limits=limits)
    out = tmp_path / "rows.jsonl"
    code, printed, error = racer(
        "label", questions_file, "--config", config, "--out", out, "--grade", "exact", "--json"
    )
    assert code == 0, error
    # A forced call and a schema leave one answer, to a model that ends it within the token limit.
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["correct"]["abacus"] for row in rows] == [True] * len(questions)
    assert json.loads(printed)["kinds"]["tools"]["rows"] == 2 * REQUESTS
    # The chat template renders the system prompt.
    row = next(row for row in rows if row["request"] == instructed(QUERY))
    bare = servers["abacus"].ask("chat/completions", messages=user(QUERY), **GREEDY)
    tokens = row["calls"]["abacus"]["prompt_tokens"]
    assert tokens > bare["usage"]["prompt_tokens"]
    row = next(row for row in rows if row["request"] == long(QUERY))
    assert row["calls"]["abacus"]["prompt_tokens"] > 20_000  # the models read single characters

    gateway = serve(calibrated=False, limits=limits)
    uploaded = gateway.post(
        "/calibrate?alpha=0.2&rows_kind=traffic",
        ADMIN_KEY,
        content=out.read_bytes(),
        headers={"content-type": "application/x-ndjson"},
    )
    assert uploaded.status_code == 200, uploaded.text
    for kind, make in kinds.items():
        client: Any = gateway.openai()
        answer = client.chat.completions.create(model="auto", **sent(make("What is 40 plus 2?")))
        certificate = answer.model_extra["racer"]["certificate"]
        assert certificate["holds"] is True, (kind, certificate["reasons"])
        if kind == "parallel calls":
            calls = answer.choices[0].message.tool_calls
            topics = [json.loads(call.function.arguments)["topic"] for call in calls]
            assert topics == ["sums", "words"]


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


def with_parallel_calls(query: str) -> dict[str, Any]:
    """A request that two calls answer, which vLLM's parser finds in what the model writes.

    A grammar guides the model: none of the demo's models calls a tool by itself.
    """
    calls = (CALL | {"arguments": {"topic": topic}} for topic in ("sums", "words"))
    text = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    look_up = {"name": "look_up", "parameters": {"type": "object"}}
    return {
        "messages": user(query), "tools": tool(look_up), "parallel_tool_calls": True,
        "structured_outputs": {"choice": [text]}, "max_tokens": 2 * ROOM,
    }  # fmt: skip


def long(query: str) -> dict[str, Any]:
    """A request with a document; vLLM computes what requests begin with once."""
    return {"messages": user(DOCUMENT + query)}


def sent(body: dict[str, Any]) -> dict[str, Any]:
    """The body as arguments of the official client, which has vLLM's own field as an extra."""
    own = "structured_outputs"
    rest = {name: value for name, value in body.items() if name != own}
    return rest | {"extra_body": {own: body[own]}} if own in body else rest


def structured(query: str) -> dict[str, Any]:
    """A request for JSON of a schema."""
    schema = {"name": "topic", "schema": TOPIC, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    return {"messages": user(query), "response_format": wanted, "max_tokens": ROOM}


def said_by_abacus(servers: Servers, body: dict[str, Any]) -> str:
    """The answer of one candidate without a gateway."""
    answer = servers["abacus"].ask("chat/completions", **{**GREEDY, **body})
    return answer["choices"][0]["message"]["content"]
