"""Messages: the table of fields and blocks, answers, events, and what candidates are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import SchemaError, UpstreamError
from app.settings import key_format
from app.wire.messages.answer import STOP_REASONS, Ending
from app.wire.messages.blocks import BLOCKS
from app.wire.messages.format import Messages
from app.wire.messages.request import REQUEST_FIELDS, chat_fields
from racer_core.errors import InputError
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    TWO,
    Gateway,
    Serve,
    as_json,
    candidates,
    labelled,
    user,
)
from tests.kit.upstream import FakePool

from .formats import MESSAGES, WHOLE_POOL

CACHED = {"cache_control": {"type": "ephemeral"}}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AA=="}
TOOL = {
    "name": "read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    **CACHED,
}


def block(kind: str, **members: Any) -> dict[str, Any]:
    """A content block."""
    return {"type": kind, **members}


def turn(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    """A turn of blocks."""
    return {"role": role, "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    """A text block with a marker of the cache."""
    return block("text", text=value, **CACHED)


def sent(*turns: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The turns of chat that candidates are sent."""
    return chat_fields({"messages": list(turns), **fields})["messages"]


# Requests ---------------------------------------------------------------------------------------

FIELDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("auto", {"model": "auto"}),
    "racer": ({"alpha": 0.1}, {"racer": {"alpha": 0.1}}),
    "stream": (True, {"stream": True}),
    "system": ("Be brief.", {}),
    "messages": (user("Hi"), {}),
    "max_tokens": (5, {"max_tokens": 5}),
    "stop_sequences": (["END"], {"stop": ["END"]}),
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.9, {"top_p": 0.9}),
    "top_k": (7, {"top_k": 7}),
    "tools": (
        [TOOL | {"strict": True, "defer_loading": True}],
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "read",
                        "description": "Reads a file.",
                        "parameters": TOOL["input_schema"],
                        "strict": True,
                    },
                }
            ]
        },
    ),
    "tool_choice": (
        {"type": "any", "disable_parallel_tool_use": True},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ),
    "thinking": ({"type": "enabled", "budget_tokens": 2_000}, {}),
    "output_config": (
        {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        {
            "reasoning_effort": "high",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
            },
        },
    ),
    "output_format": (
        {"type": "json_schema", "schema": {}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": {}, "strict": True},
            }
        },
    ),
    "metadata": ({"user_id": "ann"}, {"user": "ann"}),
}
REFUSED = {
    "container": "c1",
    "mcp_servers": [{"url": "https://example.org"}],
    "thread": {"id": "t"},
}
DROPPED = {row.name for row in REQUEST_FIELDS} - FIELDS.keys() - REFUSED.keys()


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_each_field_becomes_what_the_table_says(name: str) -> None:
    """Alone beside the turns; a null says nothing."""
    value, expected = FIELDS[name]
    body = {"messages": user("Hi")}
    found = chat_fields({**body, name: value})
    assert {key: each for key, each in found.items() if key != "messages"} == expected
    if name not in ("messages", "model", "racer", "stream"):
        assert chat_fields({**body, name: None}) == body


@pytest.mark.parametrize("name", sorted(DROPPED))
def test_fields_without_a_meaning_here_are_dropped(name: str) -> None:
    """Whatever their value is."""
    assert chat_fields({"messages": user("Hi"), name: {"type": "x"}}) == {"messages": user("Hi")}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_fields_whose_work_nobody_would_do_are_refused(name: str) -> None:
    """The error names the field; an empty value asks for nothing."""
    with pytest.raises(InputError) as caught:
        chat_fields({"messages": user("Hi"), name: REFUSED[name]})
    assert caught.value.param == name
    assert chat_fields({"messages": user("Hi"), name: []}) == {"messages": user("Hi")}


def test_empty_lists_are_not_sent() -> None:
    """Servers of chat refuse them."""
    empty: dict[str, Any] = {"tools": [], "stop_sequences": [], "system": []}
    assert chat_fields({"messages": user("Hi"), **empty}) == {"messages": user("Hi")}


