"""Conditions of a request: digests of what each candidate is sent, but for the query.

A certificate is about requests that are sent like the calibration's rows were. So each body, after
renames and default parameters, with its endpoint path and the served model, is stripped of what a
row states itself, the content of its turns (see ``turn_shapes``), and the rest is digested.
Requests and rows with equal digests over the certified pool were sent under equal conditions. A
body is built by ``candidate_payload`` here, too, so nothing that it does can escape the digest.

Fields of ``EXCLUSIONS`` change no answer and are left out at the endpoints whose API has them, each
for its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, cast

from cachetools import LRUCache

from app.json_output import dump_json
from app.wire.candidate_payload import BodySettings, CandidateBody, candidate_payload
from racer_core.records.request import TURN_FIELDS

ROW_PATH: Final = "chat/completions"  # where rows are labelled
ENDPOINT: Final = "endpoint"  # the name of a difference in the path
ROWS: Final = "rows"  # the name of a difference that is in the rows, not in the request

# Fields, as the server names them, and turns that make a request of another kind than a query of
# text.
_OTHER_KIND: Final = frozenset(["tools", "functions", "audio", "modalities"])
_OTHER_KIND_TURNS: Final = frozenset(["messages.user", "input.user"])
_SHORT: Final = 64  # characters; a longer value is digested
_MAX_KEPT: Final = 1024  # of vectors of digests
_MAX_FIELDS: Final = 16  # of a request whose vector is kept
_MAX_NAMED: Final = 8  # of fields in a reason
_OTHER_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]")

CanonicalFields = Mapping[str, str]  # fields of a body or turns, their values as canonical texts
_Key = tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]


def canonical(value: object) -> str:
    """A text that equal values share: JSON, or its digest where that is longer than 64 characters.

    The order of keys counts: chat templates print tools in the order in which they are sent.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = dump_json(cast("Sequence[Any]", value))
    return text.decode() if len(text) <= _SHORT else f"#{_digest(text)}"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A field that is no condition.

    Attributes:
        reason: Why it changes no answer.
        paths: The endpoints whose API has the field. At others it means what the server says.
        others: The values that other fields of the body must have, as canonical texts; None: the
            field must be absent.
    """

    reason: str
    paths: Sequence[str] = tuple(TURN_FIELDS)
    others: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])


_CHAT_AND_COMPLETIONS: Final = ("chat/completions", "completions")
_CHAT_AND_RESPONSES: Final = ("chat/completions", "responses")
# With one of these fields `n` changes each choice.
_FREE_CHOICES: Final = {"use_beam_search": None, "best_of": None}
# A value that is the API's default is no reason: servers have defaults of their own.
EXCLUSIONS: Final[Mapping[str, Exclusion]] = {
    "stream": Exclusion("The transport of the answer."),
    "stream_options": Exclusion("The transport of the answer."),
    "background": Exclusion("The gateway passes on `false` alone.", ("responses",)),
    "user": Exclusion("A name for the provider's records."),
    "safety_identifier": Exclusion("A name for the provider's records.", _CHAT_AND_RESPONSES),
    "metadata": Exclusion("A note for the provider's records.", _CHAT_AND_RESPONSES),
    "store": Exclusion("Whether the provider keeps the answer.", _CHAT_AND_RESPONSES),
    "service_tier": Exclusion("The price and speed of the call.", _CHAT_AND_RESPONSES),
    "priority": Exclusion("The order in vLLM's queue."),
    "prompt_cache_key": Exclusion("Which cache holds the prompt.", _CHAT_AND_RESPONSES),
    "prompt_cache_retention": Exclusion("How long a cache holds it.", _CHAT_AND_RESPONSES),
    "cache_salt": Exclusion("Which requests share a prompt's cache in vLLM."),
    "logprobs": Exclusion("Reported beside the tokens.", _CHAT_AND_COMPLETIONS),
    "top_logprobs": Exclusion("Reported beside the tokens.", _CHAT_AND_RESPONSES),
    "include": Exclusion("Reported beside the answer.", ("responses",)),
    "n": Exclusion("Choices are drawn one by one.", _CHAT_AND_COMPLETIONS, _FREE_CHOICES),
    "seed": Exclusion(
        "At temperature 0 no token is drawn.", _CHAT_AND_COMPLETIONS, {"temperature": "0"}
    ),
    "parallel_tool_calls": Exclusion("Without tools.", _CHAT_AND_RESPONSES, {"tools": None}),
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What candidates are sent for one request, but for the query.

    Attributes:
        digests: One for each candidate, by name.
        identity: All digests as one text.
        differing: The fields of the request that differ from what the configuration alone sends;
            none for a request of nothing but turns of plain text.
        is_other_kind: Tools, images, audio or turns of the user that are no plain text are among
            them, for which no score of the router is meant.
    """

    digests: Mapping[str, str] = field(compare=False)
    identity: str
    differing: tuple[str, ...] = ()
    is_other_kind: bool = False

    def of(self, names: Sequence[str]) -> tuple[str, ...]:
        """The vector of digests of some candidates."""
        return tuple(map(self.digests.__getitem__, names))


