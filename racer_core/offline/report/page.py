"""A report as one HTML page that needs nothing else: figures are inside, and no network is used."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from html import escape

from racer_core.offline.report.figures import Picture
from racer_core.offline.report.sections import Section
from racer_core.offline.report.view import Grid

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.5rem 0; }
caption { text-align: left; font-weight: 600; }
th, td { padding: 0.15rem 0.6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: white; }
.on { font-size: 0.85em; opacity: 0.75; margin: 0 0 1.5rem; }
"""


def render(sections: Iterable[Section]) -> str:
    """The whole page."""
    lines = [line for each in sections for line in _section(each)]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Evaluation</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            "<h1>Evaluation</h1>",
            *lines,
            "</body>\n</html>\n",
        ]
    )


def _section(section: Section) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2>"
    yield from (f"<p>{escape(sentence)}</p>" for sentence in section.text)
    for picture in section.pictures:
        yield from _figure(picture)
    for grid in section.grids:
        yield from _table(grid)


def _figure(picture: Picture) -> Iterator[str]:
    image = b64encode(picture.png).decode("ascii")
    yield f"<figure><figcaption>{escape(picture.title)}</figcaption>"
    yield f'<img src="data:image/png;base64,{image}" alt="{escape(picture.alt)}">'
    yield "<details><summary>The figure's numbers</summary>"
    for grid in picture.data:
        yield from _table(grid)
    yield "</details></figure>"


def _table(grid: Grid) -> Iterator[str]:
    yield f'<div class="wide"><table><caption>{escape(grid.title)}</caption>'
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in grid.head)
    yield f"<thead><tr>{head}</tr></thead><tbody>"
    for first, *cells in grid.rows:
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f'<tr><th scope="row">{escape(first)}</th>{data}</tr>'
    yield f'</tbody></table></div><p class="on">{escape(grid.measured_on)}</p>'
