"""Request bodies in the interface description; handlers read bytes, so it cannot see them."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` for a handler that reads one JSON model."""
    schema = inline(model)
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def inline(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema with every definition in its place: fragments of a document have none."""
    schema = model.model_json_schema()
    definitions: dict[str, Any] = schema.pop("$defs", {})
    return cast("dict[str, Any]", _resolved(schema, definitions))


def _resolved(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_resolved(each, definitions) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    values = cast("dict[str, Any]", node)
    if "$ref" in values:
        return _resolved(definitions[values["$ref"].rpartition("/")[2]], definitions)
    return {name: _resolved(value, definitions) for name, value in values.items()}
