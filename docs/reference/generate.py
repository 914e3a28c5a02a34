"""Writes the reference pages that follow from the code: http.md and cli.md beside this file.

python docs/reference/generate.py
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from app.api.openapi import openapi_document
from app.api.routes import ROUTES
from app.cli import main as cli

FOLDER = Path(__file__).parent
WRITTEN = "Written by `python docs/reference/generate.py`; a test compares it with the code.\n"


def http() -> str:
    """Every endpoint of the interface description with its parameters, bodies and answers."""
    description = openapi_document(ROUTES)
    lines = ["# HTTP, every field\n", WRITTEN]
    lines.append(
        "Examples with their answers: [api.md](../api.md). For programs: `GET /openapi.json`.\n"
    )
    for path, methods in description["paths"].items():
        for method, told in methods.items():
            lines += [f"## `{method.upper()} {path}`\n", f"{told['summary']}.\n"]
            if told.get("description"):
                lines.append(told["description"] + "\n")
            lines += _table("parameter", _parameters(told))
            lines += _table("field of the body", _fields(told, description))
            codes = ", ".join(f"`{code}`" for code in told["responses"])
            keys = " or ".join(f"`{key}`" for each in told["security"] for key in each)
            lines.append(f"Key: {keys or 'none'}. Answers: {codes}.\n")
    return "\n".join(lines)


def _table(head: str, rows: Iterator[tuple[str, str, str]]) -> list[str]:
    found = [f"| `{name}` | {kind} | {what} |" for name, kind, what in rows]
    return [f"| {head} | type | what |\n| --- | --- | --- |", *found, ""] if found else []


def _parameters(told: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for each in told.get("parameters", ()):
        place = "" if each["in"] == "query" else f" (in the {each['in']})"
        what = each.get("description") or each["schema"].get("description") or ""
        yield each["name"], _kind(each["schema"]) + place, _line(what)


def _fields(
    told: Mapping[str, Any], description: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    content = told.get("requestBody", {}).get("content", {})
    schema = _found(content.get("application/json", {}).get("schema", {}), description)
    for name, each in schema.get("properties", {}).items():
        needed = ", required" if name in schema.get("required", ()) else ""
        yield name, _kind(each) + needed, _line(_found(each, description).get("description", ""))


def _found(schema: Mapping[str, Any], description: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    return {
        **description["components"]["schemas"][name],
        **{k: v for k, v in schema.items() if k != "$ref"},
    }


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            kinds = dict.fromkeys(_kind(each) for each in schema[choice])
            return " or ".join(kind for kind in kinds if kind != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def commands() -> str:
    """Every command with its arguments and options."""
    lines = ["# Commands\n", WRITTEN, "`racer COMMAND --help` says the same.\n"]
    for name, command in _commands(cli.cli, "racer"):
        arguments = " ".join(
            each.make_metavar(click.Context(command))
            for each in command.params
            if isinstance(each, click.Argument)
        )
        lines += [
            f"## `{' '.join(filter(None, (name, arguments)))}`\n",
            f"{_line(command.help or '')}\n",
        ]
        lines += _options(command)
    return "\n".join(lines)


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for each in sorted(command.commands):
            yield from _commands(command.commands[each], f"{name} {each}")
    else:
        yield name, command


def _options(command: click.Command) -> list[str]:
    rows: list[str] = []
    context = click.Context(command)
    for each in command.params:
        record = each.get_help_record(context) if isinstance(each, click.Option) else None
        if record is not None:
            rows.append(f"| `{_line(record[0])}` | {_line(record[1])} |")
    return ["| option | what |\n| --- | --- |", *rows, ""] if rows else []


PAGES = {"http.md": http, "cli.md": commands}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
