"""Writer of labelled rows as JSON lines, the format of ``racer_core.records.reader.read_rows``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from racer_core.types import LabelledRow, LabelledRows, Turn


def messages(earlier: Iterable[Turn], query: str) -> list[dict[str, str]]:
    """Turns in the form of a chat request."""
    turns = [*earlier, Turn("user", query)]
    return [{"role": turn.role, "content": turn.text} for turn in turns]


def row_line(row: LabelledRow, pool: Sequence[str]) -> str:
    """One row as one line with its line end, without empty fields."""
    turns = messages(row.earlier, row.query)
    query = {"messages": turns} if row.earlier else {"query": row.query}
    fields: dict[str, Any] = {
        **(query if row.request is None else {"request": dict(row.request)}),
        "correct": None if row.unlabelled else {name: name in row.correct for name in pool},
        "answers": dict(row.answers),
        "reference": row.reference,
        "task": row.task,
        "group": row.group,
        "cluster": row.cluster,
        "conversation": row.conversation,
        "conditions": dict(row.conditions),
        "confidences": {
            evaluator: {kind: dict(values) for kind, values in kinds.items()}
            for evaluator, kinds in row.confidences.items()
        },
        "calls": {name: dict(record) for name, record in row.calls.items()},
        "decision_id": row.decision_id,
        "turn": row.turn,
        "judged": None if row.judged is None else {name: name in row.judged for name in pool},
        "judge": row.judge,
    }
    # The query is "" in rows with router scores instead.
    written = {name: value for name, value in fields.items() if value not in (None, {}, "")}
    if row.unlabelled:
        written["unlabelled"] = True
    if row.quality is not None:
        written["quality"] = dict(zip(pool, row.quality, strict=True))
    if row.weight != 1.0 or row.decision_id is not None:
        written["weight"] = row.weight
    if row.scores is not None:
        written["scores"] = dict(zip(pool, row.scores, strict=True))
    return json.dumps(written, ensure_ascii=False, allow_nan=False) + "\n"


def write_rows(rows: LabelledRows, path: str | Path, *, mode: int | None = None) -> None:
    """Write a new file of JSON lines; an existing one is not changed.

    Args:
        rows: The rows.
        path: The new file, by custom ``.jsonl``.
        mode: The permissions of the file, less the process's mask; None: the usual ones.

    Raises:
        FileExistsError: The file exists; other OSErrors are not caught either.
    """
    with open(
        path,
        "x",
        encoding="utf-8",
        newline="\n",
        opener=lambda name, flags: os.open(name, flags, 0o666 if mode is None else mode),
    ) as file:
        file.writelines(row_line(row, rows.pool) for row in rows.rows)
