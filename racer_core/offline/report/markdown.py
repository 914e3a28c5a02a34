"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from racer_core.offline.report.grid import Grid
from racer_core.offline.report.sections import Section

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
