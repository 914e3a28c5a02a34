"""Parsing of candidates' answers: strict about their shape, indifferent to their content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from app.errors import UpstreamError
from racer_core import strict_json
from racer_core.errors import InputError
from racer_core.numbers import log_probability

CHARS_PER_TOKEN: Final = 4  # of an estimate where no tokenizer is at hand

# An escaped backslash, a surrogate pair, or one half of a pair without the other.
_ESCAPES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def json_object(name: str, data: bytes | str) -> dict[str, Any]:
    """One strict JSON object; halves of surrogate pairs, which models cut, become U+FFFD."""
    try:
        written = data.encode() if isinstance(data, str) else data
        if b"\\ud" in written or b"\\uD" in written:
            written = _ESCAPES.sub(lambda found: rb"\ufffd" if found[1] else found[0], written)
        return strict_json.load_object(written)
    except (InputError, UnicodeEncodeError) as exc:
        raise invalid(name) from exc


_OWNER: Final = "racer"  # the gateway: a client finds its certificate under this name
_OWN_PREFIX: Final = "x-racer-"


def sent(name: str, data: bytes | str) -> dict[str, Any]:
    """What a candidate sent, a whole answer or an event: one object without reserved names.

    ``racer`` and ``x-racer-*`` are the gateway's own, in capitals too: members of these names are
    removed at every depth. All that a candidate sends is read here.

    Raises:
        UpstreamError: It is malformed, or says `error`: beside an answer, too.
    """
    given = json_object(name, data)
    if given.get("error"):  # some servers say null
        raise failed(name)
    written = data.encode() if isinstance(data, str) else data
    if _OWNER.encode() in written.lower() or b"\\u" in written:  # a letter may be an escape
        return cast("dict[str, Any]", _without_reserved(given))
    return given


def _without_reserved(value: object) -> object:
    if isinstance(value, list):
        return [_without_reserved(each) for each in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_reserved(inner)
        for name, inner in cast("dict[str, object]", value).items()
        if not _is_reserved(name.lower())
    }


def _is_reserved(name: str) -> bool:
    return name == _OWNER or name.startswith(_OWN_PREFIX)


def model_names(document: bytes) -> tuple[str, ...]:
    """The names in a server's list of models. Raises InputError where it is no such list."""
    try:
        names = [each["id"] for each in strict_json.load_object(document)["data"]]
    except (KeyError, TypeError) as exc:
        raise InputError("no list of models") from exc
    if not all(isinstance(each, str) and each for each in names):
        raise InputError("no list of models")
    return tuple(dict.fromkeys(names))


def as_object(name: str, value: object) -> dict[str, Any]:
    """The value as a JSON object. Raises UpstreamError if it is none."""
    if not isinstance(value, dict):
        raise invalid(name)
    return cast("dict[str, Any]", value)


def as_objects(name: str, value: object) -> list[dict[str, Any]]:
    """The value as a list of JSON objects. Raises UpstreamError if it is none."""
    if not isinstance(value, list):
        raise invalid(name)
    return [as_object(name, each) for each in cast("list[object]", value)]


