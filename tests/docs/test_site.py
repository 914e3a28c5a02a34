"""The site of the documents: built as `make docs` builds it, without warnings and network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .blocks import ROOT

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?(https?:)?//", re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a folder of its own; strict: a link or an anchor that leads nowhere ends it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    built = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return folder / "site"


def pages(nav: list[dict[str, Any]]) -> Iterator[str]:
    """The files that the navigation names."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from pages(value)


def test_every_page_is_in_the_navigation_once() -> None:
    """Fails for a page outside the navigation, and for an entry without a page."""
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    named = list(pages(CONFIG["project"]["nav"]))
    assert sorted(named) == sorted(there)


def test_no_link_leaves_the_site() -> None:
    """What lies outside of docs/ is not on it: `--strict` lets a file through that is no page."""
    docs = ROOT / "docs"
    for document in docs.rglob("*.md"):
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!\w+:)([^)#\s]+)", text):
            assert (document.parent / target).resolve().is_relative_to(docs), (
                f"{document}: {target}"
            )


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """No font, script or picture of a page comes from another host."""
    built = list(site.rglob("*.html"))
    assert len(built) > len(list(pages(CONFIG["project"]["nav"])))
    for page in built:
        assert LOADED.search(page.read_text(encoding="utf-8")) is None, page


def test_pictures_are_there(site: Path) -> None:
    """Every picture that a page shows was copied."""
    shown = 0
    for page in site.rglob("*.html"):
        for source in re.findall(
            r"<img[^>]*\bsrc=\"?([^\"\s>]+)", page.read_text(encoding="utf-8")
        ):
            assert (page.parent / source).is_file(), f"{page}: {source}"
            shown += 1
    assert shown >= 6


def test_llms_txt_leads_to_pages(site: Path) -> None:
    """It is served, and each of its links is a document."""
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# RACER\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 15
    for link in links:
        assert (ROOT / "docs" / link).is_file(), link