def test_other_fields_are_those_of_every_body() -> None:
    """They pass to candidates; a field of chat gives way to the one that the API has for it."""
    found = chat_fields({"messages": user("Hi"), "seed": 3, "stop": ["a"], "stop_sequences": ["b"]})
    assert found == {"messages": user("Hi"), "seed": 3, "stop": ["b"]}


@pytest.mark.parametrize(
    ("system", "prompt"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be brief."), text("In German.")], "Be brief.\n\nIn German."),
        (
            [block("text", text="x-anthropic-billing-header: cch=1;"), text("Be brief.")],
            "Be brief.",
        ),
        ("", None),
        ([], None),
    ],
    ids=str,
)
def test_a_system_prompt_is_the_first_turn(system: Any, prompt: str | None) -> None:
    """A text or blocks; what differs in every request is left out."""
    expected = [] if prompt is None else [{"role": "system", "content": prompt}]
    assert sent(*user("Hi"), system=system) == [*expected, *user("Hi")]


def test_a_later_system_turn_is_a_reminder_of_the_user() -> None:
    """Templates take a system turn at the start alone; one there continues the prompt."""
    first, later = ({"role": "system", "content": each} for each in ("In German.", "It is late."))
    answer = {"role": "assistant", "content": "Hallo"}
    assert sent(first, *user("Hi"), answer, later, *user("And?"), system="Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nIn German."},
        *user("Hi"),
        answer,
        *user("<system-reminder>\nIt is late.\n</system-reminder>\nAnd?"),
    ]


CALL = block("tool_use", id="t1", name="read", input={"path": "a"})
OTHER_CALL = block("tool_use", id="t2", name="read", input={"path": "b"})
CHAT_CALLS = [
    {"id": each, "type": "function", "function": {"name": "read", "arguments": arguments}}
    for each, arguments in (("t1", '{"path":"a"}'), ("t2", '{"path":"b"}'))
]
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

