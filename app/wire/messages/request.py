"""Messages requests as chat requests: a table of fields that translates them, printed as reference.

Fields that the table does not name follow the rule of all bodies
(:func:`app.wire.candidate_payload.request_fields`): candidates are sent them unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from app.errors import SchemaError
from app.wire.messages.blocks import chat_turns, system_text
from racer_core.errors import InputError

Fields = Mapping[str, Any]
Chat = dict[str, Any]  # the fields of a chat request while it is written


@dataclass(frozen=True, slots=True)
class RequestField:
    """A row of the table.

    Attributes:
        name: Of a field of the Messages API.
        becomes: What candidates are sent instead, in Markdown.
        write: Writes a value that is not null into the chat request.
    """

    name: str
    becomes: str
    write: Callable[[Chat, Any], None]


def chat_fields(body: Fields) -> dict[str, Any]:
    """The chat request that a Messages request stands for, with the fields that no row names.

    Args:
        body: Checked against its schema.

    Raises:
        InputError: It cannot be translated; the message says what to send instead.
        SchemaError: A value has another shape than the API demands.
    """
    chat: Chat = {"messages": []}
    for row in REQUEST_FIELDS:
        value = body.get(row.name)
        if value is not None:
            row.write(chat, value)
    others = {name: value for name, value in body.items() if name not in _NAMES}
    return others | chat


def shows_thinking(body: Fields) -> bool:
    """Whether the answer shows a candidate's reasoning: clients that ask for none expect a text."""
    thinking: object = body.get("thinking")
    if not isinstance(thinking, dict):
        return False
    given = cast("Fields", thinking)
    return given.get("type") != "disabled" and given.get("display") != "omitted"


def _unchanged(name: str) -> RequestField:
    return RequestField(name, "the same", lambda chat, value: chat.update({name: value}))


def _dropped(name: str, reason: str) -> RequestField:
    return RequestField(name, f"nothing: {reason}", lambda _, __: None)


def _refused(name: str, cure: str) -> RequestField:
    def refuse(_: Chat, value: Any) -> None:
        if value:
            raise InputError(f"{name}: {cure}", param=name)

    return RequestField(name, f"refused with 400 unless it is empty: {cure}", refuse)


def _system(chat: Chat, value: str | Sequence[Fields]) -> None:
    if text := system_text(value, "system"):
        chat["messages"].append({"role": "system", "content": text})


def _messages(chat: Chat, value: Sequence[Fields]) -> None:
    system, turns = chat_turns(value)
    if system and chat["messages"]:
        chat["messages"][0]["content"] += f"\n\n{system}"
    elif system:
        chat["messages"].append({"role": "system", "content": system})
    chat["messages"] += turns
    if turns and turns[-1]["role"] == "assistant" and not turns[-1].get("tool_calls"):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}


def _stop(chat: Chat, value: Sequence[str]) -> None:
    if value:
        chat["stop"] = value


def _tools(chat: Chat, value: Sequence[Fields]) -> None:
    if value:  # chat knows no empty list
        chat["tools"] = [_tool(f"tools.{place}", tool) for place, tool in enumerate(value)]


def _tool(place: str, tool: Fields) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise InputError(
            f"{place}: tools of this type are Anthropic's own: send tools with a name and an "
            "input_schema, which the client runs",
            param=place,
        )
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise SchemaError(f"{place} needs a name and an input_schema", param=place)
    function = {"name": tool["name"], "description": tool.get("description")}
    function |= {"parameters": tool["input_schema"], "strict": tool.get("strict")}
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


