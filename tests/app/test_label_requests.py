"""``racer label`` on whole requests: replay, grading, rows, and the certificates that follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.tools.labelling.summary import kinds_of
from racer_core.records.reader import read_rows
from tests.kit.gateway import ADMIN_KEY, POOL, Command, Gateway, Serve, candidates, configure
from tests.kit.upstream import FakePool, Script

SYSTEM = {"role": "system", "content": "You sort parcels. Answer with a number."}
TOOL = {
    "type": "function",
    "function": {
        "name": "parcel",
        "description": "Looks a parcel up.",
        "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["city", "count"],
    "additionalProperties": False,
}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "parcel", "schema": SCHEMA}}


def user(text: str) -> dict[str, str]:
    """A turn of the user."""
    return {"role": "user", "content": text}


def chat(*turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A chat body; strings are the user's turns."""
    return {"messages": list(turns), **fields}


def call(name: str, arguments: dict[str, Any], place: int = 0) -> dict[str, Any]:
    """A tool call, as servers send it."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{place}", "type": "function", "function": function}


def calls(*given: dict[str, Any]) -> dict[str, Any]:
    """A message of tool calls."""
    return {"message": {"role": "assistant", "content": None, "tool_calls": list(given)}}


def save(path: Path, questions: Sequence[Any]) -> Path:
    """Questions as JSON lines."""
    path.write_text("".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8")
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    """What a file of JSON lines holds."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


Label = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def label(racer: Command, tmp_path: Path, pool: FakePool) -> Label:
    """``racer label`` of questions into ``rows.jsonl``; graded as numbers."""
    named = candidates(pool.url, adder={"parameters": {"temperature": 0, "max_tokens": 5}})
    config = configure(tmp_path, tmp_path / "no-artifact-yet", "", candidates=named)

    def run(questions: Sequence[Any], **options: object) -> tuple[int, Any, str]:
        given = {"config": config, "out": tmp_path / "rows.jsonl", "grade": "number", **options}
        parts = [part for name, value in given.items() for part in (f"--{name}", value)]
        code, printed, stderr = racer(
            "label", save(tmp_path / "q.jsonl", questions), "--json", *parts
        )
        return code, json.loads(printed) if printed else None, stderr

    return run


def correct(tmp_path: Path) -> list[set[str]]:
    """Who was right in each row."""
    rows = lines(tmp_path / "rows.jsonl")
    return [{name for name, right in row["correct"].items() if right} for row in rows]


# Replay ------------------------------------------------------------------------------------------


def test_candidates_are_sent_the_request_as_the_gateway_sends_it(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """With its fields over the candidate's parameters; the gateway's own fields are dropped."""
    body = chat(SYSTEM, user("What is it?"), tools=[TOOL], max_tokens=7, seed=3)
    ours = {"model": "auto", "stream": True, "racer": {"alpha": 0.2}}
    code, _, stderr = label([{"request": {**body, **ours}, "reference": 42}])
    assert code == 0, stderr
    sent = {each["model"]: each for each in pool.requests}
    common = {**body, "stream": False}
    assert sent["adder"] == {"model": "adder", "temperature": 0, **common}
    assert sent["poet"] == {"model": "poet", **common}
    (row,) = lines(tmp_path / "rows.jsonl")
    assert row["request"] == body
    assert "query" not in row
    assert read_rows(tmp_path / "rows.jsonl", POOL).rows[0].query == "What is it?"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"prompt": "6 times 7 is"}, "/v1/completions"),
        ({"input": "What is 6 times 7?", "instructions": "Be brief."}, "/v1/responses"),
        (chat(user("What is 6 times 7?")), "/v1/chat/completions"),
    ],
)
def test_each_api_has_its_endpoint(
    label: Label, pool: FakePool, tmp_path: Path, body: dict[str, Any], path: str
) -> None:
    """A prompt goes to completions, an input to responses; text is graded as ever."""
    pool.say("poet", "41")
    assert label([{"request": body, "reference": 42}])[0] == 0
    assert set(pool.paths) == {path}
    assert correct(tmp_path) == [{"adder", "speller"}]
    calls = lines(tmp_path / "rows.jsonl")[0]["calls"]
    assert {each["finish_reason"] for each in calls.values()} == {"stop"}
    assert all(each["completion_tokens"] == 2 for each in calls.values())


