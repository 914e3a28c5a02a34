"""Keys, prices, reported usage, and the metrics that count them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from app.settings import key_format
from tests.kit.gateway import Gateway


def configured_key(name: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A key, and the entry of the configuration that knows it."""
    key = key_format.new_key()
    return key, {"name": name, "hash": key_format.format_hash(key, key_format.new_salt()), **fields}


PRICES: Mapping[str, Mapping[str, float]] = {
    "adder": {"input": 0.15, "cached_input": 0.075, "output": 0.6},
    "speller": {"input": 2.5, "output": 10.000001, "call": 0.000003},
    "poet": {"call": 0.1},
}


def owed(candidate: str, usage: Mapping[str, Any]) -> Fraction:
    """The price list, read by hand: tokens by the million, and calls."""
    price = {name: Fraction(str(each)) for name, each in PRICES[candidate].items()}
    fresh = price.get("input", Fraction(0))
    cached = usage["cached_tokens"]
    return (
        (usage["input_tokens"] - cached) * fresh / 10**6
        + cached * price.get("cached_input", fresh) / 10**6
        + usage["output_tokens"] * price.get("output", Fraction(0)) / 10**6
        + usage["calls"] * price.get("call", Fraction(0))
    )


@dataclass(frozen=True)
class UsageReport:
    """What a candidate reports of a call."""

    prompt: int
    cached: int
    written: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> UsageReport:
        """Any numbers."""
        prompt, written = rng.integers(1, 5_000, size=2).tolist()
        return cls(prompt, int(rng.integers(0, prompt + 1)), written)

    def usage(self, path: str) -> dict[str, Any]:
        """In the words of an API format."""
        names = ("input", "output") if path.endswith("responses") else ("prompt", "completion")
        return {
            f"{names[0]}_tokens": self.prompt,
            f"{names[1]}_tokens": self.written,
            "total_tokens": self.prompt + self.written,
            f"{names[0]}_tokens_details": {"cached_tokens": self.cached},
        }

    def owed(self, candidate: str) -> Fraction:
        """What one call with it costs."""
        return owed(
            candidate,
            {
                "input_tokens": self.prompt,
                "cached_tokens": self.cached,
                "output_tokens": self.written,
                "calls": 1,
            },
        )


def counted(gateway: Gateway, name: str) -> dict[tuple[str, ...], float]:
    """A counter by the values of its labels, in alphabetical order of their names."""
    families = text_string_to_metric_families(gateway.get("/metrics").text)
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"{name}_total"
    }


def series(text: str) -> dict[str, float]:
    """Every series by its name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
