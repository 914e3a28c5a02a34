"""Column `classes` of sampled requests: classes of answers, verdicts and comparisons, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from app.json_output import dump_json


def classes_document(
    classes: Mapping[str, int | None],
    verdicts: Mapping[str, int],
    equal: Mapping[str, Sequence[str]],
) -> str:
    """How the store keeps the classes of answers, with verdicts and comparisons where they are."""
    kept: dict[str, Any] = {}
    for name, each in classes.items():
        kept[name] = [each, verdicts[name]] if name in verdicts else each
        if name in equal:
            kept[name] = [each, verdicts.get(name), equal[name]]
    return dump_json(kept).decode()


def read_classes(
    document: str,
) -> tuple[dict[str, int | None], dict[str, int], dict[str, list[str]]]:
    """Classes, verdicts and comparisons of :func:`classes_document`."""
    kept: dict[str, Any] = json.loads(document)
    classes: dict[str, int | None] = {}
    verdicts: dict[str, int] = {}
    equal: dict[str, list[str]] = {}
    for name, each in kept.items():
        classes[name] = each
        if isinstance(each, list):
            classes[name], verdict, *others = cast("list[Any]", each)
            if verdict is not None:
                verdicts[name] = verdict
            if others:
                equal[name] = others[0]
    return classes, verdicts, equal
