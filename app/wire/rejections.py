"""Rejections: what a candidate's 400, 404, 413 or 422 says, in every server's form.

Servers word one thing in many ways, and clients act on few of them: an agent shortens its
conversation on ``context_length_exceeded`` or on "prompt is too long", and on nothing else. So a
prompt that does not fit is recognised here, and said in words that all clients know.

The words of a candidate are untrusted: they are cut, their hidden characters removed, and keys,
addresses and paths are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from racer_core import strict_json
from racer_core.errors import InputError

MAX_BYTES: Final = 16 * 2**10  # of an error's document that are read
STATUSES: Final = frozenset({400, 404, 413, 422})  # whose words go on to the client
CONTEXT_EXCEEDED: Final = "context_length_exceeded"
MODEL_MISSING: Final = "model_not_found"

_MAX_CHARS: Final = 300
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{1,63}", re.IGNORECASE)
_PARAM: Final = re.compile(r"[A-Za-z][\w.\[\]-]{0,63}")

# How servers say that a prompt does not fit: vLLM, SGLang, llama.cpp, Ollama, OpenAI, TGI,
# Anthropic, Mistral. A limit of another kind ("image size", "max_num_seqs") matches none.
_CONTEXT: Final = re.compile(
    r"maximum (?:context|model|input) length|context[ _](?:length|size|window)|max_model_len"
    r"|max(?:imum)? context length|prompt is too long|prompt too long"
    r"|inputs? tokens exceed|`inputs` (?:tokens \+|must have less than)",
    re.IGNORECASE,
)
_EXCEEDS: Final = re.compile(
    r"exceed|longer than|too (?:long|large)|however,? (?:you|your)|must (?:be <=|have less than)"
    r"|> ?\d+ maximum|does not fit",
    re.IGNORECASE,
)
_LIMIT: Final = (
    re.compile(r"(?:context|model|input) (?:length|size|window)(?: limit)?(?: of| is|:)? \(?(\d+)"),
    re.compile(r"\((\d+) tokens\), try increasing"),
    re.compile(r"(?:<=|less than|limit of) (\d+)"),
    re.compile(r"> ?(\d+) maximum"),
    re.compile(r"context length \((\d+) tokens\)"),
    re.compile(r"(\d+) maximum context length"),
)
_GIVEN: Final = (
    re.compile(r"(\d+) (?:tokens )?in the messages"),
    re.compile(r"has (\d+) input tokens"),
    re.compile(r"(?:requested|resulted in|contains|a total of|Given:|too long:) (?:about )?(\d+)"),
    re.compile(r"(?:input|request|prompt) \((?:length )?(\d+)(?: tokens)?\)"),
)
_HIDDEN: Final = (
    (re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://\S+", re.IGNORECASE), "[address]"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"\[[0-9a-f]*:[0-9a-f:]+\](?::\d+)?", re.IGNORECASE), "[address]"),
    (re.compile(r"\b[\w-]+(?:\.[\w-]+)*:\d{4,5}\b"), "[address]"),
    (re.compile(r"\b(?:localhost|[\w-]+(?:\.[\w-]+)*\.(?:local|internal|svc|lan))\b"), "[address]"),
    (re.compile(r"\bbearer\s+\S+", re.IGNORECASE), "[key]"),
    (re.compile(r"\b(?:sk|pk|hf|gsk|xai|ghp|key|token)[-_][\w-]{6,}", re.IGNORECASE), "[key]"),
    (re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{24,}"), "[key]"),
    (re.compile(r"(?<![\w/])/(?:[\w.-]+/)+[\w.-]+"), "[path]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What a candidate says of a request that it does not take.

    Attributes:
        message: Its words, cleaned; None: it has none.
        param: The field at fault, as the candidate names it.
        code: The candidate's word for the fault; ``context_length_exceeded`` and
            ``model_not_found`` whatever the server calls them.
    """

    message: str | None = None
    param: str | None = None
    code: str | None = None


