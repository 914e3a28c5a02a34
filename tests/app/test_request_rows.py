"""Whole requests as rows: what the official client sends is certified, and no other request is."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.routing.conditions import ConditionReader
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    Gateway,
    Restart,
    Serve,
    as_json,
    error_message,
    labelled,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

pa, parquet = LazyModule("pyarrow"), LazyModule("pyarrow.parquet")

SYSTEM = {"role": "system", "content": "You work for a bank."}


def tool(name: str) -> list[dict[str, Any]]:
    """A tool of this name."""
    parameters = {"type": "object", "properties": {"a": {"type": "number"}}}
    return [{"type": "function", "function": {"name": name, "parameters": parameters}}]


def schema(field: str) -> dict[str, Any]:
    """Structured output with one field."""
    of_field = {"type": "object", "properties": {field: {"type": "integer"}}, "required": [field]}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": of_field}}


def long(text: str) -> str:
    """20,000 characters that begin with this text."""
    return f"{text} {'context ' * 2_500}"[:20_000]


BEFORE: list[Any] = [
    *user("Hello"),
    {"role": "assistant", "content": "Hello, what can I do for you?"},
    *user("Some sums"),
    {"role": "assistant", "content": "Go on."},
]


def image(text: str, **beside: Any) -> list[dict[str, Any]]:
    """A turn with an image of its own beside a text."""
    url = f"data:image/png;base64,{base64.b64encode(text.encode()).decode()}"
    parts = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": url, **beside}},
    ]
    return [{"role": "user", "content": parts}]


def result(text: str) -> list[dict[str, Any]]:
    """A conversation that ends with the result of a tool; each has arguments and ids of its own."""
    call = {"id": f"call_{text}", "type": "function"}
    function = {"name": "add", "arguments": json.dumps({"a": text})}
    return [
        *user(text),
        {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "tool_call_id": call["id"], "content": f"The sum of {text}"},
    ]


# What a client sends with a text, a change of it, and the field that the certificate then names.
KINDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "system prompt": (
        lambda text: {"messages": [SYSTEM, *user(text)]},
        {"messages": [{**SYSTEM, "content": "You work for a shop."}, *user(ONE)]},
        "messages.system",
    ),
    "tools": (
        lambda text: {"messages": user(text), "tools": tool("add"), "tool_choice": "auto"},
        {"tools": tool("subtract")},
        "tools",
    ),
    "structured output": (
        lambda text: {"messages": user(text), "response_format": schema("sum")},
        {"response_format": schema("total")},
        "response_format",
    ),
    "20,000 characters": (
        lambda text: {"messages": [SYSTEM, *user(long(text))], "temperature": 0.5},
        {"temperature": 0.6},
        "temperature",
    ),
    "five turns": (
        lambda text: {"messages": [SYSTEM, *BEFORE, *user(text)]},
        {"messages": [*BEFORE, *user(ONE)]},
        "rows",
    ),
    "an image": (
        lambda text: {"messages": [SYSTEM, *image(text)]},
        {"messages": [SYSTEM, *image(ONE, detail="low")]},
        "messages.user",
    ),
    "several parts and a name": (
        lambda text: {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": each} for each in (text, "Briefly.")],
                    "name": f"user-{len(text)}",
                }
            ]
        },
        {"messages": [{**user(ONE)[0], "name": "ann"}]},
        "messages.user",
    ),
    "results of tools": (
        lambda text: {"messages": result(text), "tools": tool("add")},
        {"messages": [*result(ONE), *user("And then?")]},
        "rows",
    ),
}
LATER = ("five turns", "results of tools")


def request_rows(body: Any, *, start: int = 20_000, count: int = 60) -> list[dict[str, Any]]:
    """Rows that are requests, as a client sends them, about the queries of the tests' pool."""
    return [
        {"request": {"model": "auto", "stream": False, **body(row["query"])}}
        | {"correct": row["correct"]}
        for row in as_json(labelled(start, count))
    ]


