"""How the project is installed: from its checkout or its wheel, never by name from an index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from racer_core.errors import install_hint

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".sh", ".txt", ".html", ".js", ".ipynb"}


def texts() -> dict[Path, str]:
    """The product, its documents and its deployments."""
    files = [ROOT / "README.md", ROOT / "Makefile", ROOT / "Dockerfile"]
    for folder in ("app", "racer_core", "docs", "deploy"):
        files += [each for each in (ROOT / folder).rglob("*") if each.suffix in SUFFIXES]
    return {each: each.read_text(encoding="utf-8") for each in files}


def test_messages_name_extras_that_exist() -> None:
    """Red when an extra is renamed in `pyproject.toml` alone."""
    named = {
        extra
        for text in texts().values()
        for extra in re.findall(r"install_hint\([\"'](\w+)", text)
    }
    assert len(named) > 6
    assert named <= EXTRAS.keys()
    assert install_hint("onnx") == "`pip install '.[onnx]'` in RACER's checkout"


def test_no_text_installs_the_project_by_its_name() -> None:
    """The name is not the project's in any index: a package there would be an impostor's."""
    by_name = re.compile(r"""pip install[^\n]*["'\s]racer[-_](?:gateway|core)\b(?!\S*\.whl)""")
    assert by_name.search("pip install 'racer-gateway[ray]'")
    assert [path for path, text in texts().items() if by_name.search(text)] == []