def first_of_each(choices: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first choice of every index, at most ``most``."""
    first: dict[object, dict[str, Any]] = {}
    for position, choice in enumerate(choices):
        index = choice.get("index", position)
        first.setdefault(index if isinstance(index, int) else position, choice)
    return list(first.values())[:most]


# Finish reasons of answers that may be served -> as clients know them. All else is no end.
_ENDS: Final[Mapping[str, str]] = {
    **{each: each for each in ("stop", "tool_calls", "function_call", "length", "content_filter")},
    **dict.fromkeys(("eos", "eos_token", "stop_sequence"), "stop"),  # Together, TGI
    **dict.fromkeys(("max_tokens", "model_length"), "length"),  # Anthropic, Mistral
}


def sound(name: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice with a standard finish reason and with valid log-probabilities.

    Clients validate both by a schema, in which a server's own word would fail the request.

    Raises:
        UpstreamError: It ended otherwise than answers end: by an abort or an error, for example.
    """
    checked = dict(choice)
    if choice.get("error"):
        raise failed(name)
    if finish := choice.get("finish_reason"):  # some servers write "" until the end
        end = _ENDS.get(finish.lower()) if isinstance(finish, str) else None
        if end is None:
            raise unfinished(name)
        checked["finish_reason"] = end
    elif "finish_reason" in checked:
        checked["finish_reason"] = None
    if "logprobs" in checked and not _are_logprobs(checked["logprobs"]):
        checked["logprobs"] = None
    return checked


def whole(name: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A sound choice of a whole answer, which has ended. Raises UpstreamError."""
    checked = sound(name, choice)
    if not checked.get("finish_reason"):
        raise unfinished(name)
    return checked


def _are_logprobs(value: object) -> bool:
    """Whether it is None, chat's list of tokens, or the lists of numbers of text completions."""
    if not isinstance(value, dict):
        return value is None
    given = cast("dict[str, object]", value)
    tokens = given.get("content")
    if tokens is None:
        return True
    return isinstance(tokens, list) and all(
        isinstance(token, dict)
        and log_probability(cast("dict[str, object]", token).get("logprob")) is not None
        for token in cast("list[object]", tokens)
    )


ESTIMATED: Final = "estimated"  # in a usage object: a count in it is not the candidate's


def counts(usage: object, names: Mapping[str, str]) -> dict[str, int]:
    """The token counts of a usage object, which has counts that can be: see `token_bounds`.

    Args:
        usage: The candidate's ``usage``, of any type.
        names: Name of each count in the API format, to its name in chat completions.
    """
    fields = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    return {
        chat_name: value
        for name, chat_name in names.items()
        for value in (fields.get(name),)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    }


CHAT_USAGE: Final = {name: name for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def cached_tokens(document: Mapping[str, Any]) -> int:
    """Prompt tokens that a candidate read from its cache; 0 if it does not say.

    Args:
        document: A whole answer, or the piece of a stream with its usage, of any API format.
    """
    usage = _usage(document)
    details = _part(usage, "prompt_tokens_details") or _part(usage, "input_tokens_details")
    return counts(details, {"cached_tokens": "cached_tokens"}).get("cached_tokens", 0)


def is_estimated(document: Mapping[str, Any]) -> bool:
    """Whether a count in a document, as above, was too large and is replaced by its bound."""
    return _usage(document).get(ESTIMATED) is True


def _usage(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(_part(document, "response") or document, "usage")


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object in a field; an empty one where it has none."""
    value = document.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


_MEDIA: Final = ("image", "audio", "video", "file")


def text_length(value: object) -> int:
    """Number of characters of text in a JSON value, without images, sound and files."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(text_length, cast("list[object]", value)))
    if not isinstance(value, dict):
        return 0
    given = cast("dict[str, object]", value)
    return 0 if is_media(given) else sum(map(text_length, given.values()))


def is_media(part: Mapping[str, object]) -> bool:
    """Whether a part of a request is an image, a sound or a file."""
    kind = part.get("type")
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


def with_usage(usage: object, counted: Mapping[str, int] | None) -> dict[str, Any]:
    """A usage object with its counts replaced; details of one call stay as they are.

    None keeps what the candidate sent.
    """
    given = dict(cast("dict[str, Any]", usage)) if isinstance(usage, dict) else {}
    return given if counted is None else {**given, **counted}


def without_usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body or a piece without its usage object."""
    return {name: value for name, value in body.items() if name != "usage"}


def invalid(name: str) -> UpstreamError:
    """The error for a malformed answer."""
    return UpstreamError(
        f"{name}'s answer is not an OpenAI completion", kind="upstream_invalid_response"
    )


def failed(name: str) -> UpstreamError:
    """The error for a candidate that says that it failed."""
    return UpstreamError(f"{name} failed to answer")


def unfinished(name: str) -> UpstreamError:
    """The error for an answer that did not end as answers end."""
    return UpstreamError(
        f"{name} did not finish its answer: it ended for no reason, or for none that is known",
        kind="upstream_disconnected",
    )


def empty(name: str) -> UpstreamError:
    """The error for a well-formed answer without content."""
    return UpstreamError(f"{name} answered without a text", kind="upstream_empty")