def certificate(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    """The certificate of a chat completion by the official client."""
    answer = gateway.openai().chat.completions.create(model="auto", **fields)
    assert answer.choices[0].message.content
    return answer.model_dump()["racer"]["certificate"]


@pytest.mark.parametrize("kind", KINDS)
def test_requests_like_the_rows_are_certified_and_no_others(
    serve: Serve, pool: FakePool, kind: str
) -> None:
    """The official client; one changed condition voids, and the certificate names its field.

    Beside the rows of the kind there are rows of plain queries, which decide plain queries.
    """
    body, changed, field = KINDS[kind]
    for name in POOL:
        pool.say(name, '{"sum": 7, "total": 7}')
    gateway = serve(calibrated=False)
    evidence = gateway.upload([*as_json(labelled(10_000, 200)), *request_rows(body)])["evidence"]
    assert evidence["conditions"]["assumed"] == 260
    own = certificate(gateway, **body(ONE))
    remark = "later_turn" if kind in LATER else "labelled_conditions"
    assert (own["holds"], own["reasons"]) == (True, [remark])
    assert own["n"] <= 60
    plain = certificate(gateway, messages=user(ONE))
    assert (plain["holds"], plain["reasons"]) == (True, [])
    other = certificate(gateway, **{**body(ONE), **changed})
    assert other["holds"] is False
    if kind in LATER:  # it is no turn of these conversations
        assert "multi_turn_uncalibrated" in other["reasons"]
    else:
        assert f"conditions_differ:{field}" in other["reasons"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", lambda text: {"input": text, "instructions": "You work for a bank."}),
        ("/v1/responses", lambda text: {"input": user(text), "tools": [{"type": "web_search"}]}),
        ("/v1/completions", lambda text: {"prompt": text, "suffix": "!"}),
        ("/v1/completions", lambda text: {"prompt": [text], "max_tokens": 5}),
    ],
)
def test_rows_of_the_other_apis_certify_their_requests(serve: Serve, path: str, body: Any) -> None:
    """The endpoint is a condition, and each API has its own fields."""
    gateway = serve(calibrated=False)
    gateway.upload(request_rows(body))
    sent = gateway.post(path, json={"model": "auto", **body(ONE)})
    assert sent.status_code == 200, sent.text
    found = sent.json()["racer"]["certificate"]
    assert (found["holds"], found["reasons"]) == (True, [])
    plain = gateway.chat(ONE)["racer"]["certificate"]
    assert (plain["holds"], plain["reasons"]) == (False, ["conditions_differ:rows"])


def test_csv_and_parquet_carry_requests(serve: Serve) -> None:
    """As JSON text in a column, they are the rows that the API's own body has."""
    body, *_ = KINDS["tools"]
    rows = request_rows(body)
    requests = [json.dumps(row["request"]) for row in rows]
    text, file = io.StringIO(), io.BytesIO()
    table = csv.writer(text)
    table.writerow(["request", *POOL])
    table.writerows(
        [request, *(int(row["correct"][name]) for name in POOL)]
        for request, row in zip(requests, rows, strict=True)
    )
    labels = [row["correct"] for row in rows]
    parquet.write_table(pa.table({"request": requests, "correct": labels}), file)
    gateway = serve(calibrated=False)
    shown = ("n", "rows", "lambda_hat", "conditions", "duplicates", "near_duplicates")
    expected = {name: gateway.upload(rows, dry_run=True)["evidence"][name] for name in shown}
    assert expected["conditions"]["assumed"] == len(rows)
    for name, data in (("x.csv", text.getvalue().encode()), ("x.parquet", file.getvalue())):
        response = gateway.post(
            "/calibrate", ADMIN_KEY, files={"file": (name, data)}, data={"dry_run": "true"}
        )
        assert response.status_code == 200, response.text
        evidence = response.json()["evidence"]
        assert {each: evidence[each] for each in shown} == expected, name


def test_digests_in_rows_count_before_what_is_sent_now(serve: Serve) -> None:
    """Rows that were labelled under another temperature say so, and certify no request."""
    gateway = serve(calibrated=False)
    body, *_ = KINDS["system prompt"]
    reader = ConditionReader(gateway.settings.candidates)
    digests = dict(reader.read({**body(ONE), "temperature": 2}).digests)
    rows = [row | {"conditions": digests} for row in request_rows(body)]
    assert gateway.upload(rows)["evidence"]["conditions"]["assumed"] == 0
    assert certificate(gateway, **body(ONE))["holds"] is False
    assert certificate(gateway, **body(ONE), temperature=2)["holds"] is True


