"""Fleets of scripted candidates, for what real models cannot do when a test needs it.

Candidates that fail, that answer with markup, and a dozen of them with prices and long names.
Everything else is tested on the demo: see ``fleet.py``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import LabelledRow, LabelledRows
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ENVIRONMENT, configure, running
from tests.kit.upstream import FakePool

from .fleet import Fleet

FEW = ("granite-4-small", "llama-3.3-70b", "mistral-small-24b", "phi-4-mini", "qwen3-8b")
FEW_PRICES = [{"output": 1_000.0 * place} for place in range(1, 1 + len(FEW))]  # of 10⁶ tokens
MANY = (
    "command-r-plus", "deepseek-v3", "gemma-3-27b-it", "gpt-oss-120b", *FEW, "nemotron-70b",
    "olmo-2-32b",
    "organisation/a-very-long-model-name-with-its-quantisation-and-revision-GPTQ-Int4-2026-11-01",
)  # fmt: skip
KINDS = (
    "What is {} plus {}?",
    "Spell the number {} and then {}",
    "Compare {} with {} in one word",
    "Name a river between kilometre {} and {}",
    "Translate the number {} into Danish, then {}",
    "Write a poem about {} and {}",
)
SUM = "What is 17 plus 25?"
POEM = "Write a poem about 17 and 25"
RIVER = "Name a river between kilometre 17 and 25"


@dataclass(frozen=True)
class ScriptedFleet(Fleet):
    """A running gateway with keys, and what answers behind it."""

    pool: FakePool


def rows(names: tuple[str, ...], start: int, count: int) -> LabelledRows:
    """Labelled rows: candidates differ in skill by kind of query; none writes poems."""
    rng = np.random.default_rng(start)
    skill = np.random.default_rng(7).beta(1.1, 1.3, (len(KINDS), len(names)))
    skill = 0.75 * skill[np.argsort(-skill.max(axis=1))]
    skill[-1] = 0.0
    made = [
        LabelledRow(
            query=KINDS[at % len(KINDS)].format(at, at + 1),
            correct=frozenset(
                name
                for name, chance in zip(names, skill[at % len(KINDS)], strict=True)
                if rng.random() < chance
            ),
        )
        for at in range(start, start + count)
    ]
    return LabelledRows(pool=names, rows=tuple(made))


def artifact(folder: Path, names: tuple[str, ...]) -> Path:
    """A KNN router for these candidates."""
    train(
        rows(names, 0, 600),
        rows(names, 5_000, 300),
        folder,
        encoder=CharNgramEncoder(),
        kind="knn",
    )
    return folder


@contextmanager
def served(
    folder: Path,
    names: tuple[str, ...],
    pool: FakePool,
    *,
    prices: Sequence[Any] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    **changes: Any,
) -> Generator[ScriptedFleet]:
    """A calibrated gateway with keys in front of these candidates."""
    candidates = [{"name": name, "base_url": pool.url, "timeout_s": 5} for name in names]
    for each, price in zip(candidates, prices, strict=False):
        each["price"] = price
    changes = {"routing": {"score": "cover"}, "watching": {"false_alarm": 0.01}} | changes
    trained = artifact(folder / "artifact", names)
    path = configure(folder / "gateway", trained, pool.url, candidates=candidates, **changes)
    with running(path, ENVIRONMENT | dict(environment)) as gateway:
        gateway.calibrate(rows=rows(names, 10_000, 800))
        yield ScriptedFleet(gateway, names, DATA_KEY, ADMIN_KEY, pool)
