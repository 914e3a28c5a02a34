"""Generator of the result tables in docs/ and results/parts.md.

    python benchmarks/document.py

`results/NAME.json` holds its tables as Markdown in the field `markdown`. They replace the text
between `<!-- results: NAME -->` and `<!-- end -->`; all other text stays. Those of a field
`details` stand at `<!-- results: NAME.details -->`. `results/NAME.png` moves to docs/figures.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = RESULTS.parent.parent / "docs"
PAGES = [
    *(DOCS / name for name in ("performance.md", "comparison.md")),
    *(
        RESULTS / name
        for name in ("parts.md", "recorded_answers.md", "firstpass.md", "paper_tables.md")
    ),
]
_PLACE = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(folder: Path) -> dict[str, str]:
    """The Markdown of each result file that has tables, by the name of its place."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        for field, name in (("markdown", file.stem), ("details", f"{file.stem}.details")):
            if field in result:
                found[name] = result[field]
    return found


def filled(pages: Sequence[str], tables: Mapping[str, str]) -> list[str]:
    """The pages with all tables inserted.

    Raises:
        ValueError: No page has a place for a table.
    """
    lost = tables.keys() - {place[2] for page in pages for place in _PLACE.finditer(page)}
    if lost:
        names = ", ".join(sorted(lost))
        raise ValueError(f"no page has a place for {names}: add `<!-- results: NAME -->`")

    def put(place: re.Match[str]) -> str:
        return f"{place[1]}\n{tables.get(place[2], 'Not measured yet.').strip()}\n\n{place[3]}"

    return [_PLACE.sub(put, page) for page in pages]


def main() -> None:
    """Update the pages and move the figures."""
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    for page, text in zip(PAGES, filled(pages, tables(RESULTS)), strict=True):
        page.write_text(text, encoding="utf-8")
    for picture in RESULTS.glob("*.png"):
        picture.replace(DOCS / "figures" / picture.name)


if __name__ == "__main__":
    main()