def test_requests_differ_by_all_that_they_hold(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """Equal queries under other system prompts are no copies, nor have they one reference."""
    other = {**SYSTEM, "content": "Answer in words."}
    bodies = [chat(system, user("How many?")) for system in (SYSTEM, other)]
    questions = [
        {"request": bodies[0], "reference": 42},
        {"request": bodies[1], "reference": 41},
        {"query": "How many?", "reference": 40},
        {"request": bodies[0], "reference": 42},
    ]
    code, result, stderr = label(questions)
    assert (code, result and result["calls"]) == (0, 12), stderr
    rows = lines(tmp_path / "rows.jsonl")
    assert [row["reference"] for row in rows] == ["42", "41", "40", "42"]
    digests = [row["conditions"]["poet"] for row in rows]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3
    assert label(questions)[1]["calls"] == 0


@pytest.mark.parametrize(
    ("request_body", "words"),
    [
        ({"messages": [user("a?")], "prompt": "a"}, '"messages" and "prompt"'),
        ({"messages": [user("a?")], "api_base": "http://x"}, "is not passed on to candidates"),
        ({"input": "a?", "previous_response_id": "resp_1"}, "needs stored conversations"),
        ({"messages": [SYSTEM | {"role": "tool"}]}, "no user message"),
        (chat(user("a?"), max_tokens=131_073), "over the limit of 131,072"),
        (chat(user("a?"), n=0), "n must be a number of at least 1"),
        (chat(user("a?"), tools=[TOOL] * 129), "over the limit of 128"),
    ],
)
def test_requests_that_are_not_served_are_refused_before_a_call(
    label: Label, pool: FakePool, request_body: dict[str, Any], words: str
) -> None:
    """With the line; no call is paid for."""
    code, _, stderr = label([{"request": request_body, "reference": 42}])
    assert code == 1
    assert "line 1" in stderr
    assert words in stderr
    assert pool.requests == []


# Grading -----------------------------------------------------------------------------------------


def test_tool_calls_are_graded_by_canonical_json(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """Names and arguments; ids and the order of parallel calls do not count, a text is no call."""
    two = [call("parcel", {"id": 1, "fast": True}), call("parcel", {"id": 2}, 1)]
    pool.say("adder", "", **calls(*two))
    pool.say(
        "speller", "", **calls(call("parcel", {"id": 2}), call("parcel", {"fast": True, "id": 1.0}))
    )
    pool.say("poet", '[{"name": "parcel", "arguments": {"id": 1, "fast": true}}]')
    reference = [
        {"name": "parcel", "arguments": {"id": 1, "fast": True}},
        {"name": "parcel", "arguments": '{"id": 2}'},
    ]
    body = chat(user("Where are parcels 1 and 2?"), tools=[TOOL], parallel_tool_calls=True)
    question = {"request": body, "reference": reference}
    code, result, stderr = label([question])
    assert code == 0, stderr
    assert correct(tmp_path) == [{"adder", "speller"}]
    (row,) = lines(tmp_path / "rows.jsonl")
    assert row["answers"]["adder"] == row["answers"]["speller"]
    assert json.loads(row["answers"]["adder"]) == [
        {"name": "parcel", "arguments": {"fast": True, "id": 1}},
        {"name": "parcel", "arguments": {"id": 2}},
    ]
    assert row["calls"]["adder"]["tool_calls"] == 2
    assert "tool_calls" not in row["calls"]["poet"]
    assert result["kinds"]["tools"] == {"rows": 1, "right": {"adder": 1, "speller": 1, "poet": 0}}


def test_a_verdict_on_tool_calls_is_none_on_the_same_text(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """A judge's verdicts are stored; a text that looks like the right call is no call."""
    pool.say("adder", "", **calls(call("parcel", {"id": 1})))
    pool.say("poet", '[{"arguments":{"id":1},"name":"parcel"}]')
    reference = [{"name": "parcel", "arguments": {"id": 1}}]
    body = chat(user("Where is parcel 1?"), tools=[TOOL])
    code, _, stderr = label(
        [{"request": body, "reference": reference}], grade="judge", judge="speller"
    )
    assert code == 0, stderr
    (row,) = lines(tmp_path / "rows.jsonl")
    assert row["answers"]["adder"] == row["answers"]["poet"]
    assert correct(tmp_path) == [{"adder"}]


TWICE = call("parcel", {})
TWICE["function"]["arguments"] = json.dumps(json.dumps({"id": 1}))
ONE_CALL = [{"name": "parcel", "arguments": {"id": 1}}]
ITEM = {"type": "function_call", "id": "fc", "call_id": "c", "name": "parcel"}
WITH_TOOL = chat(user("Where is parcel 1?"), tools=[TOOL])
JSON_CHAT = chat(user("Which?"), response_format=STRUCTURED)
JSON_RESPONSE = {
    "input": "Which?",
    "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
PLACE = {"city": "Rome", "count": 2}
SAID: dict[str, tuple[dict[str, Any], Any, dict[str, dict[str, Any]], set[str]]] = {
    "arguments that are encoded twice are another call": (
        WITH_TOOL, [{"name": "parcel", "arguments": '{"id": 1}'}],
        {"adder": calls(call("parcel", {"id": 1})), "speller": calls(TWICE)}, {"adder"},
    ),
    "items of a response are calls": (
        {"input": "Where?", "tools": [{"type": "function", **TOOL["function"]}]}, ONE_CALL,
        {name: {"fields": {"output": [ITEM | {"arguments": json.dumps({"id": number})}]}}
         for name, number in (("adder", 1), ("speller", 2))}, {"adder"},
    ),
    "a call is wrong where a text is expected, whatever it holds": (
        chat(user("How many?"), tools=[TOOL]), 42,
        {"poet": calls(call("parcel", {"id": 42}))}, {"adder", "speller"},
    ),
    "JSON is compared by schema and value": (
        JSON_CHAT, PLACE,
        {"adder": {"text": '{"count": 2.0, "city": "Rome"}'},
         "speller": {"text": '{"city": "Rome", "count": 2, "note": "x"}'},
         "poet": {"text": '{"city": "Rome", "count": 3}'}}, {"adder"},
    ),
    "JSON of a response is, too": (
        JSON_RESPONSE, PLACE,
        {"adder": {"text": '{"count": 2.0, "city": "Rome"}'},
         "speller": {"text": '{"city": "Rome", "count": 2, "note": "x"}'}}, {"adder"},
    ),
    "JSON is the whole text, as a client parses it": (
        JSON_CHAT, PLACE,
        {"adder": {"text": ' {"city": "Rome", "count": 2}\n'},
         "speller": {"text": 'Sure: {"city": "Rome", "count": 2}'},
         "poet": {"text": '```json\n{"city": "Rome", "count": 2}\n```'}}, {"adder"},
    ),
    "one JSON value is expected": (
        JSON_CHAT, PLACE,
        {"poet": {"text": '{"city": "Rome", "count": 2} {"city": "Oslo"}'}}, set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_an_answer_is_graded_as_the_gateways_vote_sees_it(
    label: Label, pool: FakePool, tmp_path: Path, case: str
) -> None:
    """By canonical JSON of its calls, or by schema and value; a second run makes no call."""
    body, reference, said, right = SAID[case]
    for name, script in said.items():
        pool.say(name, script.get("text", ""), **{k: v for k, v in script.items() if k != "text"})
    code, _, stderr = label([{"request": body, "reference": reference}])
    assert code == 0, stderr
    assert correct(tmp_path) == [right]
    (row,) = lines(tmp_path / "rows.jsonl")
    ends = {row["calls"][name]["finish_reason"] for name, each in said.items() if "fields" in each}
    assert ends <= {"tool_calls"}
    assert label([{"request": body, "reference": reference}])[1]["calls"] == 0


@pytest.mark.parametrize(
    ("fields", "reference", "words"),
    [
        ({"response_format": STRUCTURED}, "Rome", "cannot be read as JSON"),
        ({"response_format": STRUCTURED}, '{"city": "Rome"}', "does not meet the schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 1}}}},
            "1",
            "schema of the request is invalid",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"$ref": "http://127.0.0.1:9/schema.json"}},
                }
            },
            "1",
            "cannot be checked",
        ),
        ({"tools": [TOOL]}, "[]", "cannot be read as a number"),
    ],
)
def test_references_that_no_answer_meets_are_refused_before_a_call(
    label: Label, pool: FakePool, fields: dict[str, Any], reference: str, words: str
) -> None:
    """A schema of another server is not fetched."""
    code, _, stderr = label([{"request": chat(user("a?"), **fields), "reference": reference}])
    assert (code, pool.requests) == (1, [])
    assert words in stderr


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (None, ["plain"]),
        (chat(user("a")), ["plain"]),
        (chat(SYSTEM, user("a")), ["system prompt"]),
        ({"input": "a", "instructions": "b"}, ["system prompt"]),
        (chat(user("a"), tools=[TOOL]), ["tools"]),
        (chat(user("a"), response_format={"type": "json_object"}), ["structured output"]),
        (chat(user("a"), response_format={"type": "text"}), ["plain"]),
        (
            chat(
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
            ),
            ["images"],
        ),
        (chat(SYSTEM, user("a"), tools=[TOOL]), ["system prompt", "tools"]),
    ],
)
def test_kinds_of_requests(body: dict[str, Any] | None, kinds: list[str]) -> None:
    """A request may be of several; a plain one of none else."""
    assert kinds_of(body, is_later=False) == kinds
    assert kinds_of(body, is_later=True) == [
        "later turn",
        *(each for each in kinds if each != "plain"),
    ]