TURNS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "texts": ([turn(text("a"), text(""), text("b"))], user("a\nb")),
    "neighbours": ([*user("a"), turn(text("b"))], user("a\nb")),
    "nothing": ([turn()], user("")),
    "image": (
        [turn(text("See"), block("image", source=PIXEL), text("this"), text("and that"))],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    IMAGE_PART,
                    {"type": "text", "text": "this\nand that"},
                ],
            }
        ],
    ),
    "image_url": (
        [turn(block("image", source={"type": "url", "url": "https://example.org/a.png"}))],
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
                ],
            }
        ],
    ),
    "document": (
        [
            turn(
                block("document", title="T", source={"type": "text", "data": "words"}),
                block("document", source={"type": "content", "content": [text("more")]}),
            )
        ],
        user("T\nwords\nmore"),
    ),
    "search_result": (
        [turn(block("search_result", title="T", source="S", content=[text("words")]))],
        user("T\nS\nwords"),
    ),
    "parallel_calls": (
        [
            turn(text("I read."), CALL, OTHER_CALL, role="assistant"),
            turn(
                block("tool_result", tool_use_id="t2", content=[text("B"), text("C")]),
                block("tool_result", tool_use_id="t1", content="no file", is_error=True),
                text("Go on."),
            ),
        ],
        [
            {"role": "assistant", "content": "I read.", "tool_calls": CHAT_CALLS},
            {"role": "tool", "tool_call_id": "t2", "content": "B\nC"},
            {"role": "tool", "tool_call_id": "t1", "content": "Error: no file"},
            *user("Go on."),
        ],
    ),
    "results_come_first": (
        [
            turn(CALL, role="assistant"),
            turn(
                text("Look:"),
                block("tool_result", tool_use_id="t1"),
            ),
        ],
        [
            {"role": "assistant", "content": None, "tool_calls": CHAT_CALLS[:1]},
            {"role": "tool", "tool_call_id": "t1", "content": ""},
            *user("Look:"),
        ],
    ),
    "result_with_image": (
        [
            turn(
                block(
                    "tool_result",
                    tool_use_id="t1",
                    content=[text("seen"), block("image", source=PIXEL)],
                )
            )
        ],
        [
            {"role": "tool", "tool_call_id": "t1", "content": "seen"},
            {"role": "user", "content": [IMAGE_PART]},
        ],
    ),
    "tool_reference": (
        [
            turn(
                block(
                    "tool_result",
                    tool_use_id="t1",
                    content=[block("tool_reference", tool_name="read")],
                )
            )
        ],
        [{"role": "tool", "tool_call_id": "t1", "content": "read"}],
    ),
    "thinking": (
        [
            turn(
                block("thinking", thinking="Hm.", signature="s"),
                block("redacted_thinking", data="x"),
                text("Hi"),
                role="assistant",
            ),
            *user("And?"),
        ],
        [{"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}, *user("And?")],
    ),
}


@pytest.mark.parametrize("name", sorted(TURNS))
def test_blocks_become_turns_of_chat(name: str) -> None:
    """Markers of the cache are dropped wherever they stand."""
    turns, expected = TURNS[name]
    assert sent(*turns) == expected


def test_every_block_of_the_table_is_tried() -> None:
    """Red when a row is added without a case."""
    tried = json.dumps([turns for turns, _ in TURNS.values()])
    assert [row.type for row in BLOCKS if f'"type": "{row.type}"' not in tried] == []


def test_a_begun_answer_is_continued() -> None:
    """The last turn of the assistant is no turn that has ended; a call of a tool has."""
    begun = {"role": "assistant", "content": "{"}
    found = chat_fields({"messages": [*user("Hi"), begun]})
    assert found.pop("messages") == [*user("Hi"), begun]
    assert found == {"continue_final_message": True, "add_generation_prompt": False}
    called = chat_fields({"messages": [*user("Hi"), turn(CALL, role="assistant")]})
    assert called.keys() == {"messages"}


@pytest.mark.parametrize(
    ("fields", "place", "kind"),
    [
        ({"messages": [turn(block("server_tool_use"))]}, "messages.0.content.0", InputError),
        ({"messages": [turn(CALL)]}, "messages.0.content.0", InputError),
        ({"messages": [turn({})]}, "messages.0.content.0", InputError),
        ({"messages": [turn({"type": ["text"]})]}, "messages.0.content.0", InputError),
        ({"messages": [turn(block("text", text=7))]}, "messages.0.content.0.text", SchemaError),
        ({"messages": [turn(block("image"))]}, "messages.0.content.0.source", SchemaError),
        (
            {"messages": [turn(block("image", source={"type": "file", "file_id": "f"}))]},
            "messages.0.content.0.source",
            InputError,
        ),
        (
            {"messages": [turn(block("document", source={"type": "base64", "data": "x"}))]},
            "messages.0.content.0.source",
            InputError,
        ),
        (
            {"messages": [turn(block("tool_result", tool_use_id="t", content=[7]))]},
            "messages.0.content.0",
            SchemaError,
        ),
        (
            {"messages": [turn(block("tool_result", tool_use_id="t", content=[CALL]))]},
            "messages.0.content.0.content.0",
            InputError,
        ),
        ({"messages": user("Hi"), "system": [block("image")]}, "system.0", SchemaError),
        ({"messages": user("Hi"), "tools": [{"name": "read"}]}, "tools.0", SchemaError),
        (
            {"messages": user("Hi"), "tools": [TOOL, {"type": "web_search_20250305"}]},
            "tools.1",
            InputError,
        ),
        ({"messages": user("Hi"), "tool_choice": {"type": "tool"}}, "tool_choice", SchemaError),
        (
            {"messages": user("Hi"), "output_config": {"effort": "huge"}},
            "output_config.effort",
            SchemaError,
        ),
        (
            {"messages": user("Hi"), "output_config": {"format": {"type": "xml"}}},
            "output_config.format",
            SchemaError,
        ),
    ],
    ids=str,
)
def test_what_cannot_be_translated_is_refused_by_its_place(
    fields: dict[str, Any], place: str, kind: type[InputError]
) -> None:
    """And never left out without a word."""
    with pytest.raises(InputError) as caught:
        chat_fields(fields)
    assert (type(caught.value), caught.value.param) == (kind, place)


def test_candidates_are_sent_the_translated_request(gateway: Gateway, pool: FakePool) -> None:
    """By chat, with the gateway's own fields for a stream."""
    fields = {"system": [text("Be brief.")], "tools": [TOOL], "tool_choice": {"type": "auto"}}
    MESSAGES.stream(gateway, ONE, max_tokens=64, **fields)
    (request,) = pool.requests
    assert pool.paths == ["/v1/chat/completions"]
    assert request["messages"] == [{"role": "system", "content": "Be brief."}, *user(ONE)]
    assert [each["function"]["name"] for each in request["tools"]] == ["read"]
    assert (request["tool_choice"], request["max_tokens"]) == ("auto", 64)
    assert request.keys() == {
        *("messages", "tools", "tool_choice", "max_tokens", "model", "stream", "stream_options")
    }


def test_rows_of_chat_certify_messages(serve: Serve) -> None:
    """A request that is a row in the other API, with a system prompt and a limit, is certified."""
    rows = [
        {
            "request": {
                "messages": [{"role": "system", "content": "Be brief."}, *user(row["query"])],
                "max_tokens": 64,
            },
            "correct": row["correct"],
        }
        for row in as_json(labelled(20_000, 60))
    ]
    gateway = serve(calibrated=False)
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows, "confirm": True})
    assert response.status_code == 200, response.text
    alike = MESSAGES.answer(gateway, ONE, system="Be brief.", max_tokens=64)
    assert alike["racer"]["certificate"]["holds"] is True
    other = MESSAGES.answer(gateway, ONE, system="Be long.", max_tokens=64)
    certificate = other["racer"]["certificate"]
    assert certificate["holds"] is False
    assert "conditions_differ:messages.system" in certificate["reasons"]


