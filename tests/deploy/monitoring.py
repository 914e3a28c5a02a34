"""Parser of the PromQL expressions in deploy/grafana."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser
import yaml

from .dockerfile import ROOT

FOLDER = ROOT / "deploy/grafana"
ALERTS = FOLDER / "prometheus/alerts.yml"
DASHBOARD = json.loads((FOLDER / "dashboards/racer.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
_PARTS = ("lhs", "rhs", "expr", "param", "vector_selector")


@dataclass(frozen=True)
class SeriesSelector:
    """The series of one metric that an expression reads."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]  # label, operator, value


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> dict[str, str]:
    """Every expression, by the alert or the panel that has it."""
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    for panel in PANELS:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            found[f"{panel['title']} {target['refId']}"] = expr
    return found


def nodes(expr: Any) -> Iterator[Any]:
    """An expression and all that is inside it."""
    yield expr
    inside = [getattr(expr, name, None) for name in _PARTS] + list(getattr(expr, "args", ()) or ())
    for part in inside:
        if part is not None and type(part).__module__ == type(expr).__module__:
            yield from nodes(part)


def read(text: str) -> tuple[list[SeriesSelector], set[str]]:
    """What an expression selects, and the labels by which it groups or joins."""
    selected: list[SeriesSelector] = []
    labels: set[str] = set()
    for node in nodes(promql_parser.parse(text)):
        if isinstance(node, promql_parser.VectorSelector):
            matchers = node.matchers.matchers
            matches = tuple(
                (each.name, str(each.op).split(".")[-1], each.value) for each in matchers
            )
            selected.append(SeriesSelector(node.name, matches))
        if (modifier := getattr(node, "modifier", None)) is not None:
            labels |= _labels(modifier)
    return selected, labels


def _labels(modifier: Any) -> set[str]:
    """Of `by (...)`, or of `on (...)` and `ignoring (...)`."""
    while hasattr(modifier, "matching"):
        modifier = modifier.matching
    return set() if modifier is None else set(modifier.labels)
