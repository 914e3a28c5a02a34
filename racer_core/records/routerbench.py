"""Reader of RouterBench tables (arXiv 2403.12031) as labelled rows.

One row per prompt: ``sample_id``, ``prompt``, ``eval_name``, and for every model its score in a
column of its name beside ``<model>|model_response`` and ``<model>|total_cost``. RouterBench is
published as a pickle, which is never read: export it to CSV or parquet first. A column ``cluster``
may be added.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from racer_core.errors import InputError
from racer_core.records.formats import Numbered, TabularFile

_COLUMNS = frozenset({"sample_id", "prompt", "eval_name"})
_RESPONSE, _COST = "|model_response", "|total_cost"
_MAX_LITERAL = 1_000_000  # characters; longer texts are not parsed as printed lists


def is_export(columns: Sequence[str]) -> bool:
    """Whether a table is RouterBench's; a ``query`` column marks our own format."""
    return set(columns) >= _COLUMNS and "query" not in columns


def labelled(
    table: TabularFile, *, threshold: float | None = None, tasks: Sequence[str] | None = None
) -> Iterator[Numbered]:
    """The table's rows in our format.

    Args:
        table: A RouterBench export.
        threshold: The score from which an answer counts as right; None refuses fractions.
        tasks: Only rows whose ``eval_name`` is one of these; None takes all.

    Raises:
        InputError: Another kind of table, or one without models.
    """
    models = _models(table.columns)
    for place, cells in table.rows:
        if isinstance(cells, InputError):
            yield place, cells
            continue
        row = cast("dict[str, object]", cells)
        if tasks is None or row["eval_name"] in tasks:
            yield place, _row(row, models, threshold)


def _models(columns: Sequence[str]) -> list[str]:
    if not is_export(columns) or len(set(columns)) != len(columns):
        raise InputError(
            "not a RouterBench export: it needs the columns sample_id, prompt and eval_name, and "
            "each column once"
        )
    named = set(columns)
    models = [name for name in columns if {name + _RESPONSE, name + _COST} & named]
    if not models:
        raise InputError(f"no model: a score column needs {_RESPONSE} or {_COST} columns beside it")
    return models


def _row(row: Mapping[str, object], models: Sequence[str], threshold: float | None) -> object:
    turns = texts(row["prompt"])
    try:
        correct = {name: _is_right(name, row[name], threshold) for name in models}
    except InputError as exc:
        return exc
    answers = {name: texts(row[name + _RESPONSE]) for name in models if name + _RESPONSE in row}
    return {
        # Validation refuses several turns, as in our own files.
        "messages": [{"role": "user", "content": turn} for turn in turns],
        "correct": correct,
        "answers": {name: answer[0] if answer else None for name, answer in answers.items()},
        "task": row["eval_name"],
        "cluster": row.get("cluster"),
    }


def _is_right(model: str, cell: object, threshold: float | None) -> bool:
    """Whether a score counts as right.

    Raises:
        InputError: No score, or a fraction and no threshold for it.
    """
    score = _number(cell)
    if score is None:
        raise InputError(f"{model!r} has no score")
    if threshold is not None:
        return score >= threshold
    if score not in (0.0, 1.0):
        raise InputError(
            f"the score {score:g} of {model!r} is neither 0 nor 1: say from which score on an "
            "answer counts as right (threshold), or read only tasks that are right or wrong (tasks)"
        )
    return score == 1.0


def _number(cell: object) -> float | None:
    if isinstance(cell, str):
        cell = {"true": 1.0, "false": 0.0}.get(cell.strip().lower(), cell)
    try:
        score = float(cast("Any", cell))
    except (TypeError, ValueError):
        return None
    return score if math.isfinite(score) else None


def texts(cell: object) -> list[str]:
    """The texts in a cell: a list such as ``['one']``, its printed form, or plain text."""
    if isinstance(cell, list):
        return [str(item) for item in cast("list[object]", cell)]
    if cell is None or cell != cell:  # NaN is pandas' missing value
        return []
    text = str(cell)
    if not (text.startswith(("['", '["')) and text.endswith("]") and len(text) < _MAX_LITERAL):
        return [text]
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return [text]
    items = cast("list[object]", value)
    if isinstance(value, list) and all(isinstance(item, str) for item in items):
        return cast("list[str]", items)
    return [text]
