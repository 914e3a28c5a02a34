"""The models to begin with: the same everywhere, and as large as the documents say."""

from __future__ import annotations

import re

from tests.deploy import plain
from tests.deploy.compose import CANDIDATES, model

from .chart import CHART, values_of
from .dockerfile import ROOT

PAGE = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(\S+)` \| (?:`([^`|]+)`|none[^|]*) \| ([\d.]+) GB \| ([\d.]+) GB \|$", PAGE, re.MULTILINE
)
MODELS = {name: own.split() for name, own, _, _ in ROWS}


def test_compose_manifests_and_chart_serve_the_models_of_the_table() -> None:
    """With their own flags: another model's parser makes answers empty."""
    wanted = [[name, *own] for name, own in MODELS.items()]
    assert wanted
    assert [model(each)[1].split() for each in CANDIDATES.values()] == wanted
    assert [plain.own_words(name) for name in plain.CANDIDATES] == wanted
    values = values_of(CHART / "values.yaml")
    runs = [each["vllm"] for each in values["candidates"]]
    assert [[each["model"], *each["args"]] for each in runs] == wanted
    [image] = {plain.PODS[name]["containers"][0]["image"] for name in plain.CANDIDATES}
    assert values["vllm"]["image"] == image
    assert image.rpartition(":v")[2] in PAGE
