"""JSON Schema of the configuration file, for editors and external validators.

It covers fields, types and ranges. Conditions across fields are checked only by the loader.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from app.settings.model import Settings

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FILE_NAME: Final = "racer.schema.json"


def text() -> str:
    """The schema as text of a file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def json_schema() -> dict[str, Any]:
    """Every setting with description, default and allowed values."""
    described = cast("dict[str, Any]", _in_one_line(Settings.model_json_schema()))
    return {"$schema": _DIALECT, **described, "title": "RACER's configuration"}


def modeline(path: str) -> str:
    """The first line of a configuration file, by which editors find its schema.

    Args:
        path: Path of the schema, relative to the file.
    """
    return f"# yaml-language-server: $schema={path}"


def _in_one_line(part: object) -> object:
    """Join the lines of every description: docstrings have the line breaks of the code."""
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
