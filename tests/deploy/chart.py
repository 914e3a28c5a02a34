"""The Helm chart, as Helm's own engine renders it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .dockerfile import ROOT

Manifest = dict[str, Any]

CHART = ROOT / "deploy" / "helm" / "racer"
# In a process of its own: the engine is a Go library, whose threads do not survive a fork.
_PROGRAM = """
import json, sys
import helm_python
folder, values = json.load(sys.stdin)
try:
    with helm_python.Chart.load(folder) as chart:
        json.dump(chart.render(values, name="demo", namespace="racer"), sys.stdout)
except helm_python.HelmError as exc:
    sys.exit(str(exc))
"""


class ChartRefused(Exception):
    """The engine does not render the chart with these values; its text is the engine's."""


def render(values: Mapping[str, Any]) -> list[Manifest]:
    """Return the manifests of a release `demo` in the namespace `racer`.

    Raises:
        ChartRefused: The chart refuses the values.
    """
    return [manifest for text in _rendered(json.dumps(values)) for manifest in _manifests(text)]


@cache
def _rendered(values: str) -> tuple[str, ...]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=f"[{json.dumps(str(CHART))}, {values}]",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        raise ChartRefused(done.stderr)
    files: dict[str, str] = json.loads(done.stdout)
    return tuple(text for name, text in files.items() if name.endswith(".yaml"))


def _manifests(text: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def values_of(path: Path) -> dict[str, Any]:
    """A file of values."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them: of a map only the given keys change."""
    result = dict(first)
    for other in others:
        for name, value in other.items():
            before = result.get(name)
            inner = isinstance(before, dict) and isinstance(value, dict)
            result[name] = merged(before, value) if inner else value
    return result
