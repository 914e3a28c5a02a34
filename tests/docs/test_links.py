"""Links of the documents, and the picture of the layers, lead to what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.links import dead_links

from .blocks import DOCUMENTS, ROOT

LINKED = (
    *DOCUMENTS,
    *(ROOT / name for name in ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    ROOT / "benchmarks/README.md",
)


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    """Files, and headings in them; a link that is labelled with a page leads to that page."""
    assert dead_links(path) == []
    links = re.findall(r"\[([\w/.-]+\.md)\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    assert [each for each in links if Path(each[0]).name != Path(each[1]).name] == []


# Results of finished experiments name tests as they were then.
@pytest.mark.parametrize(
    "path", [path for path in LINKED if "benchmarks" not in path.parts], ids=lambda path: path.name
)
def test_every_test_that_a_document_names_exists(path: Path, defined: set[str]) -> None:
    """Red when a test or its file is renamed or deleted and the promise stays."""
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"`(test_\w+)`", text)) - defined == set()
    files = set(re.findall(r"\btests/[\w/]+\.py\b", text))
    assert [name for name in sorted(files) if not (ROOT / name).is_file()] == []


@pytest.fixture(scope="module")
def defined() -> set[str]:
    """The names of all tests."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for source in sources for name in re.findall(r"def (test_\w+)", source)}


def test_documents_named_in_code_exist() -> None:
    """Messages, comments and manifests name documents that exist. Red when a page is renamed."""
    folders = ("app", "racer_core", "deploy", "benchmarks", "tests")
    files = [path for name in folders for path in (ROOT / name).rglob("*")]
    for path in (*files, ROOT / "pyproject.toml", ROOT / "Makefile"):
        if path.suffix in {".py", ".yml", ".yaml", ".md", ".json", ".toml", ".sh", ".html"}:
            text = path.read_text(encoding="utf-8")
            for page in re.findall(r"\bdocs/([\w/-]+\.md)\b", text):
                assert (ROOT / "docs" / page).is_file(), f"{path}: docs/{page}"


def test_the_picture_shows_the_enforced_layers() -> None:
    """Red when a layer is added, renamed or moved without the picture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    core, gateway = [each["layers"] for each in contracts if each["type"] == "layers"]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    pictures = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shown = [[line.partition("  ")[0] for line in each.splitlines()] for each in pictures]
    assert shown == [gateway, core[1:]]
