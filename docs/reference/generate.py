"""Generator of the reference: http, messages, cli, configuration, errors and python, pages here.

    python -m docs.reference.generate

Each page lists what the code declares: operations of the interface description, click commands,
fields of the settings, error classes, certificate reasons, public names of the package. What the
code cannot say (examples, introductions, causes and remedies of errors) comes from the folder
``notes``: a section of ``notes/NAME.txt`` follows the generated section with the same heading.
"""

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import yaml
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from app.api.openapi import openapi_document
from app.api.routes import ROUTES
from app.cli import main as cli
from app.errors import STATUS, UpstreamError
from app.routing import reasons
from app.routing.reasons import Reason, Remark, breaks
from app.settings.reloading import all_settings
from app.wire.schemas import RacerOptions
from docs.reference.messages_page import messages
from docs.reference.page import FOLDER, NOTES, one_line, page
from docs.reference.python_page import python
from racer_core.errors import RacerError

# --- HTTP ---------------------------------------------------------------------------------------


def http() -> str:
    """Every operation of the interface description with its parameters and body."""
    description = openapi_document(ROUTES)
    shown: set[tuple[str, str]] = set()
    block = RacerOptions.model_json_schema()
    sections = {"## The `racer` block": _list([*_properties(block, block)], shown)}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            keys = [key.removesuffix("_key") for each in operation["security"] for key in each]
            role = {"data": "Data key", "admin": "Admin key"}.get((keys or [""])[0], "No key")
            text = one_line(operation.get("description") or "")
            rows = [*_parameters(operation, description), *_fields(operation, description)]
            body = [f"{role}. {operation['summary']}. {text}".strip() + "\n"]
            sections[f"## `{method.upper()} {path}`"] = body + _list(rows, shown)
    return page("HTTP interface", "http", sections)


def _list(rows: list[tuple[str, str, str]], shown: set[tuple[str, str]]) -> list[str]:
    """Return a line for each field; fields described before share one line."""
    new = [row for row in rows if (row[0], row[2]) not in shown]
    old = ", ".join(f"`{row[0]}`" for row in rows if row not in new)
    shown |= {(name, text) for name, _, text in rows}
    lines = [f"- `{name}` ({kind}){': ' if text else ''}{text}" for name, kind, text in new]
    lines += [f"- as above: {old}"] if old else []
    return ["\n".join(lines) + "\n"] if lines else []


