"""The payload for a candidate, and whether it decodes as it did for the labels. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any, Final

from app.settings import Candidate
from app.settings.limits import ExtraField
from app.wire.extra_fields import is_allowed
from racer_core.errors import InputError

# Fields that control the candidate's server instead of the completion: they name other hosts (those
# that move a prompt's cache between engines, too), or jump its queue.
_DENIED = frozenset(
    {"prompt_embeds", "api_base", "headers", "extra_headers", "api_version", "structured_outputs",
     "kv_transfer_params", "ec_transfer_params", "priority"}
)  # fmt: skip
_DENIED_PREFIXES = ("chat_template", "guided_", "bootstrap_")
_DENIED_SUFFIXES = ("url", "uri", "api_key")
# Fields that do not change the first answer. Any other must be as it was for the labels.
_HARMLESS = frozenset(
    {"messages", "prompt", "input", "n", "seed", "logprobs", "top_logprobs", "user", "metadata",
     "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
     "include", "background"}
)  # fmt: skip
# The three API formats' names of the limit on output tokens.
TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_THE_LIMIT_OF: Final = {"completions": "max_tokens", "responses": "max_output_tokens"}
_OF_THE_GATEWAY: Final = frozenset({"model", "stream", "stream_options", "racer"})


def passed_through(
    raw: Mapping[str, Any],
    ours: Set[str] = frozenset(),
    *,
    allowed: Collection[ExtraField] = (),
) -> dict[str, Any]:
    """The fields of a body that are passed on to candidates, unchanged.

    Args:
        raw: The body.
        ours: Further fields that only the gateway reads.
        allowed: Fields of the deny list that are passed on.

    Raises:
        InputError: A field is on the deny list.
    """
    for name, value in raw.items():
        is_denied = name in _DENIED or name.startswith(_DENIED_PREFIXES)
        if name.lower().endswith(_DENIED_SUFFIXES) or (
            is_denied and not is_allowed(name, value, allowed)
        ):
            shown = name[:64]
            raise InputError(f"the field {shown!r} is not passed on to candidates", param=shown)
    return {name: value for name, value in raw.items() if name not in _OF_THE_GATEWAY | ours}


def candidate_payload(
    fields: Mapping[str, Any], candidate: Candidate, path: str = "chat/completions"
) -> dict[str, Any]:
    """The payload for one candidate: the client's fields, else the candidate's own parameters."""
    defaults = dict(candidate.parameters)
    if any(fields.get(name) is not None for name in TOKEN_LIMITS):
        defaults = {name: value for name, value in defaults.items() if name not in TOKEN_LIMITS}
    if (limit := _THE_LIMIT_OF.get(path)) is not None:
        defaults = {
            limit if name in TOKEN_LIMITS else name: value for name, value in defaults.items()
        }
    given = {name: value for name, value in fields.items() if value is not None}
    renamed = {candidate.renames.get(name, name): v for name, v in (defaults | given).items()}
    return {**renamed, "model": candidate.served_as, "stream": False}


def conditions_differ(fields: Mapping[str, Any], candidates: Iterable[Candidate]) -> bool:
    """Whether some candidate would decode differently from how it did for its labels."""
    given = {name: value for name, value in fields.items() if value is not None}
    return any(
        _matters(_alias(name, candidate), value, candidate.parameters)
        for candidate in candidates
        for name, value in given.items()
    )


def _matters(name: str, value: object, parameters: Mapping[str, Any]) -> bool:
    """Whether a field may change the answer; a harmless one only where the labels fixed it."""
    if name in parameters:
        return parameters[name] != value
    plain_text = value == {"type": "text"} if name == "response_format" else False
    plain_text = plain_text or (name == "text" and value == {"format": {"type": "text"}})
    return name not in _HARMLESS and not plain_text


def _alias(name: str, candidate: Candidate) -> str:
    """The name under which the candidate's parameters hold the same limit."""
    if name not in TOKEN_LIMITS or name in candidate.parameters:
        return name
    return next((other for other in TOKEN_LIMITS if other in candidate.parameters), name)
