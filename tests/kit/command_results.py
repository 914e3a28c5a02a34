"""Results of commands of ``racer``, and the files that they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from racer_core.types import LabelledRow, LabelledRows
from tests.kit.gateway import as_json


def write(path: Path, rows: LabelledRows, *, answers: bool = False) -> Path:
    """Rows as a file; with ``answers`` the right ones say "right"."""
    lines = as_json(rows)
    if answers:
        for line, row in zip(lines, rows.rows, strict=True):
            line["answers"] = {n: "right" if n in row.correct else n for n in rows.pool}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def parsed(result: tuple[int, str, str]) -> Any:
    """The JSON of a command that succeeded, and nothing else on stdout."""
    code, out, stderr = result
    assert code == 0, stderr
    return json.loads(out)


def failed(result: tuple[int, str, str], code: int, *words: str) -> str:
    """One line on stderr, nothing on stdout, and the right exit code."""
    assert result[:2] == (code, ""), result
    stderr = result[2]
    assert stderr.startswith("racer: ")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    for word in words:
        assert word in stderr
    return stderr


def answered(rows: LabelledRows) -> LabelledRows:
    """The same rows with answers: who is right says so, the others disagree."""
    return LabelledRows(
        pool=rows.pool,
        rows=tuple(
            LabelledRow(
                query=row.query,
                correct=row.correct,
                answers={n: "right" if n in row.correct else f"{n}'s guess" for n in rows.pool},
            )
            for row in rows.rows
        ),
    )


def written(path: Path, rows: LabelledRows) -> Path:
    """Rows as a file."""
    lines = [
        line | ({"answers": dict(row.answers)} if row.answers else {})
        for line, row in zip(as_json(rows), rows.rows, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
