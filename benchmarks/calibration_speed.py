"""Cost of the conformal mathematics: one prediction set, and a calibration on a million rows.

    python benchmarks/calibration_speed.py --json benchmarks/results/calibration.json

Scores and labels are random: speed depends on shapes alone. A calibration on stored scores computes
nonconformities, critical scores, their order and the threshold; no encoder runs. Best of three. A
pass reads all scores once and takes their maximum, candidate by candidate.
"""

import argparse
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rig
from verdict import Goal, aims, table

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.types import BINARY_TARGETS, Score

CANDIDATES = 8
NEIGHBOURS = 200
SCORES = (Score.GAP, Score.PROB, Score.COVER)
AIMS_S = {Score.GAP: 1.0, Score.PROB: 1.0, Score.COVER: 30.0}
AIM_QUERY_US = 200.0
AIM_PASSES = 10.0  # of `gap` and `prob`
AIM_GIB = 2e9 / 2**30


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    manifest = rig.manifest(rows=args.rows, candidates=CANDIDATES, neighbours=NEIGHBOURS)
    document: dict[str, Any] = {"manifest": manifest, **measured(args.rows)}
    rig.publish(document, markdown(document), args.json)


def measured(rows: int) -> dict[str, Any]:
    """Seconds of a calibration and of one query, for each score and target."""
    rng = np.random.default_rng(0)
    scores = rng.random((rows, CANDIDATES))
    labels = rng.random((rows, CANDIDATES)) < scores
    patterns = PatternModel.of(rng.random((20_000, CANDIDATES)) < 0.5)
    ids = rng.integers(0, len(patterns.frequencies), (rows, NEIGHBOURS), dtype=np.uint8)
    found: list[dict[str, Any]] = []
    for target in BINARY_TARGETS:
        for score in SCORES:
            calibration = Calibration(
                pool=tuple(f"candidate-{i}" for i in range(CANDIDATES)),
                fingerprints=(b"",) * rows,
                scores=scores,
                labels=labels,
                options=CalibrationOptions(score=score, risk_target=target),
                neighbours=ids,
                patterns=patterns,
            )
            found.append(
                {
                    "score": score,
                    "target": target,
                    "calibrate_s": min(seconds(lambda c=calibration: again(c)) for _ in range(3)),
                    "query_us": 1e6 * per_query(calibration, scores[0].tolist(), ids[0]),
                }
            )
    by_candidate = np.ascontiguousarray(scores.T)
    return {
        "pass_s": min(seconds(lambda: by_candidate.max(axis=1)) for _ in range(3)),
        "patterns": len(patterns.frequencies),
        "measured": found,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def again(calibration: Calibration) -> float:
    """The threshold of a copy without cached values."""
    return replace(calibration).lambda_hat(0.1, calibration.options.score)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def per_query(
    calibration: Calibration, row: list[float], ids: np.ndarray, times: int = 500
) -> float:
    """Mean time to choose one set, with thresholds already computed."""
    calibration.decide(b"", row, neighbours=ids)
    started = time.perf_counter()
    for _ in range(times):
        calibration.decide(b"", row, neighbours=ids)
    return (time.perf_counter() - started) / times


def markdown(document: Mapping[str, Any]) -> str:
    """Provenance, targets, and a row for each score and risk target."""
    manifest, found = document["manifest"], document["measured"]
    settings = manifest["settings"]

    def slowest(figure: str, score: Score) -> float:
        return max(each[figure] for each in found if each["score"] == score)

    goals = [
        *(
            Goal(
                f"calibrating on stored scores, `{score}`",
                slowest("calibrate_s", score),
                most,
                unit=" s",
            )
            for score, most in AIMS_S.items()
        ),
        *(
            Goal(
                f"calibrating, `{score}` / one pass over the scores",
                slowest("calibrate_s", score) / document["pass_s"],
                AIM_PASSES,
                unit=" x",
            )
            for score in (Score.GAP, Score.PROB)
        ),
        Goal("one query, `cover`", slowest("query_us", Score.COVER), AIM_QUERY_US, unit=" µs"),
        Goal("memory at the peak", document["peak_gib"], AIM_GIB, unit=" GiB"),
    ]
    head = ("score", "risk target", "calibrate, s", "one query, µs")
    rows = (
        [
            f"`{each['score']}`",
            each["target"],
            f"{each['calibrate_s']:.3f}",
            f"{each['query_us']:.0f}",
        ]
        for each in found
    )
    where = (
        f"{rig.taken(manifest)}. {settings['rows']:,} rows, {settings['candidates']} candidates, "
        f"{document['patterns']} patterns, {settings['neighbours']} neighbours.\n"
    )
    return "\n".join((where, aims(goals), table(head, rows)))


if __name__ == "__main__":
    main()
