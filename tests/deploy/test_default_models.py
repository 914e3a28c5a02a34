"""The models to begin with: the same everywhere, and as large as the documents say."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.deploy import plain
from tests.deploy.compose import CANDIDATES, flags, model

from .chart import CHART, values_of
from .dockerfile import ROOT

PAGE = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(\S+)` \| (?:`([^`|]+)`|none[^|]*) \| ([\d.]+) GB \| ([\d.]+) GB \|$", PAGE, re.MULTILINE
)
MODELS = {name: own.split() for name, own, _, _ in ROWS}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a model's config.json says of a dense transformer with grouped-query attention."""

    layers: int
    hidden: int
    inner: int
    vocabulary: int
    heads: int
    key_value_heads: int
    embeddings: int  # 1 where input and output share them
    head_norms: bool = False

    @property
    def parameters(self) -> int:
        """Weights, and the scales of norms."""
        head = self.hidden // self.heads
        attention = 2 * self.hidden * head * (self.heads + self.key_value_heads)
        norms = 2 * self.hidden + 2 * head * self.head_norms
        layer = attention + 3 * self.hidden * self.inner + norms
        return self.embeddings * self.vocabulary * self.hidden + self.layers * layer + self.hidden

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in bfloat16."""
        return 2 * 2 * self.layers * self.key_value_heads * self.hidden // self.heads


SHAPES = {
    "Qwen/Qwen3-8B": Shape(
        layers=36, hidden=4096, inner=12_288, vocabulary=151_936, heads=32, key_value_heads=8,
        embeddings=2, head_norms=True,
    ),
    "ibm-granite/granite-3.3-8b-instruct": Shape(
        layers=40, hidden=4096, inner=12_800, vocabulary=49_159, heads=32, key_value_heads=8,
        embeddings=1,
    ),
}  # fmt: skip


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


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_are_computed_from_the_shapes(name: str) -> None:
    """Two bytes for each parameter. Red when the table says another number."""
    [(weights, cache)] = [(w, c) for each, _, w, c in ROWS if each == name]
    shape = SHAPES[name]
    assert f"{2 * shape.parameters / 1e9:.1f}" == weights
    tokens = 8_192
    assert f"{tokens:,} tokens of cache" in PAGE
    assert f"{tokens * shape.cache_bytes / 1e9:.1f}" == cache


def test_each_fits_a_gpu_of_24_gb() -> None:
    """With a whole context beside the weights."""
    assert set(MODELS) == set(SHAPES)
    [options, _] = [flags(each) for each in CANDIDATES.values()]
    defaults = {name: value.partition(":-")[2].rstrip("}") for name, value in options.items()}
    share, tokens = (
        float(defaults["--gpu-memory-utilization"]),
        int(defaults["--max-model-len"]),
    )
    assert f"{share * 24:.1f} of 24 GB" in PAGE
    for shape in SHAPES.values():
        assert 2 * shape.parameters + tokens * shape.cache_bytes < 0.9 * share * 24e9
