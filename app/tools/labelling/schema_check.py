"""Check of answers against a JSON schema: the function of the evidence `json_schema`.

It runs in a child process that is killed when it takes too long: a pattern in the schema of a
request may take for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from app.tools.labelling.request_grading import meets
from racer_core.errors import InputError

import_module("jsonschema")  # a gateway that lacks it does not start, instead of failing each check


def check(document: dict[str, Any]) -> dict[str, Any]:
    """Whether each answer meets the schema; null where there is none, or it cannot be checked."""
    schema: object = document["schema"]
    if schema == "request":
        schema = requested_schema(document["request"])
    return {"correct": {name: _verdict(each, schema) for name, each in document["answers"].items()}}


def requested_schema(request: Mapping[str, Any]) -> object:
    """The schema that a request demands, in chat or responses; None: it demands none."""
    text: object = request.get("text")
    format_ = cast("dict[str, Any]", text).get("format") if isinstance(text, dict) else None
    found: object = request.get("response_format") or format_
    if not isinstance(found, dict):
        return None
    given = cast("dict[str, Any]", found)
    inner: object = given.get("json_schema", given)
    return cast("dict[str, Any]", inner).get("schema") if isinstance(inner, dict) else None


def _verdict(message: Mapping[str, Any], schema: object) -> bool | None:
    text: object = message.get("content")
    if schema is None or not isinstance(text, str):  # tool calls have schemas of their own
        return None
    try:
        value: object = json.loads(text)
    except ValueError:
        return False
    try:
        return meets(value, schema)
    except InputError:
        return None