class ConditionReader:
    """Finds the conditions of requests.

    Args:
        candidates: The configured candidates.
        extra_fields: Fields of the deny list that requests may set.
    """

    def __init__(
        self, candidates: Sequence[CandidateBody], extra_fields: Sequence[str] = ()
    ) -> None:
        self._models = {each.name: each.served_as for each in candidates}
        # Candidates with the same parameters are sent the same body, which is digested once.
        self._bodies: list[tuple[_Body, list[str]]] = []
        for each in candidates:
            body = _Body(each)
            alike = next((names for other, names in self._bodies if other.is_like(body)), None)
            if alike is None:
                self._bodies.append((body, [each.name]))
            else:
                alike.append(each.name)
        # Left out before the look-up, so that a user's name makes no conditions of its own.
        renamed = frozenset[str]().union(*(body.renamed for body, _ in self._bodies))
        self._ignored = {
            path: {
                name
                for name, exclusion in EXCLUSIONS.items()
                if path in exclusion.paths and not exclusion.others and name not in renamed
            }
            for path in TURN_FIELDS
        }
        # Digests of what the gateway adds to any request: model, parameters and renames. A field
        # that requests may set now was in no request before.
        passed = dump_json(sorted(extra_fields)) if extra_fields else b""
        self.added = {
            name: _digest(dump_json(body.settings) + self._models[name].encode() + passed)
            for body, names in self._bodies
            for name in names
        }
        self._kept: LRUCache[_Key, Conditions] = LRUCache(_MAX_KEPT)
        self.configured = self._read(ROW_PATH, {}, {})

    def read(self, fields: Mapping[str, Any], path: str = ROW_PATH) -> Conditions:
        """The conditions of a request.

        Args:
            fields: The fields of its body that candidates are sent.
            path: The endpoint of candidates to which it goes.
        """
        turns, beside = self.parts(fields, path)
        if not turns and not beside and path == ROW_PATH:
            return self.configured
        # Of two names for one field the last is sent.
        key = (path, tuple(turns.items()), tuple(beside.items()))
        conditions = self._kept.get(key)
        if conditions is None:
            conditions = self._read(path, turns, beside)
            names = [*turns, *beside]
            if len(names) <= _MAX_FIELDS and all(len(name) <= _SHORT for name in names):
                self._kept[key] = conditions
        return conditions

    def parts(
        self, fields: Mapping[str, Any], path: str = ROW_PATH
    ) -> tuple[CanonicalFields, CanonicalFields]:
        """The turns of a request that are no plain text, and its fields beside the turns.

        Their values are canonical texts.
        """
        return _without_the_text(fields, path, self._ignored[path])

    def _read(self, path: str, turns: CanonicalFields, beside: CanonicalFields) -> Conditions:
        digests = dict.fromkeys(self._models, "")
        differing = [*([ENDPOINT] if path != ROW_PATH else []), *turns]
        is_other_kind = not _OTHER_KIND_TURNS.isdisjoint(turns)
        for body, names in self._bodies:
            sent = body.conditions(path, beside)
            # Clients choose the names of fields, so turns are digested apart from them.
            shared = _digest(dump_json([path, sorted(turns.items()), sorted(sent.items())]))
            for name in names:
                digests[name] = _digest(f"{shared} {self._models[name]}".encode())
            others = body.differing(path, sent, beside)
            differing += others
            is_other_kind |= not _OTHER_KIND.isdisjoint(others.values())
        shown = [_OTHER_CHARACTERS.sub("?", name)[:_SHORT] for name in dict.fromkeys(differing)]
        return Conditions(
            digests,
            identity="".join(digests.values()),
            differing=tuple(shown[:_MAX_NAMED]),
            is_other_kind=is_other_kind,
        )


