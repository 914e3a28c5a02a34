"""Thresholds of this package, of MAPIE and of TorchCP on the same arrays, and their speed.

    PYTHONPATH=. python benchmarks/oracles.py

TorchCP is optional (`pip install torchcp`; its dependencies are heavy). Each library is given n
distinct critical scores, and answers with one of them: its rank is compared with that of
``calibrate_threshold``. Alphas are 0.01, 0.02, ..., 0.99. MAPIE's conformal risk control searches a
grid, which holds a cut-off for every score here.
"""

# pyright: basic
# MAPIE has no type stubs.

import argparse
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import rig
from mapie.classification import SplitConformalClassifier
from mapie.risk_control import MultiLabelClassificationController
from mapie.risk_control.methods import find_best_predict_param, get_r_hat_plus
from verdict import table

import racer_core as rc
from racer_core.types import BoolArray, FloatArray
from tests.core.mapie_models import Given, half_width

PERCENTS = range(1, 100)
CANDIDATES = 4
SLOWEST = 10_000  # rows; a loop over rows and cut-offs takes seconds per thousand
REFUSED = -1
Ranks = list[float]  # 0 for the smallest score, inf for +inf
Rule = Callable[[FloatArray, Sequence[float]], Ranks]


def main() -> None:
    """Compare, measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=150, help="rows of the largest comparison")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    document: dict[str, Any] = {
        "manifest": rig.manifest(rows=max(args.rows), candidates=CANDIDATES),
        "compared": compared(args.largest),
        "speed": speed(args.rows),
    }
    rig.publish(document, markdown(document), args.json)


# --- Thresholds ---------------------------------------------------------------------------------


def ours(critical: FloatArray, alphas: Sequence[float]) -> Ranks:
    """lambda_hat."""
    return [_rank(critical, rc.calibrate_threshold(critical, alpha)) for alpha in alphas]


def mapie_quantile(critical: FloatArray, alphas: Sequence[float]) -> Ranks:
    """MAPIE's conformal quantile."""
    found: Ranks = []
    for alpha in alphas:
        try:
            found.append(_rank(critical, half_width(critical, alpha)))
        except ValueError:  # 1 / alpha or 1 / (1 - alpha) is above n
            found.append(REFUSED)
    return found


