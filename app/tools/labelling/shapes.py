"""Questions under the conditions of requests: what `racer label` asks to certify such requests.

A shape of the gateway's coverage has values of numbers, switches and words, and digests of what
clients wrote. The files that the command names bring the contents, and the digests tell whether
they are the right ones, before any call is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from app.errors import SettingsError
from app.routing.artifact_files import is_there, open_trained
from app.routing.conditions import ConditionReader
from app.routing.shapes import Shape, shape_id, shape_of
from app.settings import DEFAULT, Settings
from app.tools.gateway_client import GatewayClient
from app.tools.labelling.labeller import replayed, routed_question
from racer_core import strict_json
from racer_core.errors import ArtifactError, InputError
from racer_core.records.questions import Question
from racer_core.records.request import TURN_FIELDS, request_path
from racer_core.types import Turn

_CHAT: Final = "chat/completions"
_SYSTEM_ROLES: Final = ("system", "developer")
_INSTRUCTIONS: Final = "instructions"  # the system prompt of the responses API


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """The options of the command.

    Attributes:
        likes: Ids of shapes in the gateway's coverage.
        systems: System prompts.
        fields: Values of fields by name; several for several shapes.
        later: The questions are second turns. A shape says it itself.
        words: The options as they were typed.
    """

    likes: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    fields: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    later: bool = False
    words: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether questions are asked otherwise than they stand."""
        return bool(self.likes or self.systems or self.fields or self.later)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    """A request without its question.

    Attributes:
        endpoint: The endpoint of candidates.
        fields: Its fields beside the turns.
        head: The turns before the conversation.
        later: The question is a second turn.
        application: The application of such requests; None: none is configured.
    """

    endpoint: str = _CHAT
    fields: Mapping[str, Any]
    head: Sequence[Mapping[str, Any]] = ()
    later: bool = False
    application: str | None = None

    def request(self, query: str, earlier: Sequence[Turn] = ()) -> dict[str, Any]:
        """The request that asks this."""
        if self.endpoint == "completions":
            return {TURN_FIELDS[self.endpoint]: query, **self.fields}
        turns = [*self.head, *({"role": each.role, "content": each.text} for each in earlier)]
        turns.append({"role": "user", "content": query})
        return {TURN_FIELDS[self.endpoint]: turns, **self.fields}


def field_of(given: str) -> tuple[str, Any]:
    """Name and value of ``NAME=JSON`` or ``NAME=@FILE``. Raises InputError."""
    name, sign, text = given.partition("=")
    if not name or not sign:
        raise InputError(f"--field {given}: write NAME=JSON or NAME=@FILE")
    if text.startswith("@"):
        return name, json_file(Path(text[1:]))
    try:
        return name, strict_json.loads(text)
    except InputError as exc:
        raise InputError(f"--field {given}: {exc}; a text stands in double quotes") from exc


def json_file(path: Path) -> Any:
    """What a file of JSON holds. Raises InputError."""
    try:
        return strict_json.loads(text_file(path))
    except InputError as exc:
        raise InputError(f"{path}: {str(exc).removeprefix(f'{path}: ')}") from exc


