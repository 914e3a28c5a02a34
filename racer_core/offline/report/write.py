"""Writes a report's files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from racer_core.errors import InputError
from racer_core.offline.evaluation_result import Evaluation
from racer_core.offline.report import markdown, page
from racer_core.offline.report.canvas import check_matplotlib
from racer_core.offline.report.differences import differences
from racer_core.offline.report.headline import headlines
from racer_core.offline.report.sections import sections


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
        "results.md": (markdown.render(parts) + "\n").encode(),
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
