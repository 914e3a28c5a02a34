"""The page of Python: every public name of ``racer_core`` with its signature and docstring."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

import racer_core
from docs.reference.page import one_line, page

_ROLE: Final = re.compile(r":\w+:`~?([\w.]+)`|``(.+?)``")
_SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Raises|References):(?: (.+))?$")


def python() -> str:
    """Every public name of ``racer_core`` with its signature and its docstring, by subject."""
    sections: dict[str, list[str]] = {}
    for heading, names in racer_core.SUBJECTS.items():
        sections[f"## {heading}"] = [part for name in names for part in _name(name)]
    return page("Python", "python", sections)


def _name(name: str) -> Iterator[str]:
    """Yield the heading and the docstring of a name, then its public properties and methods."""
    value = getattr(racer_core, name)
    yield f"### `{name}`\n"
    if inspect.isclass(value) and issubclass(value, Enum):
        yield f"One of {', '.join(f'`{member.value}`' for member in value)}.\n"
    elif not (inspect.isclass(value) and issubclass(value, Exception)):
        yield f"```python\n{_signature(name, value)}\n```\n"
    yield from _docstring(value)
    if is_dataclass(value) and "Attributes:" not in (value.__doc__ or ""):
        yield from _commented(value)
    if inspect.isclass(value) and not issubclass(value, Enum | Exception):
        for base in _bases(value):
            yield from _attributes(base)
        for member, own in _members_of(value).items():
            function = getattr(own, "__func__", own)
            if isinstance(own, property | cached_property):
                yield f"#### `{name}.{member}`\n"
                yield from _docstring(own)
            elif inspect.isfunction(function):
                yield f"#### `{name}.{member}`\n"
                yield f"```python\n{_signature(member, function)}\n```\n"
                yield from _docstring(function)


def _bases(kind: type) -> list[type]:
    """Return the bases of a class that are ours, the first one first."""
    return [each for each in reversed(kind.__mro__[1:]) if each.__module__.startswith("racer_core")]


def _attributes(kind: type) -> Iterator[str]:
    """Yield the attributes that the docstring of a base lists."""
    _, mark, text = (inspect.getdoc(kind) or "").partition("\nAttributes:")
    if mark:
        yield from _sections(f"Attributes:{text}")


def _members_of(kind: type) -> dict[str, Any]:
    """Return the public members of a class and of its bases, those of the bases first."""
    members = {name: own for each in [*_bases(kind), kind] for name, own in vars(each).items()}
    return {name: own for name, own in members.items() if not name.startswith("_")}


def _commented(kind: type) -> Iterator[str]:
    """Yield the list of a dataclass's fields that a comment explains, above them or beside them."""
    found = re.findall(
        r"^((?:    # [^\n]*\n)*)    (\w+): [^\n#]*?(?:  # ([^\n]*))?$",
        inspect.getsource(kind),
        re.M,
    )
    lines = [
        f"- `{name}`: {one_line(_as_markdown(above.replace('# ', '') or beside))}\n"
        for above, name, beside in found
        if name in kind.__annotations__ and (above or beside)
    ]
    if lines:
        yield f"*Attributes:*\n\n{''.join(lines)}"


def _signature(name: str, value: Any) -> str:
    """Return a call, with the annotations as they stand in the code; on lines of their own."""
    parts: list[str] = []
    is_keyword = False
    for each in inspect.signature(value).parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            parts += ["*"] if not any(part.startswith("*") for part in parts) else []
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {each.annotation}"
        default = each.default
        shown = getattr(default, "value", default)
        is_plain = isinstance(shown, str | int | float | tuple | None)
        given = "" if default is each.empty else f" = {shown!r}" if is_plain else " = ..."
        parts.append(f"{star}{each.name}{kind}{given}")
    result = None if inspect.isclass(value) else value.__annotations__.get("return")
    end = f" -> {result}" if result else ""
    line = f"{name}({', '.join(parts)}){end}"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){end}"


def _docstring(value: Any) -> Iterator[str]:
    """Yield the paragraphs of a docstring."""
    yield from _sections(inspect.getdoc(value) or "")


def _sections(text: str) -> Iterator[str]:
    """Yield the paragraphs of a text, its Google sections as lists."""
    text = _as_markdown(text)
    for paragraph in re.split(r"\n\n+", text):
        first, _, rest = paragraph.partition("\n")
        section = _SECTION.match(first)
        if section is None:
            yield _paragraph(paragraph)
        elif section[1] in ("Returns", "References"):
            text = _paragraph(textwrap.dedent(rest)).lstrip()
            yield f"*{section[1]}:* {one_line(section[2] or '')}{text}"
        else:
            entries = re.split(r"^ {4}(?=\S)", rest, flags=re.MULTILINE)[1:]
            lines = [_entry(entry) for entry in entries]
            yield f"*{section[1]}:*\n\n" + "\n".join(lines) + "\n"


def _as_markdown(text: str) -> str:
    """Return a text with the roles and literals of reStructuredText as code."""
    return _ROLE.sub(lambda found: f"`{found[1] or found[2]}`", text)


def _entry(text: str) -> str:
    name, _, meaning = text.partition(":")
    return f"- `{name}`: {one_line(meaning)}"


def _paragraph(text: str) -> str:
    """Return a paragraph on one line; lists and code keep their lines."""
    dedented = textwrap.dedent(text)
    if dedented.startswith("- "):
        items = re.split(r"^- ", dedented, flags=re.MULTILINE)[1:]
        return "".join(f"- {one_line(item)}\n" for item in items)
    if text.startswith("    "):
        return f"```text\n{dedented}\n```\n" if "=" in text else one_line(text) + "\n"
    return one_line(text) + "\n"
