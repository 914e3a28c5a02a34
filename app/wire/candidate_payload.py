"""The payload for a candidate: the client's fields over the candidate's parameters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, cast

from racer_core.errors import InputError
from racer_core.records.request import GATEWAY_FIELDS

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
# Those of each endpoint that writes an answer.
TOKEN_LIMITS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "chat/completions": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
# Fields of stateful requests -> values that are accepted: no state is stored between requests.
_STATEFUL: Final[Mapping[str, tuple[object, ...]]] = {
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (None, False),
    "store": (None, False),
}


class CandidateBody(Protocol):
    """What of a candidate's settings decides the body that it is sent."""

    @property
    def name(self) -> str:
        """Name for clients."""
        ...

    @property
    def served_as(self) -> str:
        """Model name at the server."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Decoding parameters, sent for requests that set none."""
        ...

    @property
    def renames(self) -> Mapping[str, str]:
        """Parameters with another name at this server."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySettings:
    """A :class:`CandidateBody` of plain values, for another process."""

    name: str
    served_as: str
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    renames: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, candidate: CandidateBody) -> Self:
        """Those of a configured candidate."""
        return cls(
            name=candidate.name,
            served_as=candidate.served_as,
            parameters=candidate.parameters,
            renames=candidate.renames,
        )


def request_fields(
    body: Mapping[str, Any], path: str, *, allowed: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of a client's body that candidates are sent at this endpoint.

    The same for a served request and for a labelled row that is a whole request.

    Args:
        body: The body.
        path: The endpoint of candidates to which it goes.
        allowed: Fields of the deny list that are passed on.

    Raises:
        InputError: A field is on the deny list, or needs stored conversations.
    """
    if path != "responses":
        return passed_through(body, allowed=allowed)
    for name, possible in _STATEFUL.items():
        if body.get(name) not in possible:
            raise InputError(
                f"{name!r} needs stored conversations, and the gateway stores none: send the "
                "whole conversation as `input`",
                param=name,
            )
    return {**passed_through(body, allowed=allowed), "store": False}


def passed_through(
    raw: Mapping[str, Any],
    ours: Set[str] = frozenset(),
    *,
    allowed: Collection[str] = (),
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
            cure = ": `limits.extra_fields` allows it" if is_denied and _setting(name) else ""
            raise InputError(
                f"the field {shown!r} is not passed on to candidates{cure}", param=shown
            )
    return {name: value for name, value in raw.items() if name not in GATEWAY_FIELDS | ours}


def candidate_payload(
    fields: Mapping[str, Any], candidate: CandidateBody, path: str = "chat/completions"
) -> dict[str, Any]:
    """The payload for one candidate: the client's fields, else the candidate's own parameters.

    The limit on output tokens has several names. It is sent under the name that the candidate's
    parameters use, else as the client wrote it; a name of another API is any other field.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    limits = TOKEN_LIMITS_OF.get(path, ())
    defaults = {
        limits[0] if limits and name in TOKEN_LIMITS and name not in limits else name: value
        for name, value in candidate.parameters.items()
    }
    own = next((name for name in limits if name in defaults), None)
    if own is not None and own not in given:
        for name in limits:
            if name in given:
                given[own] = given.pop(name)
    sent = defaults | given
    if candidate.renames:
        sent = {candidate.renames.get(name, name): value for name, value in sent.items()}
    return {**sent, "model": candidate.served_as, "stream": False}


# vLLM's extra request fields: allowed by a setting, and checked before they are passed on.
#
# The fields reach into a candidate's server. Thinking switches and the schema of an answer are
# passed on by default. What an allowed field may still not do:
#
# - ``chat_template_kwargs`` sets variables of the chat template. It may replace neither the
#   template, which is a program of the caller's, nor ``tokenize``, which blocks vLLM's event
#   loop. Values are scalars, so that no template iterates over a large list.
# - ``priority`` is at least 0, vLLM's default: a smaller number would jump the queue.

EXTRA_FIELDS: Final = ("chat_template_kwargs", "guided_*", "priority", "structured_outputs")
_TEMPLATE_TEXT_CHARS: Final = 256


def is_allowed(name: str, value: object, allowed: Collection[str]) -> bool:
    """Whether a field is allowed by the setting ``limits.extra_fields``.

    Raises:
        InputError: It is allowed, but not with this value.
    """
    if _setting(name) not in allowed:
        return False
    if value is not None:
        _check(name, value)
    return True


def _setting(name: str) -> str | None:
    """What `limits.extra_fields` calls a field; None: it can allow none of its name."""
    pattern = "guided_*" if name.startswith("guided_") else name
    return pattern if pattern in EXTRA_FIELDS else None


def _check(name: str, value: object) -> None:
    if name == "priority" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InputError("priority must be a whole number of at least 0", param=name)
    if name == "chat_template_kwargs":
        if not isinstance(value, dict):
            raise InputError(f"{name} must be an object", param=name)
        _check_template_variables(name, cast("Mapping[str, Any]", value))


def _check_template_variables(name: str, variables: Mapping[str, Any]) -> None:
    for variable, value in variables.items():
        if variable.startswith("chat_template") or variable == "tokenize":
            raise InputError(f"{name} may not set {variable[:64]!r}", param=name)
        if not isinstance(value, str | int | float | None) or (
            isinstance(value, str) and len(value) > _TEMPLATE_TEXT_CHARS
        ):
            raise InputError(
                f"{name}: {variable[:64]!r} must be a boolean, a number, or a string of at most "
                f"{_TEMPLATE_TEXT_CHARS} characters",
                param=name,
            )
