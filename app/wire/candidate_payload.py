"""The payload for a candidate: the client's fields over the candidate's parameters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
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
# The three API formats' names of the limit on output tokens.
TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_LIMITS_OF: Final = {
    "chat/completions": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
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
    """The payload for one candidate: the client's fields, else the candidate's own parameters.

    The limit on output tokens has several names. It is sent under the name that the candidate's
    parameters use, else as the client wrote it; a name of another API is any other field.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    limits = _LIMITS_OF.get(path, ())
    defaults = {
        limits[0] if limits and name in TOKEN_LIMITS and name not in limits else name: value
        for name, value in candidate.parameters.items()
    }
    own = next((name for name in limits if name in defaults), None)
    if own is not None and own not in given:
        for name in limits:
            if name in given:
                given[own] = given.pop(name)
    renamed = {candidate.renames.get(name, name): v for name, v in (defaults | given).items()}
    return {**renamed, "model": candidate.served_as, "stream": False}
