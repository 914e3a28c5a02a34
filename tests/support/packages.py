"""Packages that offer routers, installed as pip leaves them: a module and its metadata."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    *,
    module: str,
    entry_points: dict[str, str],
    name: str = "test-router",
    version: str = "1.0",
) -> None:
    """Write a package into a folder of its own on the path, for as long as a test runs."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[racer.routers]", *lines, ""]))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
