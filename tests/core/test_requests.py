"""Rows that are whole requests: their text, their identity, and one clear error for a bad one."""

import json
from dataclasses import replace

import pytest

from racer_core.errors import RowsError
from racer_core.records.questions import read_questions
from racer_core.records.reader import parse_rows
from racer_core.records.request import GATEWAY_FIELDS, request_conversation
from racer_core.records.units import rows_units
from racer_core.types import RowsKind, Turn

LABELS = {"correct": {"a": True, "b": False}}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def user(text):
    """The last turn of a request."""
    return {"role": "user", "content": text}


def parse(*rows):
    """Rows written as JSON lines; a text is a line as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return parse_rows("\n".join(lines).encode(), "rows.jsonl")


def questions(tmp_path, *rows):
    """Questions of a file of these rows."""
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return read_questions(path)


@pytest.mark.parametrize(
    ("request_body", "query"),
    [
        ({"messages": [SYSTEM, user("2 + 2?")], "tools": TOOLS}, "2 + 2?"),
        ({"messages": [user([{"type": "text", "text": "2 + 2?"}])]}, "2 + 2?"),
        ({"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]}, "(no text)"),
        ({"messages": [SYSTEM]}, "Be brief."),
        ({"input": "2 + 2?", "instructions": "Be brief."}, "2 + 2?"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "4?"}]}]}, "4?"),
        ({"prompt": "2 + 2 ="}, "2 + 2 ="),
        ({"prompt": ["2 + 2 ="], "suffix": "."}, "2 + 2 ="),
        ({"messages": [user("y" * 20_000)]}, "y" * 20_000),
    ],
)
def test_a_request_is_a_row_with_the_text_that_the_router_reads(request_body, query):
    """The row keeps the whole request; the query is the text of the turn that asks."""
    (row,) = parse({"request": request_body, **LABELS}).rows
    assert (row.query, row.earlier, row.request) == (query, (), request_body)


def test_the_gateways_own_fields_are_dropped():
    """A body as a client sends it: where it goes and how it is streamed is no part of the row."""
    own = {"model": "auto", "stream": True, "stream_options": {}, "racer": {"alpha": 0.2}}
    own |= {"usage": {"include": True}, "timeout": 30}  # of other gateways' clients
    assert set(own) == GATEWAY_FIELDS
    (row,) = parse({"request": {**own, "messages": [user("x")], "seed": 1}, **LABELS}).rows
    assert row.request == {"messages": [user("x")], "seed": 1}


def test_a_question_is_a_whole_request(tmp_path):
    """The turns before its query are those of the request but system prompts."""
    turns = [SYSTEM, user("2 + 2?"), {"role": "assistant", "content": "4"}, user("And 3 + 3?")]
    (one,) = questions(tmp_path, {"request": {"messages": turns}, "reference": 6})
    assert (one.query, one.reference) == ("And 3 + 3?", "6")
    assert one.earlier == (Turn("user", "2 + 2?"), Turn("assistant", "4"))
    assert one.request == {"messages": turns}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        ("last_user", "And 3?"),
        ("conversation", "2 + 2?\n\n4\n\nAnd 3?"),
        ("conversation_with_system", "Be brief.\n\nIn German.\n\n2 + 2?\n\n4\n\nAnd 3?"),
        ("with_system", "Be brief.\n\nIn German.\n\nAnd 3?"),
    ],
)
def test_the_routers_text_of_a_conversation(read, text):
    """System prompts are read where that is configured, from every field that holds one."""
    turns = [user("2 + 2?"), {"role": "assistant", "content": "4"}, user("And 3?")]
    german = {"role": "developer", "content": "In German."}
    chat = {"messages": [SYSTEM, german, *turns]}
    responses = {"instructions": "Be brief.", "input": [german, *turns]}
    assert request_conversation(chat).text(read) == text
    assert request_conversation(responses).text(read) == text
    alone = {"messages": [SYSTEM]}
    assert request_conversation(alone).text(read) == "Be brief."


def test_calls_of_tools_make_a_later_turn(tmp_path):
    """A result of a tool is a turn, in both APIs that have tools."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    chat = [
        user("2 + 2?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ]
    items = [
        user("2 + 2?"),
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
    ]
    first, second = questions(
        tmp_path, {"request": {"messages": chat}}, {"request": {"input": items}}
    )
    assert (first.query, second.query) == ("2 + 2?", "2 + 2?")
    assert [turn.role for turn in first.earlier] == ["assistant", "tool"]
    assert [turn.role for turn in second.earlier] == ["assistant", "tool"]


def test_requests_with_one_query_and_other_system_prompts_are_no_copies(tmp_path):
    """The whole request identifies a question, in any order of its fields."""
    one = {"messages": [SYSTEM, user("x")], "seed": 1}
    other = {"messages": [{**SYSTEM, "content": "In French."}, user("x")], "seed": 1}
    again = {"seed": 1, "messages": [SYSTEM, user("x")]}
    found = questions(tmp_path, *({"request": each} for each in (one, other, again)))
    assert [each.copy for each in found] == [0, 0, 1]
    assert len({each.identity for each in found}) == 3
    with pytest.raises(RowsError, match="same query as line 1, with another reference"):
        questions(
            tmp_path, {"request": one, "reference": "1"}, {"request": again, "reference": "2"}
        )


def test_requests_of_one_kind_stay_in_one_part():
    """A near copy differs in case, space or Unicode form anywhere in the request."""
    texts = ["Be brief.", "be  BRIEF.", "In French."]
    requests = [{"messages": [{**SYSTEM, "content": each}, user("x\ny")]} for each in texts]
    rows = parse(*({"request": each, **LABELS} for each in [*requests, requests[0]]))
    rows = replace(rows, kind=RowsKind.QUESTIONS)
    assert rows_units(rows).tolist() == [0, 0, 1, 0]
    assert rows.duplicates == 1


BAD = [
    ({"request": {}}, "none of them"),
    ({"request": {"temperature": 0}}, "none of them"),
    ({"request": {"messages": None}}, "none of them"),
    ({"request": {"messages": [user("x")], "prompt": "x"}}, '"messages" and "prompt"'),
    ({"request": {"messages": [user("x")], "input": "x"}}, '"messages" and "input"'),
    ({"request": "what is it?"}, '"request" must be an object'),
    ({"request": [user("x")]}, '"request" must be an object'),
    ({"request": 7}, '"request" must be an object'),
    ({"request": {"messages": [user("x")]}, "query": "x"}, 'either "request" or "query"'),
    ({"request": {"messages": [user("x")]}, "messages": []}, 'either "request" or "messages"'),
    ({"request": {"messages": "x"}}, '"messages" must be a list of turns'),
    ({"request": {"messages": []}}, '"messages" must be a list of turns'),
    ({"request": {"messages": ["x"]}}, 'each of "messages" must be an object with a "role"'),
    ({"request": {"messages": [{"content": "x"}]}}, 'object with a "role"'),
    ({"request": {"messages": [{"role": "user", "content": 7}]}}, "a text or a list of parts"),
    ({"request": {"messages": [{"role": "user", "content": ["x"]}]}}, "a text or a list of parts"),
    ({"request": {"messages": [user(" ")]}}, "the last user message is empty"),
    ({"request": {"messages": [{"role": "assistant", "content": "x"}]}}, "no user message"),
    ({"request": {"input": [7]}}, 'each of "input" must be an object'),
    ({"request": {"prompt": " "}}, "the prompt is empty"),
    ({"request": {"prompt": ["one", "two"]}}, "one prompt per request"),
    ({"request": {"prompt": [1, 2]}}, "one prompt per request"),
    ({"request": {"messages": [user("x")], "tools": {"add": 1}}}, '"tools" must be a list'),
    (r'{"request": {"messages": [{"role": "user", "content": "y\ud800"}]}}', "surrogate"),
    ('{"request": ' + "[" * 100 + "]" * 100 + "}", "nested"),
    ({"query": "x", "request": None}, None),
]


@pytest.mark.parametrize(("bad", "expected"), BAD)
def test_a_bad_request_is_one_clear_error_with_its_line(bad, expected):
    """Line 2 of two; nothing of the file is used, and the message quotes no text of the row."""
    good = {"request": {"messages": [user("good")]}, **LABELS}
    row = bad | LABELS if isinstance(bad, dict) else bad[:-1] + f", {json.dumps(LABELS)[1:]}"
    if expected is None:  # an empty cell of a table
        assert len(parse(good, row)) == 2
        return
    with pytest.raises(RowsError) as caught:
        parse(good, row)
    assert str(caught.value).startswith("rows.jsonl: line 2: ")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 300