# Certificates ------------------------------------------------------------------------------------

CALLS = [call("parcel", {"id": 1}), call("parcel", {"id": 2}, 1)]
JSON_ANSWER = '{"city": "Rome", "count": 2}'


class Answering(FakePool):
    """Candidates that call the tools that they are given, and write JSON where it is demanded."""

    async def reply(self, request: Any, body: dict[str, Any], script: Script) -> Any:
        """The poet is always wrong."""
        if body["model"] == "poet":
            script = Script(text="none")
        elif body.get("tools"):
            script = Script(text="", message=calls(*CALLS)["message"])
        elif body.get("response_format"):
            script = Script(text=JSON_ANSWER)
        return await super().reply(request, body, script)


def five_turns(query: str) -> list[dict[str, Any]]:
    """Two exchanges and the question that follows them."""
    said = [user("Hello."), {"role": "assistant", "content": "Hello!"}] * 2
    return [*said, user(query)]


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "system prompt": lambda query: chat(SYSTEM, user(query)),
    "tools": lambda query: chat(SYSTEM, user(query), tools=[TOOL], parallel_tool_calls=True),
    "structured output": lambda query: chat(user(query), response_format=STRUCTURED),
    "long prompt": lambda query: chat(user(f"{query}\n{'Read this. ' * 1_900}")),
    "five turns": lambda query: chat(*five_turns(query)),
    "completion": lambda query: {"prompt": query, "max_tokens": 5},
    "response": lambda query: {"input": query, "instructions": SYSTEM["content"]},
}
REFERENCES = {
    "tools": json.dumps([each["function"] for each in CALLS]),
    "structured output": JSON_ANSWER,
}
ROWS = 12  # of each kind; alpha 0.2 needs four


