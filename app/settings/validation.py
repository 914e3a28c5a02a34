"""Validation messages in plain English: the field, what is allowed, the nearest known name.

Pydantic's own phrases ("Extra inputs are not permitted") never reach a user. No message repeats a
value: it may be a key or a prompt. Request bodies and manifests of backups use this module, too:
``settings`` is the lowest layer that all of them share.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

_MAX_SHOWN: Final = 64  # characters of a name that a client may have invented
_MAX_LISTED: Final = 12  # names that one sentence can hold
_BOUNDS: Final = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
_OUT_OF_RANGE: Final = frozenset(
    {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
)
_TYPES: Final = {
    "bool": "must be true or false",
    "int": "must be a whole number",
    "float": "must be a number",
    "string": "must be a string",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be a mapping of names to values",
    "model": "must be a mapping of names to values",
    "path": "must be a path",
}
_Context = Mapping[str, Any]
_SENTENCES: Final[Mapping[str, Callable[[_Context], str]]] = {
    "missing": lambda _: "missing, and required",
    "invalid_key": lambda _: "a name must be a string",
    "finite_number": lambda _: "must be a finite number",
    "literal_error": lambda context: f"must be {context['expected']}",
    "enum": lambda context: f"must be {context['expected']}",
    "string_pattern_mismatch": lambda context: f"must match the pattern {context['pattern']}",
    "string_too_short": lambda context: _at_least(context["min_length"], "character"),
    "string_too_long": lambda context: f"must have at most {context['max_length']} characters",
    "too_short": lambda context: _at_least(context["min_length"], "entry", "entries"),
    "too_long": lambda context: f"must have at most {context['max_length']} entries",
}


def problems(
    exc: ValidationError,
    model: type[BaseModel],
    *,
    noun: Literal["setting", "field"] = "field",
) -> list[tuple[str, str]]:
    """Describe each problem by the field's path and one sentence that names it.

    Args:
        exc: What ``model`` raised.
        model: The model that was validated; its fields are the known names.
        noun: What an entry of the model is called in messages.

    Returns:
        For each problem the path, empty where it concerns the whole, and the sentence.
    """
    details = exc.errors(include_input=False, include_url=False)
    return [_problem(each, model, noun) for each in details if not _follows(each, details)]


def suggestion(name: str, names: Collection[str]) -> str:
    """The name in ``names`` nearest to an unknown one as a question; empty where none is near."""
    nearest = _nearest(name, names)
    return "" if nearest is None else f"did you mean `{nearest}`?"


def _nearest(name: str, names: Collection[str]) -> str | None:
    folded = {each.lower(): each for each in names}
    nearest = difflib.get_close_matches(name[:_MAX_SHOWN].lower(), folded, n=1)
    return folded[nearest[0]] if nearest else None


def _inside(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The names in sections of a model, at any depth, each with its path; the nearest last."""
    sections = [
        (field, section)
        for field, info in reversed(model.model_fields.items())
        for section in _models(info.annotation, inside_lists=False)
    ]
    for field, section in sections:
        yield from ((name, f"{field}.{path}") for name, path in _inside(section))
    for field, section in sections:
        yield from ((name, f"{field}.{name}") for name in section.model_fields)


def _follows(error: Mapping[str, Any], errors: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a list is too short only because pydantic dropped its wrong entries."""
    place = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in errors
    )


def _problem(error: Mapping[str, Any], model: type[BaseModel], noun: str) -> tuple[str, str]:
    location: Sequence[str | int] = error["loc"]
    place = ".".join(str(part)[:_MAX_SHOWN] for part in location)
    if error["type"] == "extra_forbidden":
        parent = _models(_annotation_at(model, location[:-1]))
        sentence = _unknown(str(location[-1]), next(parent, model), noun)
    else:
        sentence = _sentence(error, _annotation_at(model, location))
    return place, f"{place}: {sentence}" if place else sentence


def _sentence(error: Mapping[str, Any], annotation: Any) -> str:
    kind: str = error["type"]
    if kind in _OUT_OF_RANGE and (bounds := _bounds(annotation)):
        return f"must be {' and '.join(bounds)}"
    if kind in _SENTENCES:
        return _SENTENCES[kind](error.get("ctx", {}))
    subject, _, rest = kind.partition("_")
    if subject in _TYPES and rest in ("type", "parsing", "from_float", "attributes_type"):
        return _TYPES[subject]
    message: str = error["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "must be", 1)


def _at_least(count: int, one: str, many: str | None = None) -> str:
    return f"must have at least {count} {one if count == 1 else many or one + 's'}"


def _unknown(name: str, model: type[BaseModel], noun: str) -> str:
    """What to do about a name that the model does not know."""
    names = model.model_fields
    inside = dict(_inside(model))
    hint = f"did you mean `{inside[name]}`?" if name in inside else suggestion(name, names)
    if not hint and (nearest := _nearest(name, inside)) is not None:
        hint = f"did you mean `{inside[nearest]}`?"
    if not hint and noun == "setting" and len(names) > _MAX_LISTED:
        hint = "`racer schema` prints all settings"
    elif not hint:
        hint = "known here: " + ", ".join(f"`{each}`" for each in names)
    return f"unknown {noun}; {hint}"


def _annotation_at(model: type[BaseModel], location: Sequence[str | int]) -> Any:
    """The annotation of the field at a path: through sections, lists and tables by name."""
    annotation: Any = model
    for part in location:
        annotation = _below(annotation, part)
    return annotation


def _below(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return None if field is None else _whole(field)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _below(arguments[0], part)
    if origin in (Union, UnionType):
        found = (_below(each, part) for each in arguments)
        return next((each for each in found if each is not None), None)
    if origin is dict:
        return arguments[1]
    return arguments[0] if origin in (list, tuple) else None


def _whole(field: FieldInfo) -> Any:
    """The annotation with the constraints that pydantic keeps beside it."""
    annotation = cast("Any", field.annotation)
    for constraint in field.metadata:
        annotation = Annotated[annotation, constraint]
    return annotation


def _models(annotation: Any, *, inside_lists: bool = True) -> Iterator[type[BaseModel]]:
    """The models that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif inside_lists or get_origin(annotation) in (Annotated, Union, UnionType):
        for each in get_args(annotation):
            yield from _models(each, inside_lists=inside_lists)


def _bounds(annotation: Any) -> list[str]:
    """The range of a number in words, for example ``greater than 0``."""
    return [
        f"{word} {limit:g}"
        for constraint in _constraints(annotation)
        for bound, word in _BOUNDS.items()
        if (limit := getattr(constraint, bound, None)) is not None
    ]


def _constraints(annotation: Any) -> Iterator[object]:
    """The constraints in an annotation and in its alternatives."""
    for each in get_args(annotation):
        yield from getattr(each, "metadata", (each,))  # one `Field` holds several
        yield from _constraints(each)
