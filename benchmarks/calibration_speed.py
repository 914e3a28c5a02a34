"""What the mathematics costs: one query, and a calibration of many rows. Random scores and labels.

    python benchmarks/calibration_speed.py --rows 1000000

Speed depends on shapes and not on what the numbers say, so random ones serve.
"""

import argparse
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.types import RiskTarget, Score

CANDIDATES = 8
NEIGHBOURS = 200


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    rng = np.random.default_rng(0)
    scores = rng.random((rows, CANDIDATES))
    labels = rng.random((rows, CANDIDATES)) < scores
    patterns = PatternModel.of(rng.random((20_000, CANDIDATES)) < 0.5)
    ids = rng.integers(0, len(patterns.frequencies), (rows, NEIGHBOURS), dtype=np.uint8)
    print(f"{platform.processor() or platform.machine()}, numpy {np.__version__}")
    print(f"{rows:,} rows, {CANDIDATES} candidates, {len(patterns.frequencies)} patterns\n")
    columns = np.asfortranarray(scores)
    reduce_s = min(seconds(lambda: columns.max(axis=1)) for _ in range(3))
    print(f"one read-and-reduce pass over the score matrix: {1e3 * reduce_s:.0f} ms\n")
    print("| score | target | calibrate, s | passes | one query, us |")
    print("| --- | --- | --- | --- | --- |")
    for target in RiskTarget:
        for score in (Score.GAP, Score.PROB, Score.COVER):
            calibration = Calibration(
                pool=tuple(f"candidate-{i}" for i in range(CANDIDATES)),
                fingerprints=(b"",) * rows,
                scores=scores,
                labels=labels,
                options=CalibrationOptions(score=score, risk_target=target),
                neighbours=ids,
                patterns=patterns,
            )
            fresh = [replace(calibration) for _ in range(3)]  # each sorts its scores anew
            took = min(seconds(lambda c=each: c.lambda_hat(0.1, c.options.score)) for each in fresh)
            query = per_query(calibration, scores[0].tolist(), ids[0])
            print(
                f"| `{score}` | {target} | {took:.2f} | {took / reduce_s:.1f} | {1e6 * query:.0f} |"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\npeak memory {peak:.2f} GiB")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def per_query(
    calibration: Calibration, row: list[float], ids: np.ndarray, times: int = 500
) -> float:
    """Mean time to choose one set, once the thresholds are known."""
    calibration.decide(b"", row, neighbours=ids)
    started = time.perf_counter()
    for _ in range(times):
        calibration.decide(b"", row, neighbours=ids)
    return (time.perf_counter() - started) / times


if __name__ == "__main__":
    main()