def read_rejection(status: int, document: bytes, names: Mapping[str, str]) -> Rejection:
    """Read the document of an error.

    Args:
        status: HTTP status.
        document: The body, or its beginning.
        names: Words that stay inside the gateway, and what stands for each: names of other
            candidates, names of models at their servers.
    """
    fields = _fields(document)
    words = fields.get("message")
    text = words if isinstance(words, str) else ""
    message = _cleaned(text, names) or None
    if _is_of_context(text, fields):
        limit, given = (
            _number(fields, "n_ctx", text, _LIMIT),
            _number(fields, "n_prompt_tokens", text, _GIVEN),
        )
        return Rejection(
            message=_of_context(message, limit, given), param="messages", code=CONTEXT_EXCEEDED
        )
    if status == 404 and _is_of_model(text, fields):
        return Rejection(message=message, param="model", code=MODEL_MISSING)
    return Rejection(
        message=message, param=_word(fields, "param", _PARAM), code=_word(fields, "code", _CODE)
    )


def _fields(document: bytes) -> Mapping[str, Any]:
    """``message``, ``type``, ``code``, ``param`` of any server's form; empty where it is none."""
    try:
        given = strict_json.load_object(document)
    except InputError:
        return {}
    inner = given.get("error", given.get("detail"))
    if isinstance(inner, dict):  # OpenAI, vLLM, llama.cpp, Anthropic
        return cast("dict[str, Any]", inner)
    if isinstance(inner, str):  # Ollama, TGI, FastAPI
        return {**given, "message": inner}
    if isinstance(inner, list):  # FastAPI: a list of faults
        return _fault(cast("list[object]", inner))
    return given  # vLLM before 0.10, SGLang


def _fault(faults: list[object]) -> Mapping[str, Any]:
    first = cast("dict[str, Any]", faults[0]) if faults and isinstance(faults[0], dict) else {}
    place = first.get("loc")
    param = str(cast("list[object]", place)[-1]) if isinstance(place, list) and place else None
    return {"message": first.get("msg"), "param": param}


def _is_of_context(text: str, fields: Mapping[str, Any]) -> bool:
    names = (CONTEXT_EXCEEDED, "exceed_context_size_error")
    if any(fields.get(each) in names for each in ("code", "type")):
        return True
    return bool(_CONTEXT.search(text) and _EXCEEDS.search(text))


def _is_of_model(text: str, fields: Mapping[str, Any]) -> bool:
    """Whether the server has no model of the name: not that it has no such endpoint."""
    return (
        fields.get("code") == MODEL_MISSING
        or fields.get("param") == "model"
        or re.search(r"\bmodel\b.{0,200}\b(?:not found|not exist|no longer)", text, re.DOTALL)
        is not None
    )


def _number(
    fields: Mapping[str, Any], name: str, text: str, patterns: tuple[re.Pattern[str], ...]
) -> int | None:
    value = fields.get(name)
    if isinstance(value, int):
        return value
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text[:_MAX_CHARS])
    found = next((found for each in patterns if (found := each.search(plain))), None)
    return None if found is None or len(found[1]) > 12 else int(found[1])


def _of_context(message: str | None, limit: int | None, given: int | None) -> str:
    """The fault in the words that clients of OpenAI and of Anthropic look for."""
    if limit is not None and given is not None:
        if given <= limit:  # prompt and answer together are too long
            return message or f"this model's maximum context length is {limit} tokens"
        return (
            f"prompt is too long: {given} tokens > {limit} maximum; this model's maximum context "
            f"length is {limit} tokens"
        )
    if limit is not None:
        return f"prompt is too long: this model's maximum context length is {limit} tokens"
    return "prompt is too long: it exceeds this model's maximum context length"


def _word(fields: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and form.fullmatch(value) else None


def _cleaned(text: str, names: Mapping[str, str]) -> str:
    """One line without keys, addresses, paths and foreign names, cut to some hundred characters."""
    shown = "".join(each if each.isprintable() else " " for each in text[: 4 * _MAX_CHARS])
    for pattern, instead in _HIDDEN:
        shown = pattern.sub(instead, shown)
    for name in sorted(names, key=len, reverse=True):
        shown = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", names[name], shown)
    shown = " ".join(shown.split())
    return shown if len(shown) <= _MAX_CHARS else shown[: _MAX_CHARS - 3].rstrip() + "..."
