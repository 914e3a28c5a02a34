"""Messages: the table of fields and blocks, answers, events, and what candidates are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import SchemaError, UpstreamError
from app.wire.messages.format import Messages
from app.wire.messages.request import REQUEST_FIELDS, chat_fields
from racer_core.errors import InputError
from tests.kit.accounts import configured_key
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
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

from .formats import MESSAGES

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

FUNCTION = {
    "name": "read", "description": "Reads a file.", "parameters": TOOL["input_schema"],
}  # fmt: skip


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The format of an answer, in chat."""
    wanted = {"name": "output", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def schema(value: dict[str, Any]) -> dict[str, Any]:
    """The same, in messages."""
    return {"type": "json_schema", "schema": value}


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
        {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]},
    ),
    "tool_choice": (
        {"type": "any", "disable_parallel_tool_use": True},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ),
    "thinking": ({"type": "enabled", "budget_tokens": 2_000}, {}),
    "output_config": (
        {"effort": "max", "format": schema({"type": "object"})},
        {"reasoning_effort": "high", **strict({"type": "object"})},
    ),
    "output_format": (schema({}), strict({})),
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


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *(({name: {"type": "x"}}, {}) for name in sorted(DROPPED)),
        ({"tools": [], "stop_sequences": [], "system": []}, {}),  # servers of chat refuse them
        ({"seed": 3, "stop": ["a"], "stop_sequences": ["b"]}, {"seed": 3, "stop": ["b"]}),
    ],
    ids=str,
)
def test_fields_without_a_meaning_here_are_dropped(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Others pass; a field of chat gives way to the one that the API has for it."""
    assert chat_fields({"messages": user("Hi"), **fields}) == {"messages": user("Hi"), **expected}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_fields_whose_work_nobody_would_do_are_refused(name: str) -> None:
    """The error names the field; an empty value asks for nothing."""
    with pytest.raises(InputError) as caught:
        chat_fields({"messages": user("Hi"), name: REFUSED[name]})
    assert caught.value.param == name
    assert chat_fields({"messages": user("Hi"), name: []}) == {"messages": user("Hi")}


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


def result(call: str, *content: dict[str, Any] | str, **members: Any) -> dict[str, Any]:
    """What a tool gave: blocks, or one text."""
    given = content[0] if content and isinstance(content[0], str) else list(content)
    return block(
        "tool_result", tool_use_id=call, **({"content": given} if content else {}), **members
    )


def chat_result(call: str, content: str) -> dict[str, Any]:
    """The same, in chat."""
    return {"role": "tool", "tool_call_id": call, "content": content}


def parts(*parts: dict[str, Any] | str) -> list[dict[str, Any]]:
    """A turn of parts, in chat."""
    content = [{"type": "text", "text": each} if isinstance(each, str) else each for each in parts]
    return [{"role": "user", "content": content}]


HERE = "https://example.org/a.png"
SAID = {"role": "assistant", "content": "I read.", "tool_calls": CHAT_CALLS}
TURNS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "texts": ([turn(text("a"), text(""), text("b"))], user("a\nb")),
    "neighbours": ([*user("a"), turn(text("b"))], user("a\nb")),
    "nothing": ([turn()], user("")),
    "image": (
        [turn(text("See"), block("image", source=PIXEL), text("this"), text("and that"))],
        parts("See", IMAGE_PART, "this\nand that"),
    ),
    "image_url": (
        [turn(block("image", source={"type": "url", "url": HERE}))],
        parts({"type": "image_url", "image_url": {"url": HERE}}),
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
                result("t2", text("B"), text("C")),
                result("t1", "no file", is_error=True),
                text("Go on."),
            ),
        ],
        [SAID, chat_result("t2", "B\nC"), chat_result("t1", "Error: no file"), *user("Go on.")],
    ),
    "results_come_first": (
        [turn(CALL, role="assistant"), turn(text("Look:"), result("t1"))],
        [
            SAID | {"content": None, "tool_calls": CHAT_CALLS[:1]},
            chat_result("t1", ""),
            *user("Look:"),
        ],
    ),
    "result_with_image": (
        [turn(result("t1", text("seen"), block("image", source=PIXEL)))],
        [chat_result("t1", "seen"), *parts(IMAGE_PART)],
    ),
    "tool_reference": (
        [turn(result("t1", block("tool_reference", tool_name="read")))],
        [chat_result("t1", "read")],
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


def test_a_begun_answer_is_continued() -> None:
    """The last turn of the assistant is no turn that has ended; a call of a tool has."""
    begun = {"role": "assistant", "content": "{"}
    found = chat_fields({"messages": [*user("Hi"), begun]})
    assert found.pop("messages") == [*user("Hi"), begun]
    assert found == {"continue_final_message": True, "add_generation_prompt": False}
    called = chat_fields({"messages": [*user("Hi"), turn(CALL, role="assistant")]})
    assert called.keys() == {"messages"}


def of_file(kind: str, **source: str) -> dict[str, Any]:
    """A block whose source cannot be sent on."""
    return block(kind, source=source)


FIRST = "messages.0.content.0"


@pytest.mark.parametrize(
    ("given", "place", "kind"),
    [
        (block("server_tool_use"), FIRST, InputError),
        (CALL, FIRST, InputError),
        ({}, FIRST, InputError),
        ({"type": ["text"]}, FIRST, InputError),
        (block("text", text=7), f"{FIRST}.text", SchemaError),
        (block("image"), f"{FIRST}.source", SchemaError),
        (of_file("image", type="file", file_id="f"), f"{FIRST}.source", InputError),
        (of_file("document", type="base64", data="x"), f"{FIRST}.source", InputError),
        (block("tool_result", tool_use_id="t", content=[7]), FIRST, SchemaError),
        (result("t", CALL), f"{FIRST}.content.0", InputError),
    ],
    ids=str,
)
def test_a_block_that_cannot_be_translated_is_refused_by_its_place(
    given: dict[str, Any], place: str, kind: type[InputError]
) -> None:
    """And never left out without a word."""
    with pytest.raises(InputError) as caught:
        sent(turn(given))
    assert (type(caught.value), caught.value.param) == (kind, place)


@pytest.mark.parametrize(
    ("fields", "place", "kind"),
    [
        ({"system": [block("image")]}, "system.0", SchemaError),
        ({"tools": [{"name": "read"}]}, "tools.0", SchemaError),
        ({"tools": [TOOL, {"type": "web_search_20250305"}]}, "tools.1", InputError),
        ({"tool_choice": {"type": "tool"}}, "tool_choice", SchemaError),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", SchemaError),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format", SchemaError),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_translated_is_refused_by_its_place(
    fields: dict[str, Any], place: str, kind: type[InputError]
) -> None:
    """As a block is."""
    with pytest.raises(InputError) as caught:
        sent(*user("Hi"), **fields)
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
    brief = {"role": "system", "content": "Be brief."}
    rows = [
        {
            "request": {"messages": [brief, *user(row["query"])], "max_tokens": 64},
            "correct": row["correct"],
        }
        for row in as_json(labelled(20_000, 60))
    ]
    gateway = serve(calibrated=False)
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows})
    assert response.status_code == 200, response.text
    for system, reasons in (("Be brief.", []), ("Be long.", ["conditions_differ:messages.system"])):
        answer = MESSAGES.answer(gateway, ONE, system=system, max_tokens=64)
        certificate = answer["racer"]["certificate"]
        assert certificate["holds"] is not bool(reasons)
        assert set(reasons) <= set(certificate["reasons"])


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
    """A ping for each part of it; other clients read the first block as the text."""
    found = fed(Messages(), chunks(*STREAMED, finish="tool_calls"))
    begin = ["message_start", "ping", "ping", "content_block_start"]
    assert [each["type"] for each in found[:4]] == begin
    whole = answered(CALLED, Messages())
    for message in (whole, collected(found)):
        assert [each["type"] for each in message["content"]] == ["text", "tool_use", "tool_use"]


def test_letters_go_out_as_they_come() -> None:
    """One event each, from the template of the chunks, also in a second block of text."""
    deltas = [{"content": each} for each in "abc"]
    found = fed(Messages(shows_thinking=True), chunks(*deltas, {"reasoning": "Hm."}, *deltas))
    texts = [
        (each["index"], each["delta"]["text"])
        for each in found
        if each.get("delta", {}).get("type") == "text_delta"
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


def without_racer(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events as Anthropic has them."""
    return [{name: value for name, value in each.items() if name != "racer"} for each in found]


@pytest.mark.parametrize("model", ["auto", "adder"])
def test_tokens_of_a_stream_are_at_its_end(gateway: Gateway, pool: FakePool, model: str) -> None:
    """Whether the candidate was chosen or named."""
    pool.say("adder", "seven")
    _, found = MESSAGES.stream(gateway, ONE, model=model)
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    usage = collected(without_racer(found))["usage"]
    assert usage == {"input_tokens": 10, **cached, "output_tokens": 5}


def test_a_waiting_stream_pings(shared: Shared, pool: FakePool) -> None:
    """Before the first event of a merged answer, as the other APIs send comments."""
    gateway = shared(limits={"comment_every_s": 0.05}).gateway
    for name in ("adder", "speller"):
        pool.say(name, "7", delay_s=0.6)
    _, found = MESSAGES.stream(gateway, TWO)
    assert found[0] == {"type": "ping"}
    assert collected(without_racer(found))["content"] == [{"type": "text", "text": "7"}]


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


def test_a_count_that_cannot_be_is_none(gateway: Gateway, pool: FakePool) -> None:
    """Far more tokens than the prompt has bytes: the counts of the others stand."""
    pool.tokens |= {"adder": 20_000, "speller": 15}
    racer = count(gateway).json()["racer"]
    assert racer["input_tokens"] == {"speller": 15}
    assert racer["failures"]["adder"] == "upstream_invalid_response"


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
    for model, code, word in (("poet", "no_tokenizer", "/tokenize"), ("x", "model_not_found", "x")):
        refused = count(gateway, model=model)
        error = refused.json()["error"]
        assert (refused.status_code, error["type"]) == (404, "not_found_error")
        assert error["details"]["error_code"] == code
        assert word in error["message"]


def test_only_those_that_may_and_can_serve_the_request_count(
    shared: Shared, pool: FakePool
) -> None:
    """Pools, keys and capabilities choose whose tokens are counted, as they choose who answers."""
    case = shared(
        calibrated=False,
        pools={"pair": {"candidates": ["adder", "speller"]}},
        access={"keys": [OWN]},
        candidates=candidates(pool.url, speller={"capabilities": {"tools": False}}),
    )
    pool.tokens |= {"adder": 12, "speller": 15, "poet": 11}
    gateway = case.gateway
    pair = count(gateway, model="auto/pair").json()["racer"]["input_tokens"]
    assert pair.keys() == {"adder", "speller"}
    assert count(gateway, tools=[TOOL]).json()["input_tokens"] == 12
    assert count(gateway).json()["input_tokens"] == 15
    for model, status in (("auto", 200), ("auto/pair", 403), ("adder", 403)):
        body = {"model": model, "messages": user(ONE)}
        response = gateway.post("/v1/messages/count_tokens", OWN_KEY, json=body)
        assert response.status_code == status
        assert response.json().get("input_tokens") == (11 if status == 200 else None)


OWN_KEY, OWN = configured_key("own", candidates=["poet"])
