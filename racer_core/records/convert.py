"""Conversion of other formats (lm-evaluation-harness, RouterBench) to labelled rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from racer_core.errors import InputError
from racer_core.records.lm_eval import read_lm_eval
from racer_core.records.reader import read_routerbench, read_rows
from racer_core.records.writer import write_rows
from racer_core.types import LabelledRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options of the formats; each is for one format, None takes that reader's default."""

    metric: str | None = None
    filter: str | None = None
    question: str | None = None
    incomplete: Literal["refuse", "drop"] = "refuse"
    threshold: float | None = None
    tasks: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionResult:
    """The written rows, and what the conversion chose or dropped."""

    rows: LabelledRows
    dropped: int = 0  # documents that some model's run lacks
    metrics: Mapping[str, str] = field(default_factory=dict[str, str])
    filters: Mapping[str, str] = field(default_factory=dict[str, str])

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed."""
        return {
            "rows": len(self.rows),
            "pool": list(self.rows.pool),
            "duplicates": self.rows.duplicates,
            "dropped": self.dropped,
            "metrics": dict(self.metrics),
            "filters": dict(self.filters),
        }


def convert(paths: Sequence[Path], out: Path, choices: Choices) -> ConversionResult:
    """Read runs of lm-evaluation-harness (folders) or one file, and write our JSON lines.

    Raises:
        InputError: The input is wrong, an option belongs to another format, or ``out`` exists.
    """
    converted = _read(paths, choices)
    try:
        write_rows(converted.rows, out)
    except FileExistsError as exc:
        raise InputError(f"{out}: is there already; name a new file") from exc
    except OSError as exc:
        raise InputError(f"{out}: cannot be written ({exc.strerror})") from exc
    return converted


def _read(paths: Sequence[Path], choices: Choices) -> ConversionResult:
    harness = (choices.metric, choices.filter, choices.question) != (None, None, None)
    table = choices.threshold is not None or choices.tasks is not None
    if all(path.is_dir() for path in paths):
        if table:
            raise InputError("threshold and task are for RouterBench's table")
        read = read_lm_eval(
            paths,
            metric=choices.metric,
            filter=choices.filter,
            question=choices.question,
            incomplete=choices.incomplete,
        )
        return ConversionResult(
            rows=read.rows, dropped=read.dropped, metrics=read.metrics, filters=read.filters
        )
    if len(paths) > 1:
        raise InputError("give one file, or only folders of lm-evaluation-harness")
    if harness or choices.incomplete != "refuse":
        raise InputError(
            "metric, filter, question and incomplete are for folders of lm-evaluation-harness"
        )
    if table:
        return ConversionResult(
            rows=read_routerbench(paths[0], threshold=choices.threshold, tasks=choices.tasks)
        )
    return ConversionResult(rows=read_rows(paths[0], text="last_user"))
