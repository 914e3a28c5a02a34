"""The configuration's JSON schema as it is shipped, in the hands of an independent validator."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app import settings
from app.errors import SettingsError
from app.settings import schema
from tests.kit.gateway import Command

from .dockerfile import ROOT

DEPLOY = ROOT / "deploy"
SHIPPED = DEPLOY / schema.FILE_NAME
SCHEMA: dict[str, Any] = json.loads(SHIPPED.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
# What Kubernetes, Compose, Helm and Ray read lies beside the gateway's own files.
CONFIGURATIONS = sorted(
    path
    for path in DEPLOY.rglob("*.y*ml")
    if path.parent.name != "templates"  # of the chart: no YAML before they are rendered
    if any("schema_version" in part for part in yaml.safe_load_all(path.read_text("utf-8")))
)
# Every section in full, so that a wrong key can be put into each.
WHOLE: dict[str, Any] = {
    "schema_version": 1,
    "artifact": "artifact",
    "candidates": [
        {"name": "a", "base_url": "http://a/v1", "price": 1, "capabilities": {"tools": False}},
        {"name": "b", "base_urls": ["http://b/v1", "http://c/v1"], "price": 2.5},
    ],
    "pools": {"both": {"candidates": ["a", "b"]}},
    "encoder": {"backend": "cpu"},
    "routing": {"alpha": 0.05, "score": "cover_cost"},
    "aggregation": {
        "method": "weighted",
        "weight": "verbal",
        "evaluator": {"candidate": "a"},
        "evaluators": {"de": {"base_url": "http://d/v1", "model": "d"}},
    },
    "fleet": {"attempts": 1},
    "access": {
        "keys": [{"name": "k", "hash": f"sha256:{'0' * 32}:{'0' * 64}"}],
        "admin": {"port": 9000},
    },
    "limits": {"connections_per_address": None},
    "watching": {"false_alarm": None},
    "telemetry": {"log": "text"},
}


def sections(values: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all mappings with fixed fields."""
    if isinstance(values, dict):
        if place not in {("pools",), ("aggregation", "evaluators")}:
            yield place
        for name, value in values.items():
            yield from sections(value, (*place, name))
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from sections(value, (*place, number))


def loads(values: dict[str, Any]) -> bool:
    """Whether the gateway takes it."""
    try:
        settings.parse(json.dumps(values), Path("racer.yaml"), {})
    except SettingsError:
        return False
    return True


def test_the_shipped_schema_is_that_of_the_code(racer: Command) -> None:
    """Red when a setting changes: `racer schema > deploy/racer.schema.json`."""
    VALIDATOR.check_schema(SCHEMA)
    assert racer("schema") == (0, SHIPPED.read_text(encoding="utf-8"), "")


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_shipped_configuration_names_its_schema_and_fits_it(path: Path) -> None:
    """Red when the path leads elsewhere, or a field is not as the schema has it."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    named = first.removeprefix(schema.modeline(""))
    assert named != first
    assert (path.parent / named).resolve() == SHIPPED.resolve()
    VALIDATOR.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_a_whole_configuration_fits_loader_and_schema() -> None:
    """The control of what is refused below."""
    assert loads(WHOLE)
    VALIDATOR.validate(WHOLE)


@pytest.mark.parametrize(
    "place", list(sections(WHOLE)), ids=lambda place: ".".join(map(str, place))
)
def test_a_wrong_key_is_refused_by_both(place: tuple[Any, ...]) -> None:
    """In every section. Red when the schema lets through what stops the start."""
    values = copy.deepcopy(WHOLE)
    inner = values
    for step in place:
        inner = inner[step]
    inner["misspelt"] = 1
    assert not loads(values)
    assert not VALIDATOR.is_valid(values)


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "no version": lambda v: v.pop("schema_version"),
    "another version": lambda v: v.update(schema_version=2),
    "no candidates": lambda v: v.update(candidates=[]),
    "a port too large": lambda v: v.update(port=70_000),
    "alpha 1": lambda v: v["routing"].update(alpha=1),
    "an unknown score": lambda v: v["routing"].update(score="best"),
    "a name with a space": lambda v: v["candidates"][0].update(name="a b"),
    "a pool's name with a space": lambda v: v.update(pools={"a b": {"candidates": ["a"]}}),
    "a hash that is none": lambda v: v["access"]["keys"][0].update(hash="secret"),
    "no list": lambda v: v.update(candidates="a"),
    "a negative limit": lambda v: v["limits"].update(queue=-1),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_refused_by_both(case: str) -> None:
    """Ranges, choices, patterns and types."""
    values = copy.deepcopy(WHOLE)
    WRONG[case](values)
    assert not loads(values)
    assert not VALIDATOR.is_valid(values)
