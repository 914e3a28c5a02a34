"""Broken links between documents."""

from __future__ import annotations

import re
from pathlib import Path


def dead_links(document: Path) -> list[str]:
    """Targets of relative links that are no file, or no heading in it."""
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text)
    return [
        f"{target}#{anchor}" for target, anchor in links if not is_there(document, target, anchor)
    ]


def is_there(document: Path, target: str, anchor: str) -> bool:
    """Whether a link of the document leads to a file, and to a heading in it."""
    path = document.parent / target if target else document
    if not anchor or not path.is_file():
        return path.is_file()
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in map(_slug, headings)


def _slug(heading: str) -> str:
    """A heading as links name it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
