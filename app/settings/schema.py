"""The configuration file as a JSON schema, for editors and for validators that are not ours.

It knows fields, types and ranges; what several fields must agree on, only the loader knows.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from app.settings.model import Settings

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FILE_NAME: Final = "racer.schema.json"


def text() -> str:
    """The schema as it stands in a file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def json_schema() -> dict[str, Any]:
    """Every field with its sentence, its default and what it may be."""
    described = cast("dict[str, Any]", _in_one_line(Settings.model_json_schema()))
    return {"$schema": _DIALECT, **described, "title": "RACER's configuration"}


def modeline(path: str) -> str:
    """The first line of a file, by which editors find its schema.

    Args:
        path: Of the schema, relative to the file.
    """
    return f"# yaml-language-server: $schema={path}"


def _in_one_line(part: object) -> object:
    """The same with every description as one line: docstrings are broken where the code is."""
    if isinstance(part, list):
        return [_in_one_line(each) for each in cast("list[object]", part)]
    if not isinstance(part, dict):
        return part
    return {
        name: " ".join(value.split())
        if name == "description" and isinstance(value, str)
        else _in_one_line(value)
        for name, value in cast("dict[str, object]", part).items()
    }
