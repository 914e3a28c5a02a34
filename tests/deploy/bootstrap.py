"""The manifests that label and calibrate at the first start."""

from __future__ import annotations

from typing import Any

import yaml

from tests.deploy import compose, plain
from tests.kit.commands import parsed

Manifest = dict[str, Any]
TEXT = (plain.FOLDER / "bootstrap.yaml").read_text(encoding="utf-8")
MANIFESTS: list[Manifest] = list(yaml.safe_load_all(TEXT))
SERVICE = compose.SERVICES["bootstrap"]


def named(kind: str, name: str = "bootstrap") -> Manifest:
    """One manifest."""
    [found] = [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


POD = named("Job")["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]


def given(words: list[str]) -> Manifest:
    """What `racer bootstrap` reads in these words."""
    name, *rest = words
    return parsed(name, rest)
