"""Writes a report's files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from racer_core.errors import InputError
from racer_core.offline.evaluation_result import Evaluation
from racer_core.offline.report import page
from racer_core.offline.report.canvas import check_matplotlib
from racer_core.offline.report.differences import differences
from racer_core.offline.report.headline import headlines
from racer_core.offline.report.sections import Section, sections
from racer_core.offline.report.view import Grid


def check_report(folder: Path) -> None:
    """Refuse a report that could not be written, before anything is measured. Raises InputError."""
    check_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _cannot(folder, exc) from exc


def write_report(evaluation: Evaluation, folder: Path, command: str) -> None:
    """Write results.json, results.md, index.html and the figures.

    Args:
        evaluation: What was measured.
        folder: Made if it is not there; files of an earlier report are replaced.
        command: What measured it, to be run again.

    Raises:
        InputError: matplotlib is missing, or the folder cannot be written.
    """
    check_report(folder)
    found = differences(evaluation)
    parts = list(sections(evaluation, command, found))
    results = {
        "command": command,
        **evaluation.as_json(),
        "differences": [asdict(each) for each in found],
        "headlines": [asdict(each) for each in headlines(evaluation)],
    }
    files = {
        "results.json": (json.dumps(results, ensure_ascii=False) + "\n").encode(),
        "results.md": (render(parts) + "\n").encode(),
        "index.html": page.render(parts).encode(),
    }
    files |= {f"{each.name}.png": each.png for part in parts for each in part.pictures}
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as exc:
        raise _cannot(folder, exc) from exc


def _cannot(folder: Path, exc: OSError) -> InputError:
    return InputError(f"{folder}: the report cannot be written there ({exc.strerror})")


# A report as Markdown.

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!])")


def render(sections: Iterable[Section]) -> str:
    """The whole text; figures are links to the files beside it."""
    return "\n".join(["# Evaluation", "", *(line for each in sections for line in _section(each))])


def escaped(text: str) -> str:
    """Words that mean nothing to Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def table(grid: Grid) -> Iterator[str]:
    """The title, what it was measured on, and the cells."""
    yield f"**{escaped(grid.title)}**"
    yield ""
    yield _line(grid.head)
    yield "|" + " --- |" * len(grid.head)
    yield from map(_line, grid.rows)
    yield ""
    yield f"({escaped(grid.measured_on)})"
    yield ""


def _section(section: Section) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    yield ""
    for sentence in section.text:
        yield from (escaped(sentence), "")
    for picture in section.pictures:
        yield from (f"![{escaped(picture.alt)}]({picture.name}.png)", "")
    for grid in section.grids:
        yield from table(grid)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"
