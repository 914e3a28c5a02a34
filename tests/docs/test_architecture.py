"""docs/architecture.md shows the layers that import-linter enforces, and names files that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_picture_shows_the_enforced_layers() -> None:
    """Red when a layer is added, renamed or moved without the picture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    core, gateway = [each["layers"] for each in contracts if each["type"] == "layers"]
    pictures = re.findall(r"^```text\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    shown = [[line.partition("  ")[0] for line in each.splitlines()] for each in pictures]
    assert shown == [gateway, core[1:]]


def test_every_file_exists() -> None:
    """Red when a file moves. A bare file name stands beside the file before it."""
    folder = ROOT
    names = re.findall(
        r"`([\w./-]+\.(?:py|toml|md)|(?:app|racer_core)/[\w/]+/|deploy/[\w/]+)`", TEXT
    )
    assert len(names) > 30
    for name in names:
        path = ROOT / name if "/" in name else folder / name
        assert path.exists(), name
        folder = path.parent if path.is_file() else path


def test_every_package_says_what_it_may_not_know() -> None:
    """Red when the first sentence of a package's docstring states no boundary."""
    packages = sorted((ROOT / "app").rglob("__init__.py"))
    assert len(packages) > 20
    for path in packages:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        sentence = re.split(r"\.(?:\s|$)", docstring, maxsplit=1)[0]
        assert re.search(r"\bknows?\b", sentence), path.relative_to(ROOT)