def test_labelled_requests_certify_requests_of_their_kind(
    serve: Serve, racer: Command, tmp_path: Path
) -> None:
    """The official client, after `racer label` and `racer calibrate`: every certificate holds."""
    questions = [
        {"request": body(f"What is {n} plus {n + 1}?"), "reference": REFERENCES.get(kind, "42")}
        for kind, body in KINDS.items()
        for n in range(ROWS)
    ]
    out = tmp_path / "rows.jsonl"
    with Answering() as pool:
        gateway = serve(calibrated=False, candidates=candidates(pool.url))
        config = configure(tmp_path / "label", tmp_path / "none", pool.url)
        labelled = racer(
            "label", save(tmp_path / "q.jsonl", questions), "--config", config,
            "--out", out, "--grade", "number", "--json",
        )  # fmt: skip
        assert labelled[0] == 0, labelled
        right = {"adder": ROWS, "speller": ROWS, "poet": 0}
        assert json.loads(labelled[1])["kinds"]["tools"]["right"] == right
        assert all(
            row["correct"] == {"adder": True, "speller": True, "poet": False} for row in lines(out)
        )
        calibrated = racer(
            "calibrate", out, "--url", gateway.url, "--key", ADMIN_KEY,
            "--alpha", 0.2, "--rows", "traffic", "--json",
        )  # fmt: skip
        assert calibrated[0] == 0, calibrated
        certificates = {
            kind: certificate(gateway, body("How many are 30 plus 31?"))
            for kind, body in KINDS.items()
        }
        voids = {kind: each["reasons"] for kind, each in certificates.items() if not each["holds"]}
        assert voids == {}
        client: Any = gateway.openai()
        create = client.chat.completions.create
        answer = create(model="auto", **KINDS["tools"]("How many are 1 plus 2?")).model_dump()
        called = answer["choices"][0]["message"]["tool_calls"]
        assert [each["id"] for each in called] == ["call_0", "call_1"]
        other = chat({**SYSTEM, "content": "Answer in words."}, user("How many are 30 plus 31?"))
        assert certificate(gateway, other)["holds"] is False


def certificate(gateway: Gateway, body: dict[str, Any]) -> dict[str, Any]:
    """The certificate that the official client gets."""
    client = gateway.openai()
    api: Any = client.chat.completions
    if "input" in body:
        api = client.responses
    elif "prompt" in body:
        api = client.completions
    return api.create(model="auto", **body).model_extra["racer"]["certificate"]
