"""What holds of a risk level that was chosen after the calibration's figures were seen.

    python -m benchmarks.level_bounds

For n rows with distinct critical scores the risk of the threshold that leaves c of them above it is
the (c + 1)-th smallest of n uniforms, so that every figure is a matter of uniforms. Prints the
table of docs/method.md: bounds with probability 0.95 of one level that was fixed, of any of a list
of levels that was declared (a union, and the smallest bounds of one common tail, by draws), and of
any level at all (the band; Dvoretzky-Kiefer-Wolfowitz beside it). Then the share of draws in which
a bound of the union, of the band at any threshold, or of either fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from racer_core.calibration.laws import simultaneous_risk_bound
from racer_core.calibration.realised_risk import BAND_DELTA, RealisedRisk
from racer_core.calibration.threshold import allowed_misses
from racer_core.types import FloatArray

ROWS: Final = (100, 300, 1_000, 10_000)
ALPHAS: Final = (0.05, 0.1, 0.2)
FEW: Final = (0.05, 0.1, 0.2)
USUAL: Final = (0.01, 0.02, 0.05, 0.1, 0.2)  # `routing.levels`
MANY: Final = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
DRAWS: Final = 20_000


def realised(n: int, alpha: float) -> RealisedRisk:
    """What n rows with distinct scores tell about the threshold of alpha."""
    misses = allowed_misses(n, alpha)
    return RealisedRisk(n=n, misses=misses, missed=misses, tied=1)


def risks(n: int, levels: Sequence[float], draws: int, seed: int) -> FloatArray:
    """The realised risks of all levels in draws of the rows, shape (draws, levels)."""
    ranks = [allowed_misses(n, each) for each in levels]
    rng = np.random.default_rng(seed)
    # Ascending uniforms at these ranks: gaps are gamma variables, whose sum they are divided by.
    gaps = np.diff([0, *(rank + 1 for rank in ranks), n + 1])
    sums = rng.gamma(gaps, size=(draws, len(gaps)))
    return np.cumsum(sums, axis=1)[:, :-1] / sums.sum(axis=1, keepdims=True)


def common_tail(n: int, levels: Sequence[float]) -> float:
    """The tail of each level's own law with which all bounds hold with probability 0.95."""
    drawn, low, high = risks(n, levels, DRAWS, 1), BAND_DELTA / len(levels), BAND_DELTA
    for _ in range(20):
        tail = (low + high) / 2.0
        bounds = [realised(n, each).upper(tail) for each in levels]
        low, high = (
            (tail, high) if (drawn > bounds).any(axis=1).mean() < BAND_DELTA else (low, tail)
        )
    return low


def kept(n: int, alpha: float) -> float:
    """The bound by Dvoretzky-Kiefer-Wolfowitz: one-sided, with Massart's constant."""
    missed = allowed_misses(n, alpha)
    return missed / n + math.sqrt(math.log(1.0 / BAND_DELTA) / (2.0 * n))


def row(n: int, alpha: float) -> str:
    """One line of the table."""
    risk = realised(n, alpha)
    usual = [each for each in USUAL if allowed_misses(n, each) >= 0]
    union = [risk.declared(len(each)) for each in (FEW, USUAL, MANY)]
    common = risk.upper(common_tail(n, usual))
    found = [risk.upper(), *union, common, risk.band(), kept(n, alpha)]
    return (
        f"| {n:,} | {alpha:g} | {alpha:g} | " + " | ".join(f"{each:.4f}" for each in found) + " |"
    )


def failures(n: int, draws: int) -> tuple[float, float, float]:
    """The shares of draws in which a bound of the usual list fails, of the band, and of either."""
    levels = [each for each in USUAL if allowed_misses(n, each) >= 0]
    ranks = np.array([allowed_misses(n, each) for each in levels])
    union = np.array([realised(n, each).declared(len(USUAL)) for each in levels])
    band = np.array([simultaneous_risk_bound(n, missed, BAND_DELTA) for missed in range(n)])
    rng, failed = np.random.default_rng(2), np.zeros((draws, 2), bool)
    for place in range(draws):
        uniforms = np.cumsum(rng.exponential(size=n + 1))
        uniforms = uniforms[:-1] / uniforms[-1]  # ascending: the risks of all thresholds
        failed[place] = (uniforms[ranks] > union).any(), (uniforms > band).any()
    both = failed.mean(axis=0)
    return float(both[0]), float(both[1]), float(failed.any(axis=1).mean())


def main() -> None:
    """Print the table, and the shares of draws in which a bound fails."""
    print("| rows | alpha | on average | fixed | 3 | 5 | 8 | 5, common tail | band | DKW |")
    print("| ---: " * 10 + "|")
    for n in ROWS:
        for alpha in ALPHAS:
            print(row(n, alpha))
    for n in ROWS:
        union, band, either = failures(n, 40_000 if n <= 1_000 else 4_000)
        print(
            f"{n:,} rows: share of draws in which a bound fails somewhere: 5 levels {union:.4f}, "
        )
        print(f"  band {band:.4f}, either {either:.4f}")


if __name__ == "__main__":
    main()
