"""Draws the pictures of the documents.

    python docs/figures/draw.py

`guarantee.png` is the table "Realised risk" of benchmarks/results/recorded_answers.md: recorded
answers of real models. `first_certificate.png` has the runs of
benchmarks/results/first_certificate.md. The other pictures explain the method on a simulated pool
of five models, each right on 50 to 74 % of the queries, with a router that knows a part of what
decides it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Final

import numpy as np

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.laws import beta_quantile
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.threshold import allowed_misses
from racer_core.offline.report import COLOURS
from racer_core.types import BoolArray, FloatArray, Score

FOLDER: Final = Path(__file__).parent
BENCHMARKS: Final = FOLDER.parents[1] / "benchmarks"
RESULTS: Final = BENCHMARKS / "results"
POOL: Final = ("A", "B", "C", "D", "E")
ABILITY: Final = np.array([1.4, 0.9, 0.6, 0.3, 0.0])
ALPHA: Final = 0.1
ROWS: Final = 500
sys.path.append(str(BENCHMARKS))
from canvas import LAW, Canvas  # noqa: E402  (beside the benchmarks, which draw as well)

INSIDE, OUTSIDE = COLOURS[Score.COVER], "#bbbbbb"


def drawn(rng: np.random.Generator, rows: int) -> tuple[FloatArray, BoolArray]:
    """Router scores and who was right, both (rows, 5)."""
    seen = rng.normal(0.0, 1.3, (rows, len(POOL)))
    hidden = rng.logistic(0.0, 1.0, seen.shape)
    logits = ABILITY + seen
    return 1.0 / (1.0 + np.exp(-logits)), logits + hidden > 0


def calibrated(rng: np.random.Generator, rows: int = ROWS) -> Calibration:
    """Rows that are drawn like every query."""
    scores, labels = drawn(rng, rows)
    return Calibration(
        pool=POOL,
        fingerprints=tuple(rng.bytes(16) for _ in range(rows)),
        scores=scores,
        labels=labels,
        options=CalibrationOptions(alpha=ALPHA, score=Score.PROB),
    )


def missed(calibration: Calibration, scores: FloatArray, labels: BoolArray, alpha: float) -> float:
    """Share of the answerable queries whose set contains no right candidate."""
    sets = selected(calibration, scores, alpha)
    answerable = labels.any(axis=1)
    return float(1.0 - (sets & labels).any(axis=1)[answerable].mean())


def selected(calibration: Calibration, scores: FloatArray, alpha: float) -> BoolArray:
    """The called sets, (rows, 5)."""
    prints = [b""] * len(scores)
    lambda_hat = calibration.lambda_hat(alpha, Score.PROB)
    return calibration.sets(scores, prints, lambda_hat, Score.PROB).selected


def surest(scores: FloatArray) -> FloatArray:
    """The query whose best candidate stands out most."""
    best = np.sort(scores, axis=1)
    return scores[np.argmax(best[:, -1] - best[:, -2])]


def a_query(calibration: Calibration, rng: np.random.Generator) -> Canvas:
    """An easy and a hard query, and the candidates that the threshold selects."""
    canvas = Canvas.of(1, 2)
    scores, _ = drawn(rng, 200)
    threshold = 1.0 - calibration.lambda_hat(ALPHA, Score.PROB)
    sizes = (scores >= threshold).sum(axis=1)
    titles = ("a query on which the router is sure", "a query on which it is not")
    for panel, title, query in zip(
        canvas.panels, titles, (surest(scores[sizes == 1]), scores[sizes == 4][0]), strict=True
    ):
        panel.bar(POOL, query, color=[INSIDE if each >= threshold else OUTSIDE for each in query])
        panel.axhline(threshold, color=LAW, label="the threshold")
        panel.set(title=title, ylim=(0, 1), ylabel="the router's score")
    canvas.panels[0].plot([], [], color=INSIDE, lw=8, label="called")
    canvas.panels[0].plot([], [], color=OUTSIDE, lw=8, label="not called")
    canvas.legend()
    return canvas


def a_threshold(calibration: Calibration) -> Canvas:
    """Where the threshold comes from: the rows, each at the least sure right answer it needs."""
    canvas = Canvas.of(1, 1)
    (panel,) = canvas.panels
    best = np.where(calibration.labels, calibration.scores, 0.0).max(axis=1)
    best = best[calibration.labels.any(axis=1)]
    threshold = 1.0 - calibration.lambda_hat(ALPHA, Score.PROB)
    edges = threshold + 0.02 * np.arange(-50, 51)  # a bar ends at the threshold
    panel.hist(best[best >= threshold], edges, color=INSIDE, label="covered")
    panel.hist(
        best[best < threshold], edges, color=OUTSIDE, label=f"missed: {ALPHA:.0%} of the rows"
    )
    panel.axvline(threshold, color=LAW, label="the threshold")
    panel.set(
        xlabel="the highest score that the router gave to a candidate that was right",
        ylabel="calibration rows",
        xlim=(0, 1),
    )
    canvas.legend()
    return canvas


def an_average(rng: np.random.Generator, repeats: int = 1000) -> Canvas:
    """What alpha bounds: calibrate again and again, and look at the realised risk."""
    canvas = Canvas.of(1, 1)
    (panel,) = canvas.panels
    scores, labels = drawn(rng, 20_000)
    risks = [missed(calibrated(rng), scores, labels, ALPHA) for _ in range(repeats)]
    panel.hist(risks, 40, color=COLOURS[Score.GAP])
    panel.axvline(ALPHA, color=LAW, label="alpha")
    panel.axvline(
        float(np.mean(risks)), color="black", ls="--", label="the average of all calibrations"
    )
    panel.set(
        xlabel="share of answerable queries that the set misses",
        ylabel=f"of {repeats:,} calibrations",
    )
    canvas.legend()
    return canvas


def a_price(calibration: Calibration, rng: np.random.Generator) -> Canvas:
    """What a smaller risk costs."""
    canvas = Canvas.of(1, 2)
    sizes, risks = canvas.panels
    scores, labels = drawn(rng, 20_000)
    alphas = np.linspace(0.01, 0.4, 40)
    sizes.plot(alphas, [selected(calibration, scores, a).sum(axis=1).mean() for a in alphas])
    sizes.set(xlabel="alpha", ylabel="calls a query", ylim=(0, len(POOL)))
    risks.plot(alphas, [missed(calibration, scores, labels, a) for a in alphas], label="realised")
    risks.plot(alphas, alphas, color=LAW, ls="--", label="alpha")
    risks.set(xlabel="alpha", ylabel="missed, of answerable queries")
    canvas.legend()
    return canvas


def a_guarantee() -> Canvas:
    """Measured: calls per query, and realised risk, at every risk level."""
    table = measured()
    canvas = Canvas.of(1, 2)
    sizes, risks = canvas.panels
    alphas = table["alpha"]
    for score, label in (
        (Score.PROB, "prob (paper)"),
        (Score.STATIC, "static: one order for all queries"),
        (Score.COVER, "cover (default)"),
    ):
        sizes.plot(alphas, table[f"size {score.value}"], color=COLOURS[score], label=label)
    sizes.axhline(7, color=OUTSIDE, ls=":", label="every model of the pool")
    sizes.set(xlabel="alpha, the risk you choose", ylabel="models called per query", ylim=(0, 7.4))
    risks.errorbar(
        alphas,
        table["risk cover"],
        table["sd cover"],
        color=COLOURS[Score.COVER],
        label="cover (default)",
    )
    risks.plot(alphas, alphas, color=LAW, ls="--", label="alpha")
    risks.set(xlabel="alpha, the risk you choose", ylabel="realised risk")
    canvas.legend()
    return canvas


def a_first_certificate() -> Canvas:
    """Calls and tokens of each request before and after the first certificate, and differences."""
    runs = {"demo": "five models of the demo", "vllm": "three of them in vLLM"}
    canvas = Canvas.of(len(runs), 3)
    for row, (name, title) in enumerate(runs.items()):
        run = json.loads((RESULTS / f"first_certificate_{name}.json").read_text(encoding="utf-8"))
        series = {key: np.array(values, float) for key, values in run["series"].items()}
        calls, tokens, differences = canvas.panels[3 * row : 3 * row + 3]
        first, alpha = run["first"] - 1, run["alpha"]
        everything = run["candidates"]
        sampled = np.where(series["sampled"] > 0, everything, series["calls"])
        calls.plot(moving(series["calls"]), color=INSIDE, label="of the answer")
        calls.plot(moving(sampled), color=OUTSIDE, label="with samples")
        calls.axhline(everything, color="black", ls=":", label="the whole pool")
        calls.set(title=title, ylabel="calls a request", ylim=(0, everything + 0.4))
        tokens.plot(moving(series["tokens"]), color=INSIDE)
        tokens.plot(moving(series["pool_tokens"]), color="black", ls=":")
        tokens.set(ylabel="tokens a request", ylim=(0, None), xlabel="request")
        for panel in (calls, tokens):
            panel.axvline(first, color=LAW, label="the first certificate")
        differs = series["differs"][first:][series["certified"][first:] > 0]
        counts = np.arange(1, len(differs) + 1)
        n = run["calibrations"][0]["n"]
        misses = allowed_misses(n, alpha)
        differences.plot(counts, differs.cumsum() / counts, color=INSIDE)
        differences.axhline(alpha, color=LAW, ls="--", label="alpha, and the 99 % point of its law")
        differences.axhline(beta_quantile(0.99, misses + 1, n - misses), color=LAW, ls="--")
        differences.set(xlabel="certified request", ylabel="share that differs", ylim=(0, None))
    canvas.legend()
    return canvas


def moving(values: FloatArray, width: int = 40) -> FloatArray:
    """Means of each value and those before it, at most ``width``."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - width, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def measured() -> dict[str, FloatArray]:
    """Columns of the table "Realised risk" of benchmarks/results/recorded_answers.md, by name."""
    text = (FOLDER.parents[1] / "benchmarks" / "results" / "recorded_answers.md").read_text(
        encoding="utf-8"
    )
    row = r"^\| (0\.\d+ \|(?: 0\.\d+ ± 0\.\d+ \|){5}(?: \d\.\d+ \|){5})$"
    rows = re.findall(row, text, re.MULTILINE)
    numbers = np.array([[float(n) for n in re.findall(r"\d+\.\d+", row)] for row in rows])
    scores = ("gap", "prob", "static", "cover", "static_by_group")
    names = ["alpha"]
    names += [f"{kind} {score}" for score in scores for kind in ("risk", "sd")]
    names += [f"size {score}" for score in scores]
    return dict(zip(names, numbers.T, strict=True))


def main() -> None:
    """Write the pictures beside this file."""
    rng = np.random.default_rng(4)
    calibration = calibrated(rng)
    pictures = {
        "guarantee": a_guarantee(),
        "query": a_query(calibration, rng),
        "threshold": a_threshold(calibration),
        "average": an_average(rng),
        "price": a_price(calibration, rng),
        "first_certificate": a_first_certificate(),
    }
    for name, canvas in pictures.items():
        (FOLDER / f"{name}.png").write_bytes(canvas.png())


if __name__ == "__main__":
    main()