VERSION_HEADER: Final = "anthropic-version"  # of every request of Anthropic's clients
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def _tool_choice(chat: Chat, value: Fields) -> None:
    kind = value.get("type")
    if kind == "tool" and isinstance(value.get("name"), str):
        chat["tool_choice"] = {"type": "function", "function": {"name": value["name"]}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chat["tool_choice"] = _CHOICES[kind]
    else:
        raise SchemaError(
            "tool_choice must be of type auto, any, none, or tool with a name", param="tool_choice"
        )
    if value.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False


def _metadata(chat: Chat, value: Fields) -> None:
    if value.get("user_id") is not None:
        chat["user"] = value["user_id"]


# Levels above `high` are unknown to many servers.
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def _output_config(chat: Chat, value: Fields) -> None:
    effort, output = value.get("effort"), value.get("format")
    if effort is not None:
        if not isinstance(effort, str) or effort not in _EFFORTS:
            known = ", ".join(_EFFORTS)
            raise SchemaError(
                f"output_config.effort must be one of {known}", param="output_config.effort"
            )
        chat["reasoning_effort"] = _EFFORTS[effort]
    if output is not None:
        _output_format(chat, output)


def _output_format(chat: Chat, value: object) -> None:
    output = cast("dict[str, Any]", value) if isinstance(value, dict) else dict[str, Any]()
    if output.get("type") != "json_schema" or not isinstance(output.get("schema"), dict):
        place = "output_config.format"
        raise SchemaError(f"{place} must be a json_schema with a schema", param=place)
    schema = {"name": "output", "schema": output["schema"], "strict": True}
    chat["response_format"] = {"type": "json_schema", "json_schema": schema}


def _nothing(_: Chat, __: Any) -> None:
    """The gateway reads the field itself."""


_BILLING: Final = "it is of Anthropic's accounts"
_CACHE: Final = "servers such as vLLM cache prompts by themselves"
_HISTORY: Final = "the whole conversation is sent"

REQUEST_FIELDS: Final = (
    RequestField("model", "`auto`, `auto/<pool>` or a candidate, as on the other endpoints",
                 _nothing),
    RequestField("racer", "nothing: options of the gateway, as on the other endpoints", _nothing),
    RequestField("stream", "`stream`, as the gateway needs it", _nothing),
    RequestField("system", "the first turn, `system`; blocks are joined by an empty line, and a "
                 "block that begins with `x-anthropic-billing-header` is left out, for it differs "
                 "in every request", _system),
    RequestField("messages", "`messages`, block by block (below); neighbouring turns of one role "
                 "are one turn. A `system` turn at the start continues the prompt; a later one is "
                 "text of the user between `<system-reminder>` tags. After a last turn of the "
                 "assistant: `continue_final_message: true` and `add_generation_prompt: false`",
                 _messages),
    _unchanged("max_tokens"),
    RequestField("stop_sequences", "`stop`", _stop),
    _unchanged("temperature"),
    _unchanged("top_p"),
    _unchanged("top_k"),
    RequestField("tools", "`tools`: name, description, `input_schema` as `parameters`, `strict`; "
                 "Anthropic's own tools, which have a `type`, are refused", _tools),
    RequestField("tool_choice", "`tool_choice`: `any` is `required`, `tool` names the function; "
                 "`disable_parallel_tool_use: true` is `parallel_tool_calls: false`", _tool_choice),
    RequestField("thinking", "nothing: unless it is `disabled` or `display` is `omitted`, the "
                 "answer shows the candidate's reasoning. Whether a candidate reasons is its own "
                 "configuration", _nothing),
    RequestField("output_config", "`effort` is `reasoning_effort` (at most `high`), `format` is "
                 "`response_format`", _output_config),
    RequestField("output_format", "as `output_config.format`", _output_format),
    RequestField("metadata", "`user_id` is `user`", _metadata),
    _dropped("cache_control", f"{_CACHE}; the same in blocks and tools"),
    _dropped("context_management", _HISTORY),
    _dropped("compaction", _HISTORY),
    _dropped("diagnostics", _CACHE),
    *[
        _dropped(name, _BILLING)
        for name in ("billing_policy", "fallback_credit_token", "inference_geo", "service_tier",
                     "speed", "user_profile_id", "workspace_id")
    ],
    _dropped("fallbacks", "the gateway replaces candidates that fail"),
    _dropped("betas", "as the header `anthropic-beta`"),
    _refused("container", "the gateway runs no code"),
    _refused("mcp_servers", "the gateway calls no tools: have the client call them"),
    _refused("thread", "the gateway stores no conversations: send all of `messages`"),
)  # fmt: skip
_NAMES: Final = frozenset(row.name for row in REQUEST_FIELDS) - {"model", "stream", "racer"}
