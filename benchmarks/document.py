"""Puts the tables of `results/` into docs/performance.md, between their markers.

    python benchmarks/document.py

`results/NAME.json` holds its own tables as Markdown under `markdown`; they stand between
`<!-- results: NAME -->` and `<!-- end -->`. What is written around them stays.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS.parent.parent / "docs" / "performance.md"
_PLACE = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(folder: Path) -> dict[str, str]:
    """What each result says of itself."""
    files = sorted(folder.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8"))["markdown"] for file in files}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with the tables in their places.

    Raises:
        ValueError: Tables have no place, so that nobody would see them.
    """
    lost = tables.keys() - {place[2] for place in _PLACE.finditer(page)}
    if lost:
        raise ValueError(f"the page has no place for {', '.join(sorted(lost))}")

    def put(place: re.Match[str]) -> str:
        return f"{place[1]}\n{tables.get(place[2], 'Not measured yet.').strip()}\n\n{place[3]}"

    return _PLACE.sub(put, page)


def main() -> None:
    """Write the page anew."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(page, tables(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
