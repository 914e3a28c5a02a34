"""Labelled rows as JSON lines, as :func:`racer_core.records.reader.read_rows` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from racer_core.types import LabelledRow, LabelledRows, Turn


def messages(earlier: Iterable[Turn], query: str) -> list[dict[str, str]]:
    """Turns as a chat request has them."""
    turns = [*earlier, Turn("user", query)]
    return [{"role": turn.role, "content": turn.text} for turn in turns]


def row_line(row: LabelledRow, pool: Sequence[str]) -> str:
    """One row as one line, its end included; fields that say nothing are left out."""
    asked = {"messages": messages(row.earlier, row.query)} if row.earlier else {"query": row.query}
    said: dict[str, Any] = {
        **asked,
        "correct": {name: name in row.correct for name in pool},
        "answers": dict(row.answers),
        "reference": row.reference,
        "task": row.task,
        "group": row.group,
    }
    # "" is a query where router scores stand in for it, and is then not one.
    kept = {name: value for name, value in said.items() if value not in (None, {}, "")}
    if row.scores is not None:
        kept["scores"] = dict(zip(pool, row.scores, strict=True))
    return json.dumps(kept, ensure_ascii=False, allow_nan=False) + "\n"


def write_rows(rows: LabelledRows, path: Path) -> None:
    """Write a new file; one that is there already is left alone.

    Raises:
        FileExistsError: The file is there; other OSErrors as they come.
    """
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.writelines(row_line(row, rows.pool) for row in rows.rows)