def text_file(path: Path) -> str:
    """What a file of text holds. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "not UTF-8"
        raise InputError(f"{path}: cannot be read ({reason})") from exc


class EarlierAnswers:
    """Answers of the gateway to first turns, kept in a file so that each is asked once.

    Args:
        gateway: The gateway.
        path: The file.
    """

    def __init__(self, gateway: GatewayClient, path: Path) -> None:
        self._gateway = gateway
        self._path = path
        self._known: dict[str, str] = {}
        if path.is_file():
            for line in text_file(path).splitlines(keepends=True):
                if line.endswith("\n"):  # else an interruption cut it
                    value = strict_json.load_object(line.encode())
                    self._known[value["asked"]] = value["answer"]

    def to(self, request: Mapping[str, Any]) -> str:
        """The gateway's answer to a chat request."""
        body = {**request, "model": "auto"}
        text = json.dumps(body, ensure_ascii=False, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._known:
            self._known[key] = self._gateway.ask(body)
            with self._path.open("a", encoding="utf-8") as file:
                line = {"asked": key, "answer": self._known[key]}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return self._known[key]


def shaped(
    questions: Sequence[Question],
    options: ShapeOptions,
    settings: Settings,
    coverage: Mapping[str, Any] | None,
    answers: EarlierAnswers | None,
) -> tuple[Question, ...]:
    """The questions under other conditions.

    Of shapes that the gateway has served, the questions as they stand come first: rows of shapes
    alone would certify plain questions no more.

    Args:
        questions: Plain questions are asked under each shape; whole requests stay as they are.
        options: The shapes.
        settings: The configuration, which must be the gateway's.
        coverage: ``GET /coverage`` of the gateway; None: no shape of it is asked for.
        answers: Asks the gateway first turns; None: there is no gateway.

    Raises:
        InputError: A shape is unknown, or its contents are not those of the files.
    """
    reader = ConditionReader(settings.candidates)
    plain = [
        each
        for each in questions
        if each.request is None and not each.earlier and each.decision_id is None
    ]
    if options.likes:
        assert coverage is not None
        templates = [_like(each, coverage, options, reader, settings) for each in options.likes]
    else:
        templates = [_explicit(options)]
    found: dict[str, Question] = {}
    if options.likes:
        group = _group({each.application for each in templates})
        found = {each.identity: replace(each, group=each.group or group) for each in questions}
    for template in templates:
        for each in _under(template, plain, answers):
            found.setdefault(each.identity, each)
    return tuple(found.values())


def untrained(questions: Sequence[Question], settings: Settings) -> tuple[Question, ...]:
    """The questions on which the configured router was not trained, which alone calibrate it.

    All of them where its artifact is not on this machine.

    Raises:
        InputError: None is left.
    """
    if settings.artifact is None or not is_there(settings.artifact):
        return tuple(questions)
    try:
        trained = open_trained(settings)
    except (ArtifactError, SettingsError):  # the gateway says so when it calibrates
        return tuple(questions)
    texts = ("" if each.is_lost else routed_question(each, settings) for each in questions)
    prints = list(map(trained.artifact.overlap_print, texts))
    seen = set(trained.overlap(prints))
    left = tuple(each for place, each in enumerate(questions) if place not in seen)
    if not left:
        raise InputError(
            "the router was trained on all of these questions, and what trained it calibrates "
            "nothing: take others, such as those of bootstrap/parts/calibration.jsonl"
        )
    return left


def _under(
    template: _Template, plain: Sequence[Question], answers: EarlierAnswers | None
) -> Iterator[Question]:
    """The questions as requests of a template."""
    if not template.later:
        for each in plain:
            yield _asked(template, each, template.request(each.query))
        return
    if answers is None:
        raise InputError("second turns follow an answer of the gateway: name it by --url")
    # Each question stands in one row alone, so that rows do not depend on each other.
    half = len(plain) // 2
    if not half:
        raise InputError("second turns take two questions or more: one of each two is asked first")
    for first, each in zip(plain[:half], plain[half : 2 * half], strict=True):
        chat = replace(template, endpoint=_CHAT, fields=_of_chat(template))
        answer = answers.to(chat.request(first.query))
        earlier = (Turn("user", first.query), Turn("assistant", answer))
        yield _asked(template, each, template.request(each.query, earlier), earlier)


def _of_chat(template: _Template) -> Mapping[str, Any]:
    """The fields with which the gateway is asked a first turn."""
    return template.fields if template.endpoint == _CHAT else {}


def _asked(
    template: _Template,
    question: Question,
    request: Mapping[str, Any],
    earlier: tuple[Turn, ...] = (),
) -> Question:
    is_plain = not template.head and not template.fields and template.endpoint == _CHAT
    return replace(
        question,
        request=None if is_plain else request,
        earlier=earlier,
        group=question.group or _group({template.application}),
        conversation=None,
        recorded={},
    )


def _group(applications: Collection[str | None]) -> str | None:
    """The group of rows of these applications; rows without one are those of the rest."""
    match list(applications):
        case [str(name)] if name != DEFAULT:
            return name
        case _:
            return None


def _explicit(options: ShapeOptions) -> _Template:
    """The shape that the options name without the gateway."""
    for name, given in {"system": options.systems, **options.fields}.items():
        if len(given) > 1:
            raise InputError(f"--{name} is given {len(given)} times, and only --like takes several")
    head = [{"role": "system", "content": text.rstrip("\n")} for text in options.systems]
    fields = {name: values[0] for name, values in options.fields.items()}
    return _Template(fields=fields, head=head, later=options.later)


def _like(
    wanted: str,
    coverage: Mapping[str, Any],
    options: ShapeOptions,
    reader: ConditionReader,
    settings: Settings,
) -> _Template:
    """The shape of this id, with the contents that the options bring."""
    known = {
        kind["shape"]: (each["application"], kind)
        for each in coverage["applications"]
        for kind in [*each["earlier"], *each["others"]]
        if kind["shape"] is not None
    }
    if wanted not in known:
        listed = ", ".join(known) or "none"
        raise InputError(
            f"--like {wanted}: none of the last requests has this shape; those that `racer doctor` "
            f"shows are {listed}"
        )
    application, shape = known[wanted]
    if not shape["reproducible"]:
        raise InputError(
            f"--like {wanted}: no options make such requests ({shape['what']}): put whole requests "
            "into the file (`request`), or draw rows from traffic (docs/live-traffic.md)"
        )
    template = _Template(
        endpoint=shape["endpoint"],
        fields={},
        later=shape["later_turn"],
        application=application,
    )
    for each in shape["fields"]:
        template = _with_field(wanted, template, each, options, reader)
    _check_id(wanted, template, reader, settings)
    return template


def _with_field(
    wanted: str,
    template: _Template,
    part: Mapping[str, Any],
    options: ShapeOptions,
    reader: ConditionReader,
) -> _Template:
    """The template with a field of the shape: its value, or the content with its digest."""
    name = part["name"]
    if "value" in part:
        return replace(template, fields={**template.fields, name: part["value"]})
    candidates = list(_contents(template, name, options))
    for each in candidates:
        if _digest_of(each, name, reader) == part["digest"]:
            return each
    is_system = name.rpartition(".")[2] in (*_SYSTEM_ROLES, _INSTRUCTIONS)
    option = "--system FILE" if is_system else "--tools FILE" if name == "tools" else None
    option = option or f"--field {name}=@FILE"
    if not candidates:
        raise InputError(
            f"--like {wanted}: give {option}: such requests send {name}, and the gateway keeps "
            "only its digest"
        )
    raise InputError(
        f"--like {wanted}: {option} is not the {name} of these requests: its digest is another. "
        "Give the text that the client sends, byte for byte"
    )


def _contents(template: _Template, name: str, options: ShapeOptions) -> Iterator[_Template]:
    """The template with each content that the field may have."""
    turn_field, _, role = name.partition(".")
    if role in _SYSTEM_ROLES and turn_field == TURN_FIELDS[template.endpoint]:
        for text in _texts(options):
            for content in (text, [{"type": "text", "text": text}]):
                yield replace(template, head=[*template.head, {"role": role, "content": content}])
        return
    values: Iterable[Any] = options.fields.get(name, ())
    if name == _INSTRUCTIONS:
        values = [*values, *_texts(options)]
    for value in values:
        yield replace(template, fields={**template.fields, name: value})


def _texts(options: ShapeOptions) -> list[str]:
    """The prompts, each also without the line end with which editors close a file."""
    return [each for text in options.systems for each in dict.fromkeys((text, text.rstrip("\n")))]


def _digest_of(template: _Template, name: str, reader: ConditionReader) -> str | None:
    """Digest of a field of the template's requests."""
    parts = _shape(template, reader, template.request("?")).fields
    return next((each.digest for each in parts if each.name == name), None)


def _shape(template: _Template, reader: ConditionReader, fields: Mapping[str, Any]) -> Shape:
    path = template.endpoint
    conditions, parts = reader.read(fields, path), reader.parts(fields, path)
    return shape_of(conditions, parts, fields, path, later=template.later)


def _check_id(
    wanted: str, template: _Template, reader: ConditionReader, settings: Settings
) -> None:
    """Refuse a template whose requests do not have the shape. Raises InputError."""
    question = Question(place=0, query="?", request=template.request("?"))
    sent = replayed(question, settings)
    path = request_path(cast("Mapping[str, Any]", question.request))
    if shape_id(reader.read(sent.fields, path), path, later=template.later) != wanted:
        raise InputError(
            f"--like {wanted}: with this configuration candidates are sent other requests than by "
            "the gateway: give the gateway's own --config"
        )
