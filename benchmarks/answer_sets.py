"""Rows with the answers of all candidates: recorded sets, random splits, and the law of their risk.

In each split 46 % of the rows fit a policy, 30 % calibrate it, 24 % test it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import racer_core as rc
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.rule import AnswerRule
from racer_core.calibration.laws import beta_binomial_pmf
from racer_core.calibration.threshold import allowed_misses
from racer_core.sequential.answer_classes import AnswerClasses

PARTS = (0.46, 0.76)  # borders between the rows that fit, calibrate and test
LAW = 0.999  # quantile of the mean over splits; the tables have some 30 means for each alpha
ALPHAS = (0.02, 0.05, 0.1)
# Billions of parameters; gpt-3.5-turbo's size is not public, 20 is assumed.
PRICES: Mapping[str, Mapping[str, float]] = {
    "zeroeval_gsm": {
        "gemma-2-2b-it": 2.6,
        "command-r": 35.0,
        "Mixtral-8x7B-Instruct-v0.1": 46.7,
        "reka-flash-20240226": 21.0,
        "Meta-Llama-3-8B-Instruct": 8.0,
        "Qwen2-7B-Instruct": 7.6,
        "gpt-3.5-turbo-0125": 20.0,
        "Phi-3.5-mini-instruct": 3.8,
    },
    "mmlu_pro": {
        "Mistral-7B-v0.1": 7.2,
        "gemma-7b": 8.5,
        "Meta-Llama-3-8B": 8.0,
        "c4ai-command-r-v01": 35.0,
        "Phi-3-mini-4k-instruct": 3.8,
        "mathstral-7B": 7.2,
        "Yi-34B": 34.4,
        "Meta-Llama-3_1-8B-Instruct": 8.0,
    },
}
SETS = {
    "zeroeval_gsm": (Equality.NUMBER, "gpt-3.5-turbo-0125"),
    "mmlu_pro": (Equality.CHOICE, "Yi-34B"),
}
Numbers = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class RecordedRows:
    """Rows with the answers of all candidates, their labels, and embeddings of their queries."""

    answers: AnswerClasses
    labels: Any
    embeddings: Any
    prices: Mapping[str, float]
    reference: str

    def parts(self, rng: np.random.Generator) -> list[Any]:
        """The rows that fit, calibrate and test."""
        order = rng.permutation(len(self.answers))
        return np.split(order, [int(share * len(order)) for share in PARTS])


def recorded(path: Path, name: str, encoder: Any) -> RecordedRows:
    """The rows of a file."""
    rows = rc.read_rows(path)
    equality, reference = SETS[name]
    prints = [i.to_bytes(8) for i in range(len(rows))]
    return RecordedRows(
        answers=AnswerClasses.of(rows, AnswerRule(equality=equality), prints),
        labels=rows.labels(),
        embeddings=encoder.encode(rows.queries).embeddings,
        prices=PRICES[name],
        reference=reference,
    )


def simulated(rows: int) -> RecordedRows:
    """Eight candidates whose wrong answers coincide now and then."""
    rng = np.random.default_rng(0)
    prices = PRICES["zeroeval_gsm"]
    chances = np.linspace(0.5, 0.9, 8) * (1.3 - 0.6 * rng.random((rows, 1)))
    right = rng.random((rows, 8)) < chances
    classes = np.where(right, 0, rng.integers(1, 6, right.shape)).astype(np.int16)
    prints = tuple(i.to_bytes(8) for i in range(rows))
    answers = AnswerClasses(pool=tuple(prices), classes=classes, fingerprints=prints)
    embeddings = rng.normal(size=(rows, 8)).astype(np.float32)
    return RecordedRows(
        answers=answers,
        labels=right,
        embeddings=embeddings,
        prices=prices,
        reference="gpt-3.5-turbo-0125",
    )


def law(splits: int, n: int, tested: int, alpha: float) -> float:
    """The mean risk over splits that its exact law exceeds in 0.1 % of cases.

    Differences among the test rows of a split are BetaBinomial or fewer, independent over splits.
    """
    misses = allowed_misses(n, alpha)
    one, total = beta_binomial_pmf(tested, misses + 1, n - misses), np.ones(1)
    for _ in range(splits):
        total = np.convolve(total, one)
    return float(np.searchsorted(np.cumsum(total), LAW) / tested / splits)


def means(splits: Iterable[Mapping[str, Numbers]]) -> dict[str, Numbers]:
    """The means over splits of numbers that each split has by two names."""
    values: dict[str, dict[str, list[float]]] = {}
    for split in splits:
        for name, numbers in split.items():
            for key, value in numbers.items():
                values.setdefault(name, {}).setdefault(key, []).append(float(value))
    return {
        name: {key: float(np.mean(each)) for key, each in found.items()}
        for name, found in values.items()
    }