class _Body:
    """The body that candidates with the same parameters are sent, with canonical texts."""

    def __init__(self, candidate: CandidateBody) -> None:
        self._candidate = replace(
            BodySettings.of(candidate),
            parameters={name: canonical(value) for name, value in candidate.parameters.items()},
        )
        # A renamed field means what the server says, which no table knows.
        self.renamed = frozenset(candidate.renames) | frozenset(candidate.renames.values())
        self._configured = self.conditions(ROW_PATH, {})

    @property
    def settings(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """The parameters and renames of its candidates."""
        candidate = self._candidate
        return sorted(candidate.parameters.items()), sorted(candidate.renames.items())

    def is_like(self, other: _Body) -> bool:
        """Whether candidates of both are sent the same."""
        mine, theirs = self._candidate, other._candidate
        return (mine.parameters, mine.renames) == (theirs.parameters, theirs.renames)

    def conditions(self, path: str, beside: CanonicalFields) -> dict[str, str]:
        """The fields of the body that are conditions; the model is digested beside them."""
        body = candidate_payload(beside, self._candidate, path)
        del body["model"], body["stream"]
        return {
            name: value for name, value in body.items() if not self._is_excluded(name, body, path)
        }

    def differing(
        self, path: str, sent: CanonicalFields, beside: CanonicalFields
    ) -> dict[str, str]:
        """The fields that the configuration would not send there.

        Maps the client's name of each to its name at the server.
        """
        usual = self._configured if path == ROW_PATH else self.conditions(path, {})
        others = {name for name in {*sent, *usual} if sent.get(name) != usual.get(name)}
        names = {self._candidate.renames.get(name, name): name for name in beside}
        given = {own: name for name, own in names.items() if name in others}
        return given | {name: name for name in sorted(others.difference(names))}

    def _is_excluded(self, name: str, body: CanonicalFields, path: str) -> bool:
        exclusion = EXCLUSIONS.get(name)
        if exclusion is None or path not in exclusion.paths:
            return False
        if not self.renamed.isdisjoint((name, *exclusion.others)):
            return False
        return all(body.get(other) == value for other, value in exclusion.others.items())


def _digest(document: bytes) -> str:
    return blake2b(document, digest_size=16).hexdigest()


def _without_the_text(
    fields: Mapping[str, Any], path: str, ignored: Set[str]
) -> tuple[CanonicalFields, CanonicalFields]:
    """The shapes of turns that are not of plain text, and the fields beside the turns."""
    field_of_turns = TURN_FIELDS.get(path)
    turns: CanonicalFields = {}
    beside: dict[str, str] = {}
    for name, value in fields.items():
        if name == field_of_turns:
            turns = turn_shapes(name, value, canonical)
        elif value is not None and name not in ignored:
            beside[name] = canonical(value)
    return turns, beside


# Turn shapes: what the turns of a request say beside the texts, images and calls in them.
#
# A row states its own turns, so their content is no condition of the request. Their form is:
# whether there are images, several parts, calls of tools or their results, and what else a turn
# holds. Turns of plain text have no shape. System prompts, and a beginning of the answer at the
# end, are digested whole.

Digest = Callable[[object], str]

_TEXT_PARTS: Final = {"messages": ("text",), "input": ("input_text", "output_text")}
_OF_PLAIN_TEXT: Final = frozenset({"role", "content", "type"})  # fields of a turn
_USER: Final = "user"
_ASSISTANT: Final = "assistant"
# What has a shape: roles of turns, and types of the responses API's items without a role.
_SHAPED: Final = frozenset(
    [_USER, _ASSISTANT, "tool", "function", "function_call", "function_call_output", "reasoning"]
)
# The fields that hold what a row states. An object below one is searched for others, such as an
# image's `detail`.
_CONTENT: Final = frozenset(
    [
        *("arguments", "audio", "call_id", "content", "data", "encrypted_content", "file"),
        *("file_data", "file_id", "file_url", "filename", "function", "function_call", "id"),
        *("image_url", "input_audio", "name", "output", "reasoning", "reasoning_content"),
        *("refusal", "status", "summary", "text", "tool_call_id", "tool_calls", "url", "video_url"),
    ]
)


def turn_shapes(field: str, value: object, digest: Digest) -> dict[str, str]:
    """The turns that are not of plain text, under ``field.role``; none for plain text alone.

    Args:
        field: The field of the body that holds the turns.
        value: The turns.
        digest: Makes the text that equal values share.
    """
    match value:
        case str():
            return {}
        case [str()] if field == "prompt":  # one prompt, as its text alone is
            return {}
        case list():
            pass
        case _:
            return {field: digest(value)}
    wholes: dict[str, list[object]] = {}  # turns with their places
    shapes: dict[str, set[str]] = {}
    ends = ""  # the name of the last turn, where it has a shape
    turns = cast("list[object]", value)
    for place, turn in enumerate(turns):
        fields = cast("dict[str, object]", turn) if isinstance(turn, dict) else {}
        role, text = fields.get("role"), _plain_text(fields, _TEXT_PARTS.get(field, ()))
        is_end = place == len(turns) - 1
        # A row of plain text ends with a text of the user.
        if text is not None and not (is_end and (role != _USER or not text.strip())):
            continue
        name = f"{field}.{role or 'other'}"
        kind = fields.get("type") if role is None else role
        if not _has_shape(kind) or (is_end and kind == _ASSISTANT):
            wholes.setdefault(name, []).append((place, cast("object", turn)))
            continue
        shapes.setdefault(name, set()).add(digest([kind, _shape(fields)]))
        if is_end:
            ends = name
    return {
        name: digest([wholes.get(name, []), sorted(shapes.get(name, ())), name == ends])
        for name in dict.fromkeys((*wholes, *shapes))
    }


def _has_shape(kind: object) -> bool:
    return isinstance(kind, str) and kind in _SHAPED  # a client's `type` may be a list


def _shape(fields: Mapping[str, object]) -> dict[str, Any]:
    """An object without what a row states; for each such field, how it is given."""
    shape: dict[str, Any] = {}
    for name in sorted(fields):
        value = fields[name]
        if not _is_absent(fields, name):
            shape[name] = _form(value) if name in _CONTENT else value
    return shape


def _form(value: object) -> object:
    """How a content is given: as a text, or as parts or an object of these shapes."""
    match value:
        case dict():
            return _shape(cast("dict[str, object]", value))
        case []:
            return []
        case list():
            parts = {repr(part): part for part in map(_form, cast("list[object]", value))}
            return [parts[each] for each in sorted(parts)]
        case _:
            return "text" if isinstance(value, str) else type(value).__name__


def _plain_text(fields: Mapping[str, object], parts: Sequence[str]) -> str | None:
    """The text of a turn of plain text, of user or assistant; else None.

    One part of text, of these types, is sent as the text itself is: servers render both alike.
    """
    if fields.get("role") not in (_USER, _ASSISTANT) or fields.get("type", "message") != "message":
        return None
    if any([not _is_absent(fields, name) for name in fields.keys() - _OF_PLAIN_TEXT]):
        return None
    match fields.get("content"):
        case str(text):
            return text
        case [{"type": str(kind), "text": str(text)}] if kind in parts:
            beside = cast("list[dict[str, object]]", fields["content"])[0]
            absent = (_is_absent(beside, name) for name in beside.keys() - {"type", "text"})
            return text if all(absent) else None
        case _:
            return None


def _is_absent(fields: Mapping[str, object], name: str) -> bool:
    """Whether a field of a turn says nothing: clients send empty fields of answers back."""
    return fields[name] is None or (name == "annotations" and fields[name] == [])