def mapie_risk_control(critical: FloatArray, alphas: Sequence[float]) -> Ranks:
    """MAPIE's conformal risk control of recall, one right candidate in each row."""
    cuts = np.sort(np.nextafter(1.0 - critical, 0.0))  # the set is f > cut
    missed = (1.0 - critical[:, None] <= cuts[None, :]).astype(float)
    _, bound = get_r_hat_plus(missed, cuts, "crc", None, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the risk cannot be controlled
        best = find_best_predict_param(cuts, bound, np.array(alphas))
    return (len(cuts) - 1.0 - np.searchsorted(cuts, best)).tolist()


def torchcp_quantile(critical: FloatArray, alphas: Sequence[float]) -> Ranks:
    """TorchCP's conformal quantile."""
    torch = import_module("torch")
    value = import_module("torchcp.utils.common").calculate_conformal_value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the quantile exceeds 1
        return [
            _rank(critical, float(value(torch.from_numpy(critical), alpha))) for alpha in alphas
        ]


def _rank(critical: FloatArray, threshold: float) -> float:
    if math.isinf(threshold):
        return math.inf
    rank = int(np.searchsorted(critical, threshold))
    assert critical[rank] == threshold, "to the last bit"
    return rank


def libraries() -> dict[str, Rule]:
    """The rules to compare with, TorchCP's only where it is installed."""
    rules: dict[str, Rule] = {
        "MAPIE, quantile": mapie_quantile,
        "MAPIE, risk control": mapie_risk_control,
    }
    return rules | ({"TorchCP": torchcp_quantile} if has_torchcp() else {})


def has_torchcp() -> bool:
    """Whether TorchCP can be imported."""
    try:
        import_module("torchcp.utils.common")
    except ImportError:
        return False
    return True


def place(n: int, percent: int) -> str:
    """Where a pair of n and alpha lies."""
    budget = Fraction(percent, 100) * (n + 1)
    if budget < 1:
        return "alpha < 1/(n + 1)"
    if budget.denominator == 1:
        return "alpha (n + 1) is whole"
    return "1 - alpha <= 1/n" if Fraction(100 - percent, 100) * n <= 1 else "elsewhere"


def compared(largest: int) -> dict[str, dict[str, dict[str, int]]]:
    """Pairs by library, by place and by the difference of its rank from ours."""
    alphas = [percent / 100 for percent in PERCENTS]
    found: dict[str, dict[str, Counter[str]]] = {}
    for n in range(10, largest + 1):
        # Multiples of 2^-20, so that 1 - f is exact.
        critical = np.sort(np.random.default_rng(n).choice(2**20, n, replace=False)) / 2**20
        mine = ours(critical, alphas)
        for name, rule in libraries().items():
            places = found.setdefault(name, {})
            for percent, own, other in zip(PERCENTS, mine, rule(critical, alphas), strict=True):
                counts = places.setdefault(place(n, percent), Counter())
                counts[difference(own, other)] += 1
    return {name: {at: dict(each) for at, each in at_.items()} for name, at_ in found.items()}


def difference(own: float, other: float) -> str:
    """How the library's threshold differs from ours."""
    if own == other:
        return "the same"
    if other == REFUSED:
        return "refused"
    return "finite, with a warning" if math.isinf(own) else f"{other - own:+.0f} rank"


# --- Speed --------------------------------------------------------------------------------------


def speed(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """CPU seconds from scores and labels to a threshold, best of five, by size and library."""
    return [
        {"rows": n, "library": name, "seconds": min(seconds(task) for _ in range(5))}
        for n in sizes
        for name, task in tasks(n).items()
    ]


def tasks(n: int) -> dict[str, Callable[[], Any]]:
    """The calibrations of n rows, one right candidate each."""
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.full(CANDIDATES, 0.7), n)
    right = np.array([rng.choice(CANDIDATES, p=row) for row in scores])
    labels = np.eye(CANDIDATES, dtype=bool)[right]
    found: dict[str, Callable[[], Any]] = {
        "racer_core.calibrate, `prob`": lambda: calibrated(scores, labels),
        "MAPIE, SplitConformalClassifier, LAC": lambda: conformalized(scores, right),
    }
    if n <= SLOWEST:
        found["MAPIE, MultiLabelClassificationController"] = lambda: controlled(scores, labels)
    if has_torchcp():
        found["TorchCP, SplitPredictor, LAC"] = lambda: predictor(scores, right)
    return found


def seconds(task: Callable[[], Any]) -> float:
    """CPU time of one call, in which other work on the machine has little part."""
    start = time.process_time()
    task()
    return time.process_time() - start


def calibrated(scores: FloatArray, labels: BoolArray) -> float:
    """Our threshold."""
    return rc.calibrate(scores, labels, score="prob").lambda_hat()


def conformalized(scores: FloatArray, right: Any) -> Any:
    """MAPIE's quantile of LAC scores; it is computed when a set is asked for."""
    model = SplitConformalClassifier(
        Given(CANDIDATES), confidence_level=0.9, conformity_score="lac", prefit=True
    )
    return model.conformalize(scores, right).predict_set(scores[:1])


def controlled(scores: FloatArray, labels: BoolArray) -> Any:
    """MAPIE's conformal risk control of recall, over its own grid of 100 cut-offs."""
    controller = MultiLabelClassificationController(
        np.asarray, risk="recall", method="crc", target_level=0.9
    )
    return controller.calibrate(scores, labels.astype(int)).best_predict_param


def predictor(scores: FloatArray, right: Any) -> Any:
    """TorchCP's quantile of LAC scores."""
    torch = import_module("torch")
    lac = import_module("torchcp.classification.score").LAC(score_type="identity")
    split = import_module("torchcp.classification.predictor").SplitPredictor(lac, alpha=0.1)
    split.calculate_threshold(torch.from_numpy(scores), torch.from_numpy(right))
    return split.q_hat


# --- Tables -------------------------------------------------------------------------------------


def markdown(document: dict[str, Any]) -> str:
    """Both tables."""
    rows = [
        [name, at, str(sum(counts.values())), ", ".join(f"{k}: {v}" for k, v in counts.items())]
        for name, places in document["compared"].items()
        for at, counts in sorted(places.items())
    ]
    ours_by_size = {
        each["rows"]: each["seconds"]
        for each in document["speed"]
        if each["library"].startswith("racer_core")
    }
    times = [
        [
            f"{each['rows']:,}",
            each["library"],
            f"{1e3 * each['seconds']:,.2f}",
            f"{each['seconds'] / ours_by_size[each['rows']]:,.3g}",
        ]
        for each in document["speed"]
    ]
    return "\n\n".join(
        [
            table(["library", "place", "pairs", "its threshold, beside ours"], rows),
            table(["rows", "library", "ms", "ratio to ours"], times),
        ]
    )


if __name__ == "__main__":
    main()