# Answers ----------------------------------------------------------------------------------------

CALLED = {
    "role": "assistant",
    "content": "I read.",
    "reasoning_content": "Hm.",
    "tool_calls": CHAT_CALLS,
}


def body(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """A candidate's chat completion."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    chosen = {"index": 0, "message": message, "finish_reason": "stop", **choice}
    return {"id": "c", "choices": [chosen], "usage": usage}


def answered(message: dict[str, Any], api_format: Messages | None = None, **choice: Any) -> Any:
    """The message that it becomes."""
    api_format = api_format or Messages(shows_thinking=True)
    parsed = api_format.body("adder", json.dumps(body(message, **choice)).encode())
    return api_format.stamped(parsed, decision_id="msg_1", model="adder")


def test_an_answer_has_a_block_for_each_part() -> None:
    """Reasoning, text and calls in this order, and counts that leave out what was cached."""
    assert answered(CALLED, finish_reason="tool_calls") == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "adder",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"},
            {"type": "text", "text": "I read."},
            CALL,
            OTHER_CALL,
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 8,
            "output_tokens": 2,
        },
    }


def test_reasoning_is_shown_where_it_was_asked_for() -> None:
    """Other clients read the first block as the text."""
    assert [each["type"] for each in answered(CALLED, Messages())["content"]] == [
        "text",
        "tool_use",
        "tool_use",
    ]


@pytest.mark.parametrize(
    ("choice", "message", "expected"),
    [
        ({"finish_reason": "stop"}, {}, ("end_turn", None)),
        ({"finish_reason": "length"}, {}, ("max_tokens", None)),
        ({"finish_reason": "content_filter"}, {}, ("refusal", None)),
        ({"finish_reason": "stop", "stop_reason": "END"}, {}, ("stop_sequence", "END")),
        ({"finish_reason": "stop", "stop_reason": "x"}, {}, ("end_turn", None)),
        ({"finish_reason": "stop", "stop_reason": 151_645}, {}, ("end_turn", None)),
        ({"finish_reason": "stop"}, {"tool_calls": CHAT_CALLS}, ("tool_use", None)),
        ({"finish_reason": "tool_calls"}, {"tool_calls": CHAT_CALLS}, ("tool_use", None)),
        ({"finish_reason": "length"}, {"tool_calls": CHAT_CALLS}, ("max_tokens", None)),
        ({"finish_reason": "stop"}, {"refusal": "No."}, ("refusal", None)),
        ({"finish_reason": None}, {}, ("end_turn", None)),
    ],
    ids=str,
)
def test_stop_reasons(
    choice: dict[str, Any], message: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    """Those of a whole answer, and of the same answer as a stream."""
    given = {"role": "assistant", "content": "words", **message}
    api_format = Messages(stop_sequences=["END"])
    whole = answered(given, api_format, **choice)
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    parsed = api_format.body("adder", json.dumps(body(given, **choice)).encode())
    writer = api_format.live(decision_id="msg_1", model="adder")
    for piece in api_format.pieces(parsed):
        writer.feed(piece)
    delta = events(writer.close({}))[-2]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected


def test_every_finish_reason_has_a_stop_reason() -> None:
    """Those that the parser of answers leaves, and none that Anthropic's clients do not know."""
    known = {"end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"}
    for reason in ("stop", "length", "tool_calls", "function_call", "content_filter"):
        assert STOP_REASONS[reason] in known
        assert Ending(finish_reason=reason).stop([])["stop_reason"] in known


@pytest.mark.parametrize("arguments", ['{"path": ', "[1]", "7", '{"a": 1, "a": 2}', {"path": "a"}])
def test_calls_that_are_no_objects_are_the_candidates_failure(arguments: Any) -> None:
    """Another candidate answers then. At the token limit a call may be cut: its input is empty."""
    call = {"id": "t", "type": "function", "function": {"name": "read", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    with pytest.raises(UpstreamError):
        answered(message, finish_reason="tool_calls")
    cut = answered(message, finish_reason="length")
    assert cut["content"] == [{"type": "tool_use", "id": "t", "name": "read", "input": {}}]
    assert cut["stop_reason"] == "max_tokens"


def test_a_call_without_an_id_gets_one() -> None:
    """Results name it; an old server sends neither ids nor a list."""
    message = {"role": "assistant", "content": None, "function_call": {"name": "read"}}
    (found,) = answered(message)["content"]
    assert found == {"type": "tool_use", "id": "toolu_0_msg_1", "name": "read", "input": {}}


# Events -----------------------------------------------------------------------------------------


def events(written: list[bytes]) -> list[dict[str, Any]]:
    """The events; that each is named after its type is checked."""
    found: list[dict[str, Any]] = []
    for each in b"".join(written).decode().split("\n\n")[:-1]:
        name, data = each.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def collected(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together; the order that the API promises is checked."""
    begun, *between, delta, stop = [each for each in found if each["type"] != "ping"]
    assert (begun["type"], delta["type"], stop) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message = {**begun["message"], **delta["delta"], "usage": delta["usage"]}
    blocks: list[dict[str, Any]] = []
    is_open, arguments = False, ""
    for event in between:
        if event["type"] == "content_block_start":
            assert (is_open, event["index"]) == (False, len(blocks))
            is_open, arguments = True, ""
            blocks.append(dict(event["content_block"]))
            continue
        assert (is_open, event["index"]) == (True, len(blocks) - 1)
        match event.get("delta", {}):
            case {"type": "text_delta", "text": more}:
                blocks[-1]["text"] += more
            case {"type": "thinking_delta", "thinking": more}:
                blocks[-1]["thinking"] += more
            case {"type": "signature_delta", "signature": signature}:
                blocks[-1]["signature"] = signature
            case {"type": "input_json_delta", "partial_json": more}:
                arguments += more
            case _:
                assert event["type"] == "content_block_stop"
                is_open = False
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(arguments or "{}")
    assert is_open is False
    return {**message, "content": blocks}


def chunks(*deltas: dict[str, Any], finish: str = "stop") -> list[str]:
    """A chat stream with these deltas."""
    return [
        json.dumps({"id": "c", "choices": [{"index": 0, "delta": each, "finish_reason": end}]})
        for each, end in [*((delta, None) for delta in deltas), ({}, finish)]
    ]


def call_part(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    """A part of a call, as vLLM streams it."""
    function = {"arguments": arguments, **({"name": "read"} if head else {})}
    return {"tool_calls": [{"index": index, **head, "function": function}]}


STREAMED = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "H"},
    {"reasoning_content": "m."},
    *({"content": letter} for letter in "I read."),
    call_part(0, "", id="t1", type="function"),
    call_part(0, '{"path":'),
    call_part(0, '"a"}'),
    call_part(1, '{"path":"b"}', id="t2", type="function"),
]


def fed(api_format: Messages, data: list[str]) -> list[dict[str, Any]]:
    """The events of a chat stream, each chunk parsed as a candidate's stream is."""
    writer = api_format.live(decision_id="msg_1", model="adder")
    written: list[bytes] = []
    template = None
    for each in data:
        piece = None if template is None else template.event(each)
        if piece is None:
            piece = api_format.piece("adder", each)
            template = api_format.event_template(each, piece)
        written += writer.feed(piece)
    return events([*written, *writer.close({"decision_id": "msg_1"}, {"completion_tokens": 9})])


def test_a_stream_and_a_whole_answer_are_the_same_message() -> None:
    """Live with its parts, and merged: both add up to the plain answer."""
    api_format = Messages(shows_thinking=True)
    whole = answered(CALLED, finish_reason="tool_calls")
    live = collected(fed(api_format, chunks(*STREAMED, finish="tool_calls")))
    assert live == {**whole, "usage": {**dict.fromkeys(whole["usage"], 0), "output_tokens": 9}}
    assert collected(events(api_format.whole_stream(whole, {}))) == whole


def test_hidden_reasoning_keeps_the_connection_alive() -> None:
    """A ping for each part of it; the text's block is the first."""
    found = fed(Messages(), chunks(*STREAMED, finish="tool_calls"))
    assert [each["type"] for each in found[:4]] == [
        "message_start",
        "ping",
        "ping",
        "content_block_start",
    ]
    assert [each["type"] for each in collected(found)["content"]] == [
        "text",
        "tool_use",
        "tool_use",
    ]


def test_letters_go_out_as_they_come() -> None:
    """One event each, from the template of the chunks, also in a second block of text."""
    deltas = [{"content": each} for each in "abc"]
    again = [{"reasoning": "Hm."}, *deltas]
    found = fed(Messages(shows_thinking=True), chunks(*deltas, *again))
    texts = [
        (each["index"], each["delta"]["text"])
        for each in found
        if "text" in str(each)
        and each["type"] == "content_block_delta"
        and each["delta"]["type"] == "text_delta"
    ]
    assert texts == [(0, "a"), (0, "b"), (0, "c"), (2, "a"), (2, "b"), (2, "c")]


@pytest.mark.parametrize(
    "deltas",
    [
        [call_part(0, "{}", id="t1"), call_part(1, "{}", id="t2"), call_part(0, "{}")],
        [call_part(0, "{}", id="t1"), {"content": "a"}, call_part(0, "{}")],
        [call_part(0, "{}")],
        [{"tool_calls": [{"index": 0, "function": "read"}]}],
    ],
    ids=["interleaved", "after_text", "nameless", "no_object"],
)
def test_parts_that_fit_no_block_break_the_stream(deltas: list[dict[str, Any]]) -> None:
    """A visible failure instead of a call that was put together wrongly."""
    with pytest.raises(UpstreamError):
        fed(Messages(), chunks(*deltas))


@pytest.mark.parametrize("model", ["auto", "adder"])
def test_tokens_of_a_stream_are_at_its_end(gateway: Gateway, pool: FakePool, model: str) -> None:
    """Whether the candidate was chosen or named."""
    pool.say("adder", "seven")
    _, found = MESSAGES.stream(gateway, ONE, model=model)
    assert collected([{k: v for k, v in each.items() if k != "racer"} for each in found])[
        "usage"
    ] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 5,
    }


def test_a_waiting_stream_pings(serve: Serve, pool: FakePool) -> None:
    """Before the first event of a merged answer, as the other APIs send comments."""
    gateway = serve(limits={"comment_every_s": 0.1})
    for name in ("adder", "speller"):
        pool.say(name, "7", delay_s=0.6)
    _, found = MESSAGES.stream(gateway, TWO)
    assert found[0] == {"type": "ping"}
    assert collected(
        [e for e in found if e["type"] != "ping"][:-2]
        + [{k: v for k, v in e.items() if k != "racer"} for e in found[-2:]]
    )["content"] == [{"type": "text", "text": "7"}]


def test_calls_vote_as_calls(gateway: Gateway, pool: FakePool) -> None:
    """As in chat: equal arguments are equal answers, however they are written."""
    for name, arguments in (("adder", '{"a": 9}'), ("speller", '{"a": 1}'), ("poet", '{"a":1}')):
        function = {"name": "read", "arguments": arguments}
        calls = [{"id": "t", "type": "function", "function": function}]
        pool.say(name, "", message={"role": "assistant", "content": None, "tool_calls": calls})
    answer = MESSAGES.answer(gateway, ONE, tools=[TOOL], racer=WHOLE_POOL)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["content"][0]["input"] == {"a": 1}


# Counted tokens ---------------------------------------------------------------------------------


def count(gateway: Gateway, **fields: Any) -> Any:
    """A request for the tokens of a prompt."""
    request = {"model": "auto", "messages": user(ONE), **fields}
    return gateway.post("/v1/messages/count_tokens", json=request)


def test_tokens_are_counted_by_the_candidates_tokenizers(gateway: Gateway, pool: FakePool) -> None:
    """The largest of the pool's; each candidate is sent its own model and the whole prompt."""
    pool.tokens |= {"adder": 12, "speller": 15, "poet": 11}
    response = count(gateway, system="Be brief.", tools=[TOOL], thinking={"type": "adaptive"})
    assert response.json() == {
        "input_tokens": 15,
        "racer": {"input_tokens": {"adder": 12, "speller": 15, "poet": 11}, "failures": {}},
    }
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert {each["model"] for each in pool.tokenized} == {"adder", "speller", "poet"}
    for each in pool.tokenized:
        assert each["messages"] == [{"role": "system", "content": "Be brief."}, *user(ONE)]
        assert each.keys() == {"model", "messages", "tools"}
    assert pool.requests == []


def test_candidates_without_a_tokenizer_are_named(gateway: Gateway, pool: FakePool) -> None:
    """The others' count stands; without any the error says what is missing."""
    pool.tokens["adder"] = 12
    assert count(gateway).json() == {
        "input_tokens": 12,
        "racer": {
            "input_tokens": {"adder": 12},
            "failures": {"speller": "no_tokenizer", "poet": "no_tokenizer"},
        },
    }
    assert count(gateway, model="adder").json()["input_tokens"] == 12
    refused = count(gateway, model="poet")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (404, "not_found_error")
    assert error["details"]["error_code"] == "no_tokenizer"
    assert "/tokenize" in error["message"]
    assert count(gateway, model="gpt-4o").json()["error"]["details"]["error_code"] == (
        "model_not_found"
    )


def test_pools_and_keys_choose_whose_tokens_are_counted(serve: Serve, pool: FakePool) -> None:
    """As they choose who answers."""
    own = key_format.new_key()
    keys = [
        {
            "name": "own",
            "hash": key_format.format_hash(own, key_format.new_salt()),
            "candidates": ["poet"],
        }
    ]
    pools = {"pair": {"candidates": ["adder", "speller"]}}
    gateway = serve(pools=pools, access={"keys": keys})
    pool.tokens |= {"adder": 12, "speller": 15, "poet": 11}

    def counted(key: str, model: str) -> Any:
        body = {"model": model, "messages": user(ONE)}
        return gateway.post("/v1/messages/count_tokens", key, json=body)

    assert counted(DATA_KEY, "auto/pair").json()["racer"]["input_tokens"].keys() == {
        *("adder", "speller")
    }
    assert counted(own, "auto").json()["input_tokens"] == 11
    for model in ("auto/pair", "adder"):
        assert counted(own, model).status_code == 403
    assert MESSAGES.answer(gateway, ONE, model="auto/pair")["racer"]["selected"] == ["adder"]


def test_only_candidates_that_can_serve_the_request_count(serve: Serve, pool: FakePool) -> None:
    """A prompt with tools is none of a candidate without them."""
    gateway = serve(
        calibrated=False,
        candidates=candidates(pool.url, speller={"capabilities": {"tools": False}}),
    )
    pool.tokens |= {"adder": 12, "speller": 15, "poet": 11}
    assert count(gateway, tools=[TOOL]).json()["input_tokens"] == 12
    assert count(gateway).json()["input_tokens"] == 15