def test_digests_of_another_request_are_refused(serve: Serve) -> None:
    """Digests of plain text cannot certify plain text by rows of a system prompt and tools."""
    gateway = serve(calibrated=False)
    reader = ConditionReader(gateway.settings.candidates)
    body, *_ = KINDS["system prompt"]

    def refused(rows: list[dict[str, Any]], digests: Mapping[str, str], place: int) -> None:
        given = {"rows": [row | {"conditions": dict(digests)} for row in rows]}
        response = gateway.post("/calibrate", ADMIN_KEY, json=given)
        assert f'row {place}: "conditions" are the digests of a request' in (
            error_message(response, 422)
        )

    rows = request_rows(body)
    refused(rows, reader.configured.digests, 1)
    earlier = reader.read({**body(ONE), "temperature": 2}).digests
    refused([*rows, *request_rows(lambda text: {"messages": user(text)})], earlier, len(rows) + 1)


def test_questions_that_begin_alike_are_no_copies(serve: Serve) -> None:
    """The router reads 8,192 characters of the same documents; each question is a row of its own.

    So is each turn that ends like another conversation's.
    """
    gateway = serve(calibrated=False)
    rows = as_json(labelled(10_000, 60))
    long_rows = [row | {"query": f"{'context ' * 2_000}{row['query']}"} for row in rows]
    evidence = gateway.upload(long_rows, rows_kind="questions", dry_run=True)["evidence"]
    assert (evidence["rows"], evidence["duplicates"], evidence["near_duplicates"]) == (60, 0, 0)
    turns = [
        {"messages": [*user(row["query"]), BEFORE[1], *user("Why?")], "correct": row["correct"]}
        for row in rows
    ]
    evidence = gateway.upload([*rows, *turns], rows_kind="questions", dry_run=True)["evidence"]
    assert evidence["later_turns"]["rows"] == 60


def test_a_bad_request_is_one_error_with_its_line(serve: Serve) -> None:
    """Nothing is stored, and the message quotes nothing of the row."""
    gateway = serve(calibrated=False)
    for fields, message in (
        ({"tools": {"add": 1}}, '"tools" must be a list'),
        ({"messages": user("x" * 2**20)}, "longer than"),
        ({"chat_template": "x"}, "'chat_template' is not passed on"),
        ({"messages": None, "input": ONE, "previous_response_id": "r"}, "stored conversations"),
    ):
        request = {"messages": user(ONE), **fields}
        row = {"request": {name: each for name, each in request.items() if each is not None}}
        rows = [*as_json(labelled(10_000, 30)), row | {"correct": dict.fromkeys(POOL, True)}]
        lines = b"".join(json.dumps(each).encode() + b"\n" for each in rows)
        response = gateway.post("/calibrate", ADMIN_KEY, files={"file": ("x.jsonl", lines)})
        found = error_message(response, 422)
        assert found.startswith("x.jsonl: line 31: ")
        assert message in found
        assert ONE not in found
        assert len(found) < 300
    assert gateway.get("/calibrations", ADMIN_KEY).json()["data"] == []


def test_a_query_is_too_long_where_the_router_read_rows_otherwise(restart: Restart) -> None:
    """Under one limit all lengths are covered; under another, those below both."""
    rows = [row | {"query": long(row["query"])} for row in as_json(labelled(10_000, 60))]
    with restart(limits={"query_chars": 1_000}) as gateway:
        gateway.upload(rows)
        assert certificate(gateway, messages=user(long(ONE)))["reasons"] == []
    for limit in (500, 2_000):
        below = min(limit, 1_000)
        with restart(limits={"query_chars": limit}) as gateway:
            for length, reasons in ((below, []), (below + 1, ["query_too_long"])):
                assert certificate(gateway, messages=user(long(ONE)[:length]))["reasons"] == reasons