def _parameters(
    operation: Mapping[str, Any], description: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for each in operation.get("parameters", ()):
        if each["in"] != "path":
            text = each.get("description") or each["schema"].get("description") or ""
            yield (
                each["name"],
                f"{_kind(each['schema'], description)}, {each['in']}",
                one_line(text),
            )


def _fields(
    operation: Mapping[str, Any], description: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = _resolved(content.get("application/json", {}).get("schema", {}), description)
    yield from _properties(schema, description)


def _properties(
    schema: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        each = _resolved(field, document)
        default = each.get("default")
        shown = default if isinstance(default, str) else json.dumps(default)
        extra = "" if default is None else f", default `{shown}`"
        required = ", required" if name in schema.get("required", ()) else ""
        yield name, _kind(each, document) + extra + required, one_line(each.get("description", ""))


def _resolved(schema: Mapping[str, Any], description: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    own = {key: value for key, value in schema.items() if key != "$ref"}
    schemas = description.get("components", {}).get("schemas") or description["$defs"]
    return {**schemas[name], **own}


def _kind(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    schema = _resolved(schema, document)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            kinds = dict.fromkeys(_kind(each, document) for each in schema[choice])
            return " or ".join(kind for kind in kinds if kind != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), document)}"
    return str(schema.get("type", "anything"))


# --- Commands -----------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments and options."""
    sections: dict[str, list[str]] = {}
    shown: set[tuple[str, str]] = set()
    for name, command in _commands(cli.cli, "racer"):
        context = click.Context(command)
        arguments = [
            each.make_metavar(context)
            for each in command.params
            if isinstance(each, click.Argument)
        ]
        records = [
            each.get_help_record(context)
            for each in command.params
            if isinstance(each, click.Option) and "--json" not in each.opts
        ]
        options = [(_flag(each[0]), _help(each[1])) for each in records if each]
        sections[f"## `{' '.join((name, *arguments))}`"] = [
            one_line(command.help or "") + "\n",
            *_options(options, shown),
        ]
    return page("Commands", "cli", sections)


def _options(options: list[tuple[str, str]], shown: set[tuple[str, str]]) -> list[str]:
    """Return a line for each option; options described before share one line."""
    lines = [f"- `{flag}` {text}" for flag, text in options if (flag, text) not in shown]
    old = ", ".join(f"`{flag}`" for flag, text in options if (flag, text) in shown)
    shown.update(options)
    lines += [f"- as above: {old}"] if old else []
    return ["\n".join(lines) + "\n"] if lines else []


def _flag(text: str) -> str:
    """Return an option without the name of its type, unless that says more than the type."""
    return re.sub(r" (?:TEXT|PATH|FLOAT|INTEGER)(?: RANGE)?$", "", one_line(text))


def _help(text: str) -> str:
    """Return the help of an option without the range of its values, such as ``[x>=1]``."""
    text = re.sub(r"; [\d.<>=]*x[\d.<>=]*\]$", "]", one_line(text))
    return re.sub(r" \[[\d.<>=]*x[\d.<>=]*\]$", "", text)


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for each in sorted(command.commands):
            yield from _commands(command.commands[each], f"{name} {each}")
    else:
        yield name, command


# --- Settings -----------------------------------------------------------------------------------


def configuration() -> str:
    """Every setting with its default, what a change of it needs, and its description."""
    sections: dict[str, list[str]] = {"## The gateway": []}
    for each in all_settings():
        name, field = each.name, each.field
        section = re.split(r"\.|\[\]", name)[0] if "." in name else None
        heading = f"## `{section}`" if section else "## The gateway"
        default = "required" if field.is_required() else f"`{_default(field)}`"
        mark = "reloads" if each.is_reloaded else "restart"
        row = f"- `{name}` ({default}, {mark}): {one_line(field.description or '')}"
        sections.setdefault(heading, []).append(row)
    return page(
        "Configuration",
        "configuration",
        {heading: ["\n".join(rows) + "\n"] for heading, rows in sections.items()},
    )


def _default(field: FieldInfo) -> str:
    default = to_jsonable_python(field.get_default(call_default_factory=True))
    dumped = yaml.safe_dump(default, default_flow_style=True, width=10**6)
    return dumped.removesuffix("...\n").strip()


# --- Errors and reasons -------------------------------------------------------------------------


def errors() -> str:
    """Every error code by type, and every reason of a certificate."""
    declared = dict(_declared())
    rows: dict[str, list[tuple[int, str]]] = {}
    for note in tomllib.loads((NOTES / "errors.toml").read_text(encoding="utf-8"))["error"]:
        code = note["code"]
        status, kind = declared.get(code, (0, ""))
        status, kind = note.get("status", status), note.get("type", kind)
        row = f"- {status} `{code}`: {note['cause']} {note['remedy']}"
        rows.setdefault(kind, []).append((status, row))
    sections = {
        f"## `{kind}`": ["\n".join(row for _, row in sorted(each)) + "\n"]
        for kind, each in rows.items()
    }
    documented = dict(_members("Reason"))
    for heading, is_void in (
        ("## Reasons that void the guarantee", True),
        ("## Reasons that hold", False),
    ):
        lines = [
            f"- `{name}`: {one_line(documented[reason.name])}"
            for reason in Reason
            if breaks(reason) is is_void
            for name in [f"{reason}:<name>" if "<name>" in documented[reason.name] else reason]
        ]
        sections[heading] = ["\n".join(lines) + "\n"]
    remarks = dict(_members("Remark"))
    lines = [f"- `{remark}`: {one_line(remarks[remark.name])}" for remark in Remark]
    sections["## Remarks"] = ["\n".join(lines) + "\n"]
    return page("Errors and certificate reasons", "errors", sections)


def _declared() -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield code, status and type of every error class, and those of a candidate's failure."""
    for each in _classes(RacerError):
        status, kind, code = next(STATUS[base] for base in each.__mro__ if base in STATUS)
        yield getattr(each, "default_kind", getattr(each, "code", code)), (status, kind)
    source = (Path(inspect.getfile(UpstreamError)).parent / "upstream").rglob("*.py")
    kinds = (re.findall(r'kind="(upstream_\w+)"', path.read_text("utf-8")) for path in source)
    status, kind, _ = STATUS[UpstreamError]
    # Parsers of answers raise them too, with kinds of the same family.
    for code in {code for found in kinds for code in found} | {"upstream_invalid_response"}:
        yield code, (status, kind)
    yield from ((code, (status, kind)) for status, kind, code in STATUS.values())


def _classes(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for each in root.__subclasses__():
        yield from _classes(each)


def _members(enum: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of every member of ``Reason`` or ``Remark``."""
    module = ast.parse(inspect.getsource(reasons))
    body = next(
        node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == enum
    )
    for member, text in pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            name, value = member.targets[0], text.value
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                yield name.id, str(value.value)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "http.md": http,
    "messages.md": messages,
    "cli.md": commands,
    "configuration.md": configuration,
    "errors.md": errors,
    "python.md": python,
}


def main() -> None:
    """Write the pages."""
    for name, text in PAGES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
