"""Reading what candidates send: strict about shape, silent about content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from app.errors import UpstreamError
from racer_core import strict_json
from racer_core.errors import InputError

# An escaped backslash, a surrogate pair, or one half of a pair without the other.
_ESCAPES: Final = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def json_object(name: str, data: bytes | str) -> dict[str, Any]:
    """One strict JSON object; halves of surrogate pairs become U+FFFD, as models do cut them."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        if "\\ud" in text or "\\uD" in text:
            text = _ESCAPES.sub(lambda found: r"\ufffd" if found[1] else found[0], text)
        return strict_json.load_object(text)
    except (InputError, UnicodeDecodeError) as exc:
        raise invalid(name) from exc


def as_object(name: str, value: object) -> dict[str, Any]:
    """A JSON object, or the candidate's answer is none."""
    if not isinstance(value, dict):
        raise invalid(name)
    return cast("dict[str, Any]", value)


def as_objects(name: str, value: object) -> list[dict[str, Any]]:
    """A list of JSON objects, likewise."""
    if not isinstance(value, list):
        raise invalid(name)
    return [as_object(name, each) for each in cast("list[object]", value)]


def first_of_each(choices: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first choice of every index, no more than were asked for."""
    kept: dict[object, dict[str, Any]] = {}
    for position, choice in enumerate(choices):
        index = choice.get("index", position)
        kept.setdefault(index if isinstance(index, int) else position, choice)
    return list(kept.values())[:most]


_FINISHES: Final = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", None}
)


def sound(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice whose reason to end clients know, and whose log-probabilities are some.

    Clients read both by a schema: a word of the server's own would be a failed request there.
    """
    finish = choice.get("finish_reason")
    kept = dict(choice)
    if not isinstance(finish, str | None) or finish not in _FINISHES:
        kept["finish_reason"] = "stop"
    if "logprobs" in kept and not _are_logprobs(kept["logprobs"]):
        kept["logprobs"] = None
    return kept


def _are_logprobs(value: object) -> bool:
    """None, those of chat (a list of tokens), or those of text completions (lists of numbers)."""
    if not isinstance(value, dict):
        return value is None
    given = cast("dict[str, object]", value)
    tokens = given.get("content")
    if tokens is None:
        return True
    return isinstance(tokens, list) and all(
        isinstance(token, dict) and _is_logprob(cast("dict[str, object]", token).get("logprob"))
        for token in cast("list[object]", tokens)
    )


def _is_logprob(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < 0.01


def counts(usage: object, names: Mapping[str, str]) -> dict[str, int]:
    """Token counts that are counts, under the names that chat gives them."""
    given = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    return {
        ours: value
        for theirs, ours in names.items()
        for value in (given.get(theirs),)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    }


CHAT_USAGE: Final = {name: name for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


_MEDIA: Final = ("image", "audio", "video", "file")


def text_length(value: object) -> int:
    """How many characters of text a JSON value holds; pictures, sound and files are none."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(text_length, cast("list[object]", value)))
    if not isinstance(value, dict):
        return 0
    given = cast("dict[str, object]", value)
    kind = given.get("type")
    if isinstance(kind, str) and any(word in kind for word in _MEDIA):
        return 0
    return sum(map(text_length, given.values()))


def with_usage(usage: object, counted: Mapping[str, int] | None) -> dict[str, Any]:
    """A usage object with its counts replaced; details that only one call knows stay as they are.

    None keeps what the candidate sent.
    """
    given = dict(cast("dict[str, Any]", usage)) if isinstance(usage, dict) else {}
    return given if counted is None else {**given, **counted}


def invalid(name: str) -> UpstreamError:
    """The answer is not what its path promises."""
    return UpstreamError(
        f"{name}'s answer is not an OpenAI completion", kind="upstream_invalid_response"
    )


def empty(name: str) -> UpstreamError:
    """The answer is well-formed and says nothing."""
    return UpstreamError(f"{name} answered without a text", kind="upstream_empty")
